# %% [markdown]
# # When did the rate change?
#
# Explosions in British coal mines in each year from 1851 to 1962 (Jarrett 1979). The year of the change is a discrete latent with 112 values; its
# probabilities are summed exactly, so nothing has to be derived.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

count = np.array(
    """4 5 4 1 0 4 3 4 0 6 3 3 4 0 2 6 3 3 5 4 5 3 1 4 4 1 5 5 3 4 2 5 2 2 3 4 2 1 3 2 2 1 1 1 1 3 0 0 1 0 1 1 0 0 3 1 0 3 2 2 0 1 1 1 0 1
    0 1 0 0 0 2 1 0 0 0 1 1 0 2 3 3 1 1 2 1 1 1 1 2 4 2 0 0 0 1 4 0 0 0 1 0 0 0 0 0 1 0 0 1 0 1""".split(),
    int,
)
year = 1851 + np.arange(len(count))


def log_joint(z, y):
    rate = jnp.where(jnp.arange(len(y)) < z["change"], z["before"], z["after"])
    return (
        dist.Exponential(1.0).log_prob(z["before"])
        + dist.Exponential(1.0).log_prob(z["after"])
        + dist.Categorical(logits=jnp.zeros(len(y))).log_prob(z["change"])
        + dist.Poisson(rate).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, before=bbvi.positive(), after=bbvi.positive(), change=bbvi.categorical(len(count)))
posterior = bbvi.fit(model, data=count)
print(posterior.summary())

# %%
chance = posterior.probs()["change"]
draws = posterior.sample(2000)
rate = np.where(np.arange(len(count)) < draws["change"][:, None], draws["before"][:, None], draws["after"][:, None])

figure, (top, bottom) = plt.subplots(
    2, figsize=(7, 4.2), sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.08}
)
top.bar(year, count, color="0.8", width=1)
top.plot(year, rate.mean(0))
top.fill_between(year, *np.quantile(rate, [0.05, 0.95], axis=0), alpha=0.3, lw=0)
top.set(ylabel="explosions in a year")
bottom.bar(year, chance, width=1, color="C3")
bottom.set(ylabel="P(change)", xlabel="year")

# %%
print({int(year[k]): round(float(chance[k]), 2) for k in np.argsort(chance)[::-1][:4]})
