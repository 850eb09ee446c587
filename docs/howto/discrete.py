# %% [markdown]
# # Discrete latents
#
# Declare them: `bbvi.binary(n)`, `bbvi.categorical(k, n)` with values 0 to k - 1, `bbvi.count(n)`. Write log p as if they were known. Nothing has to be summed out by hand.

# %%
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

y = np.array([-2.1, -1.8, -2.4, 1.9, 2.2, 2.0, 0.1])


def log_joint(z, y):
    return (
        dist.Bernoulli(0.5).log_prob(z["high"]).sum()
        + dist.Normal(jnp.where(z["high"] == 1, 2.0, -2.0), 1).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, high=bbvi.binary(7))
posterior = bbvi.fit(model, data=y)
print(posterior.probs()["high"][:, 1].round(3))

# %% [markdown]
# What q is for them is read off log p:
#
# | log p | q | gradient |
# |---|---|---|
# | any | a probability for each value of each | exact sums over the values where these are few, the paper's score elsewhere |
# | terms read single ones and neighbours, as in a chain or a tree | a Markov chain or tree | exact, `TreeExpectation` |
# | a bit switches or scales a continuous latent, element by element | q(g) q(b given g) | sums over values, paths given each, `ValuesAndPaths` |
#
# `posterior.structure` and `posterior.estimators` say what was chosen. A latent with few values and a score gradient is best summed by
# `bbvi.fit(..., gradient=bbvi.LocalExpectation())`.
#
# Such models have many optima. Flat ones start eight times ([Many optima](../optima.md)). Look at `posterior.restarts`. Draws have whole numbers, `posterior.probs()` has the
# probability of each value, and the mean of a category's code is refused, since it says nothing.
#
# In the gallery: [a change point](../gallery/coal.md), [a mixture](../gallery/galaxies.md), [a hidden Markov model](../gallery/earthquakes.md), [bits that select](../gallery/stack_loss.md).
