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
# `converged` is true only if the fit ended because a rule found that it had converged, not because its budget of steps was
# used up.

# %%
print(posterior.converged)

# %% [markdown]
# The ELBO is a lower bound on the log evidence; higher is better. Here it is estimated from 1000 draws.

# %%
print(posterior.elbo(1000))

# %% [markdown]
# The k-hat of the first line is the Pareto shape of the importance weights p / q (Yao et al. 2018), with its standard
# error. Above 0.7, q is too far from the posterior for importance sampling to repair it.

# %%
print(posterior.khat())

# %%
posterior.plot()

# %% [markdown]
# ## The structure of q
#
# bbvi read off the function that `mu`, `tau` and `theta` share terms, and gave them one factor of q, a joint Normal in which the
# scales of `theta` depend on `mu` and `tau`. With `joint=()` every number has a factor of its own, which is the paper's mean field:
# it cannot follow how `tau` and `theta` depend on each other, and k-hat and the ELBO show it.

# %%
print(posterior.structure)
apart = bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
mean_field = bbvi.fit(apart, data=(y, sigma))
print(mean_field.summary().head(2))
print(mean_field.elbo(1000), posterior.elbo(1000))

# %% [markdown]
# ## Rao-Blackwellization
#
# bbvi undid the sums in `log_joint` and found which of its terms read `theta[3]`. The gradient for `theta[3]` leaves
# out all other terms. Below is the variance of the gradient at the fitted mean field, with 100 draws each, of the paper's three
# estimators, of bbvi's `Score()`, whose control variate adds no bias, and of the default, which follows the derivative
# of log p where there is one.

# %%
estimators = {
    "Eq. 3": bbvi.Score(rao_blackwell=False, control_variate=None),
    "Eq. 6, Rao-Blackwellized": bbvi.Score(rao_blackwell=True, control_variate=None),
    "Eq. 10, and a control variate": bbvi.Score(rao_blackwell=True, control_variate=bbvi.PlugIn()),
    "cross-fitted": bbvi.Score(),
    "default, chosen for each latent": bbvi.Auto(),
}
for name, gradient in estimators.items():
    moments = bbvi.gradient_moments(
        apart, (y, sigma), mean_field, gradient=gradient, draws=bbvi.MonteCarlo(100), repeats=200
    )
    print(f"{name:33s} variance of the gradient of theta's locations: {moments.variance['theta']['loc'].mean():.2g}")

# %% [markdown]
# ## Another q
#
# By itself, a positive latent such as `tau` has a gamma distribution by default. Choose another with `q=`, and compare the two by
# their ELBOs.

# %%
lognormal = bbvi.Model(log_joint, joint=(), mu=bbvi.real(), tau=bbvi.positive(q=dist.LogNormal), theta=bbvi.real(8))
print(bbvi.fit(lognormal, data=(y, sigma)).elbo(1000))
