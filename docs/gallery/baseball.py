# %% [markdown]
# # Shrinkage, checked by what came later
#
# Hits of eighteen players in their first 45 times at bat in 1970, and their averages in the rest of the season (Efron and Morris 1975).
# Each has an ability of his own, and all abilities have a mean and a spread.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
from jax.nn import sigmoid

import bbvi

hits = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
later = np.array(
    [0.346, 0.298, 0.276, 0.222, 0.273, 0.270, 0.263, 0.210, 0.269, 0.230, 0.264, 0.256, 0.303, 0.264, 0.226, 0.286, 0.316, 0.200]
)  # fmt: skip


def log_joint(z, hits):
    return (
        dist.Normal(-1, 1).log_prob(z["mean"])
        + dist.HalfNormal(0.5).log_prob(z["spread"])
        + dist.Normal(z["mean"], z["spread"]).log_prob(z["ability"]).sum()
        + dist.Binomial(45, logits=z["ability"]).log_prob(hits).sum()
    )


model = bbvi.Model(log_joint, mean=bbvi.real(), spread=bbvi.positive(), ability=bbvi.real(18))
posterior = bbvi.fit(model, data=hits)
print(posterior.summary())

# %% [markdown]
# The first line warns of tails: a spread near 0 makes all abilities equal, and q has too little of that. The means are of use all the same, as what came later shows.
# The estimates are pulled towards each other. Against the rest of the season they are much nearer than the early averages.

# %%
draws = sigmoid(posterior.sample(2000)["ability"])
shrunk = draws.mean(0)
low, high = np.quantile(draws, [0.05, 0.95], axis=0)
order = np.arange(18)

figure, axes = plt.subplots(figsize=(7, 3.8))
axes.vlines(order, low, high, color="C0", alpha=0.4, lw=4)
axes.plot(order, shrunk, "o", label="posterior mean, 90 %")
axes.plot(order, hits / 45, "x", color="C1", label="first 45 times at bat")
axes.plot(order, later, "_", color="k", ms=10, label="rest of the season")
axes.set(xlabel="player", ylabel="batting average", xticks=[])
axes.legend(frameon=False)

# %%
error = {"early average": hits / 45, "posterior mean": shrunk}
print({name: round(float(np.sqrt(np.mean((guess - later) ** 2))), 3) for name, guess in error.items()})
