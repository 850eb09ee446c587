# %% [markdown]
# # Patients in batches
#
# Bilirubin of 312 patients with a disease of the liver, at 1 to 16 visits each (the Mayo Clinic's trial, 1974 to 1984; the table comes with bbvi). Each patient has a level and a
# slope; a step looks at 50 patients. `bbvi.ragged` makes groups of a DataFrame in long form.

# %%
from importlib.resources import files

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist
import pandas as pd

import bbvi

table = pd.read_csv(files("bbvi.study") / "data" / "pbcseq_labs.csv", usecols=["id", "day", "bili"])
table["day"] /= 365
cohort = bbvi.ragged(table, by="id", order="day", group=[])
print(cohort)


def log_likelihood(beta, z, row):
    mean = z["level"] + z["slope"] * row["day"]
    return jnp.where(
        row["mask"]["day"],
        dist.StudentT(4, mean, beta["noise"]).log_prob(jnp.log(jnp.where(row["mask"]["day"], row["bili"], 1))),
        0,
    )


model = bbvi.HierarchicalModel(
    log_prior=lambda beta: (
        dist.Normal(0, 2).log_prob(beta["mean"]).sum()
        + dist.HalfNormal(1).log_prob(beta["spread"]).sum()
        + dist.HalfNormal(1).log_prob(beta["noise"])
    ),
    log_local=lambda beta, z, row: (
        dist.Normal(beta["mean"][0], beta["spread"][0]).log_prob(z["level"])
        + dist.Normal(beta["mean"][1], beta["spread"][1]).log_prob(z["slope"])
    ),
    log_likelihood=log_likelihood,
    globals={"mean": bbvi.real(2), "spread": bbvi.positive(2), "noise": bbvi.positive()},
    locals={"level": bbvi.real(), "slope": bbvi.real()},
)
posterior = bbvi.fit(model, cohort, batch_size=50, stop=bbvi.Budget(steps=1500))
print(posterior.outcome.value, posterior.khat())
posterior.summary().head(5)

# %% [markdown]
# A budget ends this fit, and its verdict says so. Four patients with eight visits or more, and their lines:

# %%
visits = table.groupby("id")
chosen = [number for number, (_, own) in enumerate(visits) if len(own) >= 8][:4]
draws = posterior.sample(500)

figure, axes = plt.subplots(1, 4, figsize=(9, 2.8), sharey=True)
for patient, own_axes in zip(chosen, axes, strict=True):
    own = visits.get_group(patient + 1)
    when = np.linspace(0, own["day"].max(), 30)
    lines = np.exp(draws["level"][:, patient, None] + draws["slope"][:, patient, None] * when)
    own_axes.fill_between(when, *np.quantile(lines, [0.05, 0.95], axis=0), alpha=0.3, lw=0)
    own_axes.plot(own["day"], own["bili"], "o", color="k", ms=3)
    own_axes.set(xlabel="years", title=f"patient {patient + 1}", yscale="log")
axes[0].set(ylabel="bilirubin, mg/dl")
