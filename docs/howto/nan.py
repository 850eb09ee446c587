# %% [markdown]
# # I get NaN
#
# **In the data.** NaN in the data is an error that says where. If it means "not measured", split it off and mask those terms:

# %%
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

y = np.array([1.2, np.nan, 0.7, 2.1])
values, observed = bbvi.missing(y)


def log_joint(z, data):
    values, observed = data
    each = jnp.where(observed, dist.Normal(z["mu"], 1).log_prob(values), 0)
    return dist.Normal(0, 3).log_prob(z["mu"]) + each.sum()


posterior = bbvi.fit(bbvi.Model(log_joint, mu=bbvi.real()), data=(values, observed))
print(posterior.summary())

# %% [markdown]
# **In log p.** A step whose gradient is not finite is taken back, and the next ones are shorter. If that happens again and again the fit stops, and
# `posterior.outcome` says so, with the name of the latent. Mostly a latent has left the support of a density, or a number overflows:


# %%
def careless(z, data):
    return jnp.log(1 - jnp.exp(z["rate"])) - z["rate"]  # a sign is wrong: 1 - exp(-rate) was meant


try:
    bbvi.fit(bbvi.Model(careless, rate=bbvi.positive()), data=None)
except ValueError as error:
    print(error)

# %% [markdown]
# - Declare the support: `bbvi.positive()`, `bbvi.unit_interval()`, `bbvi.interval(low, high)`, `bbvi.ordered(k)`.
# - Work with logarithms: `logits=` in place of `probs=`, `jax.nn.log_sigmoid`, `jax.scipy.special.logsumexp`.
# - `jnp.where(ok, term, 0)` hides a value and not its derivative, which is computed for both branches. Make the argument harmless too:
#   `jnp.where(ok, jnp.log(jnp.where(ok, x, 1)), 0)`.
# - If the numbers are large, centre and scale the data, or ask for 64 bits: `jax.config.update("jax_enable_x64", True)`.
# - If it is the start, give one: `bbvi.real(init=3.0)`.
