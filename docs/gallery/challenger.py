# %% [markdown]
# # Predicting far from the data
#
# Twenty-three flights of the space shuttle before January 1986: the temperature at launch, and whether an O-ring was damaged
# (Dalal, Fowlkes and Hoadley 1989). The last launch was at 31 °F. A logistic regression, and its probability of damage there.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

temperature = np.array([66, 70, 69, 68, 67, 72, 73, 70, 57, 63, 70, 78, 67, 53, 67, 75, 70, 81, 76, 79, 75, 76, 58.0])
damage = np.array([0, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1])


def log_joint(z, data):
    x, y = data
    return (
        dist.Normal(0, 3).log_prob(z["level"])
        + dist.Normal(0, 3).log_prob(z["slope"])
        + dist.Bernoulli(logits=z["level"] + z["slope"] * x).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, level=bbvi.real(), slope=bbvi.real())
posterior = bbvi.fit(model, data=((temperature - 70) / 10, damage))
print(posterior.summary())

# %% [markdown]
# `bbvi.predict` pushes draws through a function of the latents: here the probability on a grid of temperatures.

# %%
grid = np.linspace(30, 85, 56)
chance = bbvi.predict(
    posterior, lambda z: dist.Bernoulli(logits=z["level"] + z["slope"] * (grid - 70) / 10).probs, 4000
)

figure, axes = plt.subplots(figsize=(7, 3.5))
axes.fill_between(grid, chance.low, chance.high, alpha=0.3, lw=0)
axes.plot(grid, chance.mean)
axes.plot(temperature, damage, "o", color="k", alpha=0.4, mec="none")
axes.axvline(31, color="C3", ls=":")
axes.set(xlabel="temperature at launch, °F", ylabel="probability of damage")

# %%
print(f"at 31 °F: {chance.mean[1]:.2f}, 90 % between {chance.low[1]:.2f} and {chance.high[1]:.2f}")
