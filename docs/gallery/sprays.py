# %% [markdown]
# # Which of two models?
#
# Insects on 72 plots treated by one of six sprays (Beall 1942). Are the counts Poisson, or do they vary more? ArviZ compares the two by leave-one-out
# cross-validation, from the density of each observation that bbvi finds in the functions.

# %%
import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

insects = np.array(
    """10 7 20 14 14 12 10 23 17 20 14 13 11 17 21 11 16 14 17 17 19 21 7 13 0 1 7 2 3 1 2 1 3 0 1 4 3 5 12 6 4 3 5 5 5 5 2 4
    3 5 3 5 3 6 1 1 3 2 6 4 11 9 15 22 15 16 13 10 26 26 24 13""".split(),
    int,
)
spray = np.repeat(np.arange(6), 12)
data = {"y": insects, "spray": spray}


def poisson(z, data):
    return {
        "rate": dist.LogNormal(2, 1).log_prob(z["rate"]),
        "y": dist.Poisson(z["rate"][data["spray"]]).log_prob(data["y"]),
    }


def negative_binomial(z, data):
    return {
        "rate": dist.LogNormal(2, 1).log_prob(z["rate"]),
        "shape": dist.LogNormal(2, 1).log_prob(z["shape"]),
        "y": dist.NegativeBinomial2(z["rate"][data["spray"]], z["shape"]).log_prob(data["y"]),
    }


def predict(z, data, key):
    return {"y": dist.NegativeBinomial2(z["rate"][data["spray"]], z["shape"]).sample(key)}


posteriors = {
    "poisson": bbvi.fit(bbvi.Model(poisson, rate=bbvi.positive(6)), data),
    "negative binomial": bbvi.fit(bbvi.Model(negative_binomial, rate=bbvi.positive(6), shape=bbvi.positive()), data),
}
print(posteriors["negative binomial"].summary())

# %%
results = {name: posterior.to_arviz(2000, log_likelihood="y") for name, posterior in posteriors.items()}
table = az.compare(results)
print(table[[name for name in table.columns if name.startswith(("elpd", "p", "weight", "dse", "se"))]].round(1))

# %% [markdown]
# What the better model predicts for each spray, beside what was counted.

# %%
drawn = posteriors["negative binomial"].to_arviz(1000, predict=predict)["posterior_predictive"]["y"].values[0]
figure, axes = plt.subplots(figsize=(7, 3.3))
axes.violinplot([drawn[:, spray == k].ravel() for k in range(6)], positions=range(6), showextrema=False, widths=0.9)
axes.plot(spray + np.random.default_rng(0).uniform(-0.15, 0.15, 72), insects, "o", color="k", ms=3, alpha=0.6)
axes.set(xticks=range(6), xticklabels=list("ABCDEF"), xlabel="spray", ylabel="insects", ylim=(-1, 45))
