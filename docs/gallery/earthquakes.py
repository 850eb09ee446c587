# %% [markdown]
# # Quiet and busy years
#
# Earthquakes of magnitude 7 or more in the world in each year from 1900 to 2006 (Zucchini and MacDonald 2009). A hidden Markov model of three states, each with a rate.
# The states are latents; bbvi sees that they form a chain and gives them a Markov chain as q.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

count = np.array(
    """13 14 8 10 16 26 32 27 18 32 36 24 22 23 22 18 25 21 21 14 8 11 14 23 18 17 19 20 22 19 13 26 13 14 22 24 21 22 26 21 23 24 27 41
    31 27 35 26 28 36 39 21 17 22 17 19 15 34 10 15 22 18 15 20 15 22 19 16 30 27 29 23 20 16 21 21 25 16 18 15 18 14 10 15 8 15 6 11 8 7
    18 16 13 12 13 20 15 16 12 18 15 16 13 15 16 11 11""".split(),
    int,
)
year, K = 1900 + np.arange(len(count)), 3


def log_joint(z, y):
    move, state = z["move"], z["state"]
    return (
        dist.Dirichlet(1 + 4 * jnp.eye(K)).log_prob(move).sum()
        + dist.Gamma(4, 0.2).log_prob(z["rate"]).sum()
        + jnp.log(move[state[:-1], state[1:]]).sum()
        + dist.Poisson(z["rate"][state]).log_prob(y).sum()
    )


model = bbvi.Model(
    log_joint,
    move=bbvi.simplex(K, K),
    rate=bbvi.positive(K, init=jnp.array([10.0, 20.0, 30.0])),
    state=bbvi.categorical(K, len(count)),
)
posterior = bbvi.fit(model, data=count)
print(posterior.converged, posterior.khat())
posterior.summary().loc[[f"rate[{k}]" for k in range(K)]]

# %%
chance, rate = posterior.probs()["state"], posterior.mean()["rate"]
figure, (top, bottom) = plt.subplots(
    2, figsize=(7, 4.2), sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.08}
)
top.plot(year, count, ".-", color="0.6", lw=0.7)
top.plot(year, chance @ rate)
top.set(ylabel="earthquakes in a year")
order = np.argsort(rate)
bottom.stackplot(year, *(chance[:, k] for k in order), labels=[f"{rate[k]:.0f}" for k in order], alpha=0.8)
bottom.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, title="rate")
bottom.set(ylabel="P(state)", xlabel="year", ylim=(0, 1))
