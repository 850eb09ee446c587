"""Draw docs/images/restarts.png: the ELBO of fits with one start and of one with eight, choosing among correlated predictors.

Usage: python docs/make_restarts_picture.py
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

rng = np.random.default_rng(12)
x = (rng.normal(size=(150, 1)) + rng.normal(size=(150, 12))) * 0.5**0.5
matters = np.arange(12) % 3 == 0
y = x @ (matters * rng.choice([-1.0, 1.0], 12) * rng.uniform(0.7, 2.0, 12)) + rng.normal(size=150)


def log_joint(z, data):
    x, y = data
    of_prior = dist.Bernoulli(0.3).log_prob(z["g"]).sum() + dist.Normal(0, 2).log_prob(z["b"]).sum()
    return of_prior + dist.Normal(x @ (z["g"] * z["b"]), 1.0).log_prob(y).sum()


model = bbvi.Model(log_joint, joint=(), g=bbvi.binary(12), b=bbvi.real(12, q=bbvi.FullRank()))
figure, axes = plt.subplots(figsize=(7, 4))
for seed in range(8):
    alone = bbvi.fit(model, (x, y), seed=seed, restarts=1, stop=bbvi.Budget(steps=250))
    axes.plot(alone.history["elbo"], color="0.7", label="one start, eight seeds" if seed == 0 else None)
posterior = bbvi.fit(model, (x, y))
axes.plot(posterior.history["elbo"], color="tab:blue", linewidth=2, label="the best of eight starts")
axes.set(xlabel="step", ylabel="ELBO", ylim=(-600, -180))
axes.legend(loc="lower right")
figure.tight_layout()
figure.savefig(Path(__file__).parent / "images" / "restarts.png", dpi=120)
