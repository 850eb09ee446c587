# %% [markdown]
# # Capture and recapture
#
# European dippers, ringed in six years and seen again in later ones (Lebreton et al. 1992): row i has those released in year i by the year of their next capture, and
# last those that were never seen again. A flood
# fell in the second and third winters: is survival different there?

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

seen = np.array(
    [
        [11, 2, 0, 0, 0, 0, 9],
        [0, 24, 1, 0, 0, 0, 35],
        [0, 0, 34, 2, 0, 0, 42],
        [0, 0, 0, 45, 1, 2, 32],
        [0, 0, 0, 0, 51, 0, 37],
        [0, 0, 0, 0, 0, 52, 46],
    ]
)


def next_capture(survival, caught):
    """The probability of each cell: alive until year j, missed in the years between, caught in j."""
    rows = []
    for i in range(6):
        cells = [jnp.prod(survival[i : j + 1]) * (1 - caught) ** (j - i) * caught for j in range(i, 6)]
        rows.append(jnp.stack([jnp.zeros(())] * i + cells + [1 - sum(cells)]))
    return jnp.stack(rows)


def log_joint(z, seen):
    survival = jnp.stack([z["usual"], z["flood"], z["flood"], z["usual"], z["usual"], z["usual"]])
    cells = next_capture(survival, z["caught"])
    return (
        dist.Beta(1, 1).log_prob(z["usual"])
        + dist.Beta(1, 1).log_prob(z["flood"])
        + dist.Beta(1, 1).log_prob(z["caught"])
        + jnp.where(seen > 0, seen * jnp.log(jnp.where(seen > 0, cells, 1)), 0).sum()
    )


model = bbvi.Model(log_joint, usual=bbvi.unit_interval(), flood=bbvi.unit_interval(), caught=bbvi.unit_interval())
posterior = bbvi.fit(model, data=seen)
print(posterior.summary())

# %%
draws = posterior.sample(20_000)
figure, axes = plt.subplots(figsize=(7, 3.2))
for name in ("usual", "flood", "caught"):
    axes.hist(draws[name], np.linspace(0.3, 1, 120), histtype="stepfilled", alpha=0.5, density=True, label=name)
axes.set(xlabel="probability to survive a winter, or to be caught if alive", yticks=[])
axes.legend(frameon=False)

# %%
print("survival was lower in the flood with probability", float((draws["flood"] < draws["usual"]).mean()))
