# %% [markdown]
# # A paradox, by departments
#
# Applications to six departments of Berkeley in 1973, by sex (Bickel, Hammel and O'Connell 1975). Over all departments men were admitted more often. With a level
# for each department, and an effect of sex that may differ between departments:

# %%
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

departments = list("ABCDEF")
men, women = np.array([512, 353, 120, 138, 53, 22]), np.array([89, 17, 202, 131, 94, 24])
of_men, of_women = np.array([825, 560, 325, 417, 191, 373]), np.array([108, 25, 593, 375, 393, 341])
print(f"admitted: {men.sum() / of_men.sum():.0%} of men, {women.sum() / of_women.sum():.0%} of women")


def log_joint(z, data):
    men, of_men, women, of_women = data
    level, effect = z["level"], z["effect"]
    return (
        dist.Normal(0, 1.5).log_prob(level).sum()
        + dist.Normal(0, 1).log_prob(z["mean"])
        + dist.HalfNormal(0.5).log_prob(z["spread"])
        + dist.Normal(z["mean"], z["spread"]).log_prob(effect).sum()
        + dist.Binomial(of_men, logits=level).log_prob(men).sum()
        + dist.Binomial(of_women, logits=level + effect).log_prob(women).sum()
    )


model = bbvi.Model(
    log_joint,
    level=bbvi.real("department", coords={"department": departments}),
    effect=bbvi.real("department", coords={"department": departments}),
    mean=bbvi.real(), spread=bbvi.positive(),
)  # fmt: skip
posterior = bbvi.fit(model, data=(men, of_men, women, of_women))
print(posterior.summary())

# %% [markdown]
# `coords=` gave the axes names, which tables and ArviZ's plots use. Women applied to departments that admit few; within these there is little difference, but in A.

# %%
low, high, mean = (
    np.asarray(x["effect"]) for x in (posterior.quantile(0.05), posterior.quantile(0.95), posterior.mean())
)
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), width_ratios=[3, 2])
left.vlines(departments, low, high, lw=4, alpha=0.5)
left.plot(departments, mean, "o")
left.axhline(0, color="0.7", lw=0.8)
left.set(ylabel="log odds, women - men", xlabel="department")
admitted, share = men / of_men, of_women / (of_men + of_women)
right.plot(admitted, share, "o")
for name, *where in zip(departments, admitted, share, strict=True):
    right.annotate(name, where, xytext=(4, 4), textcoords="offset points")
right.set(xlabel="admitted of men", ylabel="share of women")
figure.tight_layout()
