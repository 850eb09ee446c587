# %% [markdown]
# # A NumPyro function, outliers and all
#
# Darwin's fifteen pairs of maize plants, one of each crossed and one self-fertilised: differences of height in eighths of an inch (1876). Two pairs went the other way by
# far. The model is a NumPyro function; `from_numpyro` brings it, `to_arviz` draws predictions by the same function.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist

import bbvi

difference = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48.0])


def pairs(y, degrees=None):
    mu = numpyro.sample("mu", dist.Normal(0, 50))
    sigma = numpyro.sample("sigma", dist.HalfNormal(50))
    law = dist.Normal(mu, sigma) if degrees is None else dist.StudentT(degrees, mu, sigma)
    with numpyro.plate("pair", len(y)):
        numpyro.sample("y", law, obs=y)


fits = {
    "Normal": bbvi.fit(*bbvi.from_numpyro(pairs, difference)),
    "Student's t, 3 degrees": bbvi.fit(*bbvi.from_numpyro(pairs, difference, 3)),
}
print(fits["Student's t, 3 degrees"].summary())

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2))
for name, posterior in fits.items():
    left.hist(posterior.to_numpyro(8000)["mu"], 60, histtype="step", density=True, lw=1.5, label=name)
    drawn = np.asarray(posterior.to_arviz(1000)["posterior_predictive"]["y"]).ravel()
    right.hist(drawn, np.linspace(-150, 150, 60), histtype="step", density=True, lw=1.5)
left.axvline(0, color="0.7", lw=0.8)
left.set(xlabel="mean difference", yticks=[])
left.legend(frameon=False, fontsize="small")
right.plot(difference, np.zeros(15), "|", color="k", ms=12)
right.set(xlabel="a further pair", yticks=[])
figure.tight_layout()
