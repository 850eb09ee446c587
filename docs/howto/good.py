# %% [markdown]
# # Was it any good?
#
# Four questions, in this order.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def log_joint(z, data):
    y, sigma = data
    return {
        "mu": dist.Normal(0, 5).log_prob(z["mu"]),
        "tau": dist.HalfCauchy(5).log_prob(z["tau"]),
        "theta": dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]),
        "y": dist.Normal(z["theta"], sigma).log_prob(y),
    }


model = bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
posterior = bbvi.fit(model, data=(y, sigma))

# %% [markdown]
# **1. Did the search end?** The verdict is the first line of the summary: [what it means](../convergence.md). If it ended on its budget, give it more steps:
# `bbvi.fit(model, data, start=posterior)`.

# %%
print(posterior.converged, "-", posterior.outcome.value)

# %% [markdown]
# **2. Is q near the posterior?** k-hat below 0.5: yes. Up to 0.7: means are fine, tails less so, and `posterior.reweighted()` mends them. Above: another q
# ([families](../families.md), [structure](../structure.md)), a reparametrised model, or sampling.

# %%
print(posterior.khat())
heavy = posterior.reweighted(4000)
print("sd of tau:", float(posterior.sd()["tau"]), "and with weights:", float(heavy.sd()["tau"]))

# %% [markdown]
# **3. Is there a better optimum?** Another seed has the same ELBO, or not. `restarts=8` does that in one call ([Many optima](../optima.md)).

# %%
for seed in (1, 2):
    print(bbvi.fit(model, data=(y, sigma), seed=seed).elbo(4000))

# %% [markdown]
# **4. Is the model any good?** Draw what might have been observed, and compare.


# %%
def predict(z, data, key):
    return {"y": dist.Normal(z["theta"], data[1]).sample(key)}


drawn = bbvi.predict(posterior, lambda z, data, key: predict(z, data, key)["y"], 4000)
figure, axes = plt.subplots(figsize=(6, 2.6))
axes.vlines(np.arange(8), drawn.low, drawn.high, lw=6, alpha=0.3)
axes.plot(np.arange(8), y, "o", color="k")
axes.set(xlabel="school", ylabel="effect")

# %%
print(az.loo(posterior.to_arviz(2000, log_likelihood="y")))
