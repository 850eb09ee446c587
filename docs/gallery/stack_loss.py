# %% [markdown]
# # Which predictors matter?
#
# Ammonia that is lost in 21 days of a plant, with the flow of air, the temperature of the water, and the concentration of acid (Brownlee 1960). A bit for
# each predictor switches its slope on. With three predictors of noise beside the three real ones.

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

air = [80, 80, 75, 62, 62, 62, 62, 62, 58, 58, 58, 58, 58, 58, 50, 50, 50, 50, 50, 56, 70]
water = [27, 27, 25, 24, 22, 23, 24, 24, 23, 18, 18, 17, 18, 19, 18, 18, 19, 19, 20, 20, 20]
acid = [89, 88, 90, 87, 87, 87, 93, 93, 87, 80, 89, 88, 82, 93, 89, 86, 72, 79, 80, 82, 91]
loss = [42, 37, 37, 28, 18, 18, 19, 20, 15, 14, 14, 13, 11, 12, 8, 7, 8, 8, 9, 15, 15]
x = np.column_stack([air, water, acid, np.random.default_rng(0).normal(size=(21, 3))])
x = (x - x.mean(0)) / x.std(0)
y = (np.array(loss) - np.mean(loss)) / np.std(loss)
names = ["air", "water", "acid", "noise 1", "noise 2", "noise 3"]


def log_joint(z, data):
    x, y = data
    return (
        dist.Bernoulli(0.5).log_prob(z["matters"]).sum()
        + dist.Normal(0, 1).log_prob(z["slope"]).sum()
        + dist.HalfNormal(1).log_prob(z["sigma"])
        + dist.Normal(x @ (z["matters"] * z["slope"]), z["sigma"]).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, matters=bbvi.binary(6), slope=bbvi.real(6), sigma=bbvi.positive())
posterior = bbvi.fit(model, data=(x, y))
print(posterior.summary())

# %% [markdown]
# A slope that is switched off follows its prior, so q gives each slope two Normals: one for each value of its bit. What enters the regression is their product.
# The first line warns: bits of predictors that go together, as air and water, depend on each other, and q has none of that.

# %%
effect = bbvi.predict(posterior, lambda z: z["matters"] * z["slope"], 4000)

figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), sharey=True)
left.barh(names, posterior.probs()["matters"][:, 1])
left.set(xlabel="probability that it matters", xlim=(0, 1))
left.invert_yaxis()
right.hlines(names, effect.low, effect.high, lw=3)
right.plot(effect.mean, names, "o")
right.axvline(0, color="0.7", lw=0.8)
right.set(xlabel="effect, in standard deviations")
