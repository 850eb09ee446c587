# %% [markdown]
# # A differential equation
#
# Pelts of hares and of lynxes, in thousands, from 1900 to 1920 (Elton and Nicholson 1942). Hares u and lynxes v follow u' = (a - b v) u, v' = (d u - c) v.
# The model solves the equation by Runge-Kutta; bbvi follows its derivatives.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

hare = [
    30,
    47.2,
    70.2,
    77.4,
    36.3,
    20.6,
    18.1,
    21.4,
    22,
    25.4,
    27.1,
    40.3,
    57,
    76.6,
    52.3,
    19.5,
    11.2,
    7.6,
    14.6,
    16.2,
    24.7,
]
lynx = [4, 6.1, 9.8, 35.2, 59.4, 41.7, 19, 13, 8.3, 9.1, 7.4, 8, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6]
pelts = np.stack([hare, lynx], 1)
STEPS = 10  # of the solver in a year


def solve(z):
    def slope(u):
        return jnp.stack([(z["a"] - z["b"] * u[1]) * u[0], (z["d"] * u[0] - z["c"]) * u[1]])

    def step(u, _):
        h = 1 / STEPS
        k1 = slope(u)
        k2 = slope(u + h / 2 * k1)
        k3 = slope(u + h / 2 * k2)
        k4 = slope(u + h * k3)
        u = u + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return u, u

    start = z["start"]
    _, path = jax.lax.scan(step, start, length=20 * STEPS)
    return jnp.concatenate([start[None], path])


def log_joint(z, y):
    years = solve(z)[::STEPS]
    return (
        dist.LogNormal(-0.6, 0.5).log_prob(z["a"])
        + dist.LogNormal(-3.6, 0.5).log_prob(z["b"])
        + dist.LogNormal(-0.2, 0.5).log_prob(z["c"])
        + dist.LogNormal(-3.7, 0.5).log_prob(z["d"])
        + dist.LogNormal(jnp.log(10.0), 1).log_prob(z["start"]).sum()
        + dist.LogNormal(-1, 1).log_prob(z["noise"]).sum()
        + dist.LogNormal(jnp.log(years), z["noise"]).log_prob(y).sum()
    )


model = bbvi.Model(
    log_joint,
    a=bbvi.positive(init=0.55), b=bbvi.positive(init=0.028), c=bbvi.positive(init=0.8), d=bbvi.positive(init=0.024),
    start=bbvi.positive(2, init=jnp.array([30.0, 4.0])), noise=bbvi.positive(2),
)  # fmt: skip
posterior = bbvi.fit(model, data=pelts)
print(posterior.summary())

# %%
paths = jax.vmap(solve)(posterior.sample(300))
time = 1900 + np.arange(paths.shape[1]) / STEPS

figure, axes = plt.subplots(figsize=(7, 3.5))
for k, name in enumerate(("hares", "lynxes")):
    axes.fill_between(time, *np.quantile(paths[..., k], [0.05, 0.95], axis=0), color=f"C{k}", alpha=0.3, lw=0)
    axes.plot(time, np.median(paths[..., k], 0), color=f"C{k}", label=name)
    axes.plot(1900 + np.arange(21), pelts[:, k], "o", ms=4, color=f"C{k}")
axes.set(xlabel="year", ylabel="pelts, thousands", xticks=range(1900, 1921, 5))
axes.legend(frameon=False)
