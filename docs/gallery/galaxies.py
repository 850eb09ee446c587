# %% [markdown]
# # A mixture with its assignments
#
# Velocities of 82 galaxies of the Corona Borealis region, in 1,000 km/s (Roeder 1990). Which of four clusters a galaxy belongs to is a latent that is
# written down as such: bbvi gives it probabilities, and sums its values exactly in the gradient.

# %%
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro.distributions as dist

import bbvi

velocity = (
    np.array(
        """9172 9350 9483 9558 9775 10227 10406 16084 16170 18419 18552 18600 18927 19052 19070 19330 19343 19349 19440 19473
        19529 19541 19547 19663 19846 19856 19863 19914 19918 19973 19989 20166 20175 20179 20196 20215 20221 20415 20629 20795
        20821 20846 20875 20986 21137 21492 21701 21814 21921 21960 22185 22209 22242 22249 22314 22374 22495 22746 22747 22888
        22914 23206 23241 23263 23484 23538 23542 23666 23706 23711 24129 24285 24289 24366 24717 24990 25633 26960 26995 32065
        32789 34279""".split(),
        float,
    )
    / 1000
)
K = 4


def log_joint(z, y):
    return (
        dist.Dirichlet(jnp.ones(K)).log_prob(z["weight"])
        + dist.Normal(20, 8).log_prob(z["centre"]).sum()
        + dist.LogNormal(0, 1).log_prob(z["width"]).sum()
        + dist.Categorical(z["weight"]).log_prob(z["cluster"]).sum()
        + dist.Normal(z["centre"][z["cluster"]], z["width"][z["cluster"]]).log_prob(y).sum()
    )


model = bbvi.Model(
    log_joint, weight=bbvi.simplex(K), centre=bbvi.ordered(K), width=bbvi.positive(K), cluster=bbvi.categorical(K, 82)
)
posterior = bbvi.fit(model, data=velocity)
print(posterior.converged, posterior.khat())
posterior.summary().head(12)[["mean", "sd", "5%", "95%"]]

# %% [markdown]
# Such posteriors have many optima. The fit starts several times, and the best goes on: these are the ELBOs of the starts ([Many optima](../optima.md)).

# %%
print(np.round([float(start) for start in posterior.restarts], 1))

# %%
draws = posterior.sample(400)
grid = np.linspace(5, 40, 300)
each = draws["weight"][:, None] * jnp.exp(
    dist.Normal(draws["centre"][:, None], draws["width"][:, None]).log_prob(grid[:, None])
)
density = each.sum(-1)

figure, (top, bottom) = plt.subplots(
    2, figsize=(7, 4.4), sharex=True, height_ratios=[3, 1], gridspec_kw={"hspace": 0.08}
)
top.fill_between(grid, *np.quantile(density, [0.05, 0.95], axis=0), alpha=0.3, lw=0)
top.plot(grid, density.mean(0))
top.plot(velocity, np.zeros(82), "|", color="k", alpha=0.5)
top.set(ylabel="density")
for k in range(K):
    bottom.plot(velocity, posterior.probs()["cluster"][:, k], ".-", ms=3, lw=0.8)
bottom.set(xlabel="velocity, 1,000 km/s", ylabel="P(cluster)")
