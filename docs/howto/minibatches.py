# %% [markdown]
# # Minibatches, with and without locals
#
# Make what is subsampled a *group* of a `HierarchicalModel`. A step looks at `batch_size` groups, and scales their terms up once. With `locals` each group has
# latents of its own, whose parameters are rows of a table; a step touches those of its batch.

# %%
import numpy as np
import numpyro.distributions as dist

import bbvi

rng = np.random.default_rng(0)
x = rng.normal(size=(5000, 2))
data = {"x": x, "y": (rng.uniform(size=5000) < 1 / (1 + np.exp(-x @ [1.0, -2.0]))).astype(int)}

model = bbvi.HierarchicalModel(
    log_prior=lambda beta: dist.Normal(0, 2).log_prob(beta["w"]).sum(),
    log_likelihood=lambda beta, z, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
    globals={"w": bbvi.real(2)},
)
posterior = bbvi.fit(model, data, batch_size=100)
print(posterior.summary())

# %% [markdown]
# Locals are declared beside the globals, with `log_local` as their prior: [patients in batches](../gallery/liver.md) is a whole example, with groups of different lengths.
#
# - The functions see one group: `row` is its line of the data. Do not multiply by N / B; bbvi does.
# - Steps on few groups are noisy. The stopping rule knows, and so a fit takes more steps, each cheaper.
# - For new groups with the globals as they are: `bbvi.fit(model, new, hold=posterior)`.
# - Data that do not fit into memory: [streams](../data.md#larger-than-memory). From NumPyro: `from_numpyro(fn, x, y, groups="N", rows=["x", "y"])`.
