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
print(posterior.khat())

# %%
posterior.plot()

# %% [markdown]
# ## Return the terms, not their sum
#
# Returned unsummed, the terms show which of them read `theta[3]`, and its gradient leaves out the rest: the paper's
# Rao-Blackwellization. A number is one term that reads everything. The answer is the same; the noise is not.


# %%
def terms(z, data):
    y, sigma = data
    return {
        "mu": dist.Normal(0, 5).log_prob(z["mu"]),
        "tau": dist.HalfCauchy(5).log_prob(z["tau"]),
        "theta": dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]),
        "y": dist.Normal(z["theta"], sigma).log_prob(y),
    }


unsummed = bbvi.Model(terms, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8))
for name, each in {"summed": model, "unsummed": unsummed}.items():
    moments = bbvi.gradient_moments(each, (y, sigma), posterior, draws=bbvi.MonteCarlo(100), repeats=200)
    print(f"{name:9s} variance of the gradient of theta's locations: {moments.variance['theta']['loc'].mean():.2g}")

# %% [markdown]
# ## Another q
#
# `tau` is positive, so its default family is the gamma. Another is one argument away, and the ELBO compares
# them.

# %%
lognormal = bbvi.Model(terms, mu=bbvi.real(), tau=bbvi.positive(q=dist.LogNormal), theta=bbvi.real(8))
print(bbvi.fit(lognormal, data=(y, sigma)).elbo(1000))
