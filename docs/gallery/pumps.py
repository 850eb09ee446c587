# %% [markdown]
# # Rates of ten pumps, and two families of q
#
# Failures of ten pumps of a power plant in so many thousand hours (Gaver and O'Muircheartaigh 1987). Each pump has a rate; the rates are gammas whose shape
# and scale are unknown. Given these the exact posterior of each rate is a gamma, so that gammas for the rates lose little.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

hours = np.array([94.3, 15.7, 62.9, 126.0, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5])
failures = np.array([5, 1, 5, 14, 3, 19, 1, 1, 4, 22])


def log_joint(z, data):
    hours, failures = data
    return (
        dist.Exponential(1.0).log_prob(z["shape"])
        + dist.Gamma(0.1, 1.0).log_prob(z["inverse_scale"])
        + dist.Gamma(z["shape"], z["inverse_scale"]).log_prob(z["rate"]).sum()
        + dist.Poisson(z["rate"] * hours).log_prob(failures).sum()
    )


latents = {"shape": bbvi.positive(), "inverse_scale": bbvi.positive(), "rate": bbvi.positive(10)}
gammas = bbvi.fit(bbvi.Model(log_joint, joint=(), **latents), data=(hours, failures))
joint = bbvi.fit(bbvi.Model(log_joint, **latents), data=(hours, failures))
print(gammas.summary())

# %% [markdown]
# By default bbvi puts latents that share terms into one joint Normal of their logarithms; `joint=()` gives each number a gamma of its own. The ELBO, and k-hat, say
# which is nearer to the posterior.

# %%
for name, posterior in {"a gamma each": gammas, "joint": joint}.items():
    print(f"{name:12s} ELBO {posterior.elbo(4000)}, k-hat {posterior.khat()}")

# %%
figure, axes = plt.subplots(figsize=(7, 3.5))
for shift, name, posterior in [(-0.12, "a gamma each", gammas), (0.12, "joint", joint)]:
    low, high = posterior.quantile(0.05)["rate"], posterior.quantile(0.95)["rate"]
    axes.vlines(np.arange(10) + shift, low, high, color=f"C{int(shift > 0)}", lw=3, label=name)
axes.plot(np.arange(10), failures / hours, "k_", ms=12, label="failures / hours")
axes.set(yscale="log", xlabel="pump", ylabel="failures in 1,000 hours", xticks=range(10), xticklabels=range(1, 11))
axes.legend(frameon=False)
