# %% [markdown]
# # Quickstart
#
# This page is a script that was run when the documentation was built: every output below is real.
#
# Eight schools measured the effect of a coaching programme. `y` are the estimated effects, `sigma` their
# standard errors (Rubin 1981). How large is the effect in each school, and in schools like them?

# %%
import jax.numpy as jnp
import numpyro.distributions as dist

import bbvi

y = jnp.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
sigma = jnp.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

# %% [markdown]
# ## Write the log joint
#
# A model is a plain function: one sample of the latents and the data in, one number out. Densities may come
# from anywhere; here they come from numpyro.


# %%
def log_joint(z, data):
    y, sigma = data
    return (
        dist.Normal(0, 5).log_prob(z["mu"])
        + dist.HalfCauchy(5).log_prob(z["tau"])
        + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
        + dist.Normal(z["theta"], sigma).log_prob(y).sum()
    )


model = bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))

# %% [markdown]
# ## Fit

# %%
posterior = bbvi.fit(model, data=(y, sigma))
print(posterior.summary())

# %% [markdown]
# ## Can it be trusted?
#
# `converged` is true only if a convergence rule ended the fit, rather than a budget.

# %%
print(posterior.converged)

# %% [markdown]
# The ELBO, estimated from 1000 draws; bigger is better.

# %%
print(posterior.elbo(1000))

# %% [markdown]
# The Pareto shape of the importance weights (Yao et al. 2018). Above 0.7, q is too far from the posterior for
# importance sampling to repair it. A mean-field q cannot follow how `tau` and `theta` depend on each other in
# this model, and this is the number that tells.

# %%
print(posterior.khat(100_000))

# %%
posterior.plot()

# %% [markdown]
# ## Rao-Blackwellization
#
# bbvi undid the sums in `log_joint` and found which of its factors read `theta[3]`; the gradient of `theta[3]` leaves
# out the rest. Here are the paper's estimators at the fitted q, with the same number of draws, the one whose control variate is
# free of bias, and the default, which follows the derivative of log p where it has one.

# %%
estimators = {
    "Eq. 3": bbvi.Score(rao_blackwell=False, control_variate=None),
    "Eq. 6, Rao-Blackwellized": bbvi.Score(rao_blackwell=True, control_variate=None),
    "Eq. 10, and a control variate": bbvi.Score(rao_blackwell=True, control_variate=bbvi.PlugIn()),
    "cross-fitted": bbvi.Score(),
    "default, for each latent its best": bbvi.Auto(),
}
for name, gradient in estimators.items():
    moments = bbvi.gradient_moments(
        model, (y, sigma), posterior, gradient=gradient, draws=bbvi.MonteCarlo(100), repeats=200
    )
    print(f"{name:33s} variance of the gradient of theta's locations: {moments.variance['theta']['loc'].mean():.2g}")

# %% [markdown]
# ## Another q
#
# `tau` is positive, so its default family is the gamma. Another is one argument away, and the ELBO compares
# them.

# %%
lognormal = bbvi.Model(log_joint, mu=bbvi.real(), tau=bbvi.positive(q=dist.LogNormal), theta=bbvi.real(8))
print(bbvi.fit(lognormal, data=(y, sigma)).elbo(1000))
