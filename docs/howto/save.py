# %% [markdown]
# # Save and resume
#
# A posterior goes to a file of plain arrays, without your functions: give the model again when you load it.

# %%
import tempfile
from pathlib import Path

import numpy as np
import numpyro.distributions as dist

import bbvi

y = np.array([0.3, 1.2, 0.8])


def log_joint(z, y):
    return dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()


model = bbvi.Model(log_joint, mu=bbvi.real())
folder = Path(tempfile.mkdtemp())
posterior = bbvi.fit(model, y)
posterior.save(folder / "posterior.npz")
again = bbvi.load(folder / "posterior.npz", model, data=y)
print(again.mean(), again.elbo(1000))

# %% [markdown]
# A long fit writes checkpoints. The same call after a crash, or after Ctrl-C, goes on from the last one, and ends at the same bits as a run that was
# never interrupted.

# %%
options = {"checkpoint": folder / "run.npz", "checkpoint_seconds": 30, "stop": bbvi.Budget(steps=200)}
first = bbvi.fit(model, y, **options)
second = bbvi.fit(model, y, **options)  # finds the checkpoint of the end
print(np.array_equal(first.mean()["mu"], second.mean()["mu"]))

# %% [markdown]
# To go on from a posterior with other settings, or other data: `bbvi.fit(model, data, start=posterior)`. To see it happen, take the steps yourself:

# %%
for reached in bbvi.iterate(model, y, stop=bbvi.Budget(steps=50)):
    print(len(reached.history), "steps", float(reached.mean()["mu"]))
