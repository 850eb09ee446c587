# %% [markdown]
# # A curve of unknown shape
#
# How far cars of the 1920s went before they stood, by their speed (Ezekiel 1930): 50 stops. The curve is a Gaussian process, and so is the logarithm of the noise,
# each as a sum of sines with Normal weights (Solin and Särkkä 2020); the length scale of the curve is a latent too.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

speed = np.array(
    """4 4 7 7 8 9 10 10 10 11 11 12 12 12 12 13 13 13 13 14 14 14 14 15 15 15 16 16 17 17 17 18 18 18 18 19 19 19 20 20 20 20 20 22 23
    24 24 24 24 25""".split(),
    float,
)
distance = np.array(
    """2 10 4 22 16 10 18 26 34 17 28 14 20 24 28 26 34 34 46 26 36 60 80 20 26 54 32 40 32 40 50 42 56 76 84 36 46 68 32 48 52 56 64 66 54
    70 92 93 120 85""".split(),
    float,
)
grid = np.linspace(3, 26, 24)
K, HALF = 12, 2.0  # how many sines, on -HALF to HALF
frequency = np.pi * np.arange(1, K + 1) / (2 * HALF)


def sines(speed):
    return np.sin(frequency * ((np.asarray(speed) - 14.5)[:, None] / 11.5 + HALF)) / np.sqrt(HALF)


def curve(basis, weights, length):
    """A function with squared exponential covariance, from independent Normals."""
    return basis @ (weights * (2 * np.pi) ** 0.25 * jnp.sqrt(length) * jnp.exp(-((length * frequency) ** 2) / 4))


def curves(z, basis):
    mean = 40 + 50 * curve(basis, z["f"], z["length"])
    return mean, jnp.exp(2 + 0.7 * curve(basis, z["g"], 1.0))


def log_joint(z, data):
    basis, distance = data
    return (
        dist.Normal(0, 1).log_prob(z["f"]).sum()
        + dist.Normal(0, 1).log_prob(z["g"]).sum()
        + dist.LogNormal(-0.5, 0.5).log_prob(z["length"])
        + dist.Normal(*curves(z, basis)).log_prob(distance).sum()
    )


model = bbvi.Model(log_joint, f=bbvi.real(K), g=bbvi.real(K), length=bbvi.positive(init=0.6))
posterior = bbvi.fit(model, data=(sines(speed), distance))
print(posterior.converged, posterior.khat())
posterior.summary().loc[["length"]]

# %%
on_grid = sines(grid)
mean = bbvi.predict(posterior, lambda z: curves(z, on_grid)[0], 1000)
noise = bbvi.predict(posterior, lambda z: curves(z, on_grid)[1], 1000)
stop = bbvi.predict(posterior, lambda z, data, key: dist.Normal(*curves(z, on_grid)).sample(key), 1000)

figure, axes = plt.subplots(figsize=(7, 3.6))
axes.fill_between(grid, stop.low, stop.high, color="0.9", label="a further stop, 90 %")
axes.fill_between(grid, mean.low, mean.high, alpha=0.4, lw=0, label="mean, 90 %")
axes.plot(grid, mean.mean)
axes.plot(speed, distance, "o", color="k", alpha=0.5, mec="none", ms=4)
axes.set(xlabel="speed, miles an hour", ylabel="distance, feet")
axes.legend(frameon=False)

# %%
print("noise at 5, 15 and 25 miles an hour:", np.round(np.interp([5, 15, 25], grid, noise.mean), 1))
