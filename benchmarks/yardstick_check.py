"""Is the yardstick right? Its draws against the Gamma law, its gradient against one taken by another road."""

import cohort
import jax
import jax.numpy as jnp
import numpy as np
import yardstick
from jax.scipy.stats import gamma, norm
from scipy.stats import gamma as gamma_law
from scipy.stats import kstest


def pathwise(params, patients, *, draws, repeats, seed=0):
    """The same gradient by another road: jax.random's draws, densities of jax.scipy, and differentiation through both."""
    shape, data = yardstick.prepare(patients, len(patients.labs), draws)
    present = (jnp.arange(shape.visits) < data["length"][:, None])[:, :, None]

    def gap(params, key):
        keys = jax.random.split(key, 3)
        (w, log_sw), (o, log_so), (log_a, log_mean) = (params[name] for name in "Wox")
        z_w = w + jnp.exp(log_sw) * jax.random.normal(keys[0], w.shape)
        z_o = o + jnp.exp(log_so) * jax.random.normal(keys[1], o.shape)
        a, scale = jnp.exp(log_a), jnp.exp(log_mean - log_a)
        z_x = jax.random.gamma(keys[2], a) * scale
        mean = jnp.maximum(jnp.concatenate([jnp.ones_like(z_x[:, :1]), z_x[:, :-1]], 1), cohort.FLOOR)
        ratio = cohort.VARIANCE_X / mean
        x_terms = gamma.logpdf(z_x, mean / ratio, scale=ratio) - gamma.logpdf(z_x, a, scale=scale)
        located = jnp.einsum("pvk,lk->pvl", z_x, z_w) + z_o[:, None]
        l_terms = jnp.where(data["observed"] != 0, norm.logpdf(data["labs"], located, cohort.SIGMA_L), 0)
        w_terms = norm.logpdf(z_w) - norm.logpdf(z_w, w, jnp.exp(log_sw))
        o_terms = norm.logpdf(z_o) - norm.logpdf(z_o, o, jnp.exp(log_so))
        return jnp.where(present, x_terms, 0).sum() + l_terms.sum() + w_terms.sum() + o_terms.sum()

    slope = jax.jit(lambda key: jax.vmap(jax.grad(gap), (None, 0))(params, jax.random.split(key, draws)))
    batches = [
        jax.tree.map(lambda g: np.asarray(g, np.float64).mean(0), slope(k))
        for k in jax.random.split(jax.random.key(seed), repeats)
    ]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    return jax.tree.map(lambda g: g.mean(0), stacked), jax.tree.map(lambda g: g.var(0, ddof=1), stacked)


def law_of_draws(a, draws=200_000):
    """Kolmogorov-Smirnov p-value of Gamma(a, 1) draws, and how many of them are equal to their neighbour."""
    shape = yardstick.Shape(1, 1, draws, yardstick.TILE)
    full = jnp.full((yardstick.TILE, yardstick.FACTORS), jnp.log(a))
    rows = jnp.arange(full.size, dtype=jnp.uint32).reshape(full.shape)
    coefficients = yardstick.gamma_coefficients((full, full))  # of mean a, thus of rate 1
    key, go = jnp.array([5, 6], jnp.uint32), jnp.array(True)
    log_z = np.asarray(jax.jit(lambda go: yardstick.log_gammas(go, key, rows, jnp.uint32(0), coefficients, shape))(go))
    log_z = log_z.astype(np.float64)
    return kstest(np.exp(log_z.ravel()), gamma_law(a).cdf).pvalue, int(np.sum(np.diff(log_z) == 0))


def check(quick=False):
    """Print p-values of the draws, and the deviations of the gradient's mean in standard errors."""
    for a in (0.3, 1.0, 4.0, 30.0, 1000.0):
        p_value, equal = law_of_draws(a, draws=2000 if quick else 200_000)
        print(f"Gamma({a:g}): p-value {p_value:.3f}, {equal} draws equal to their neighbour")
    patients = cohort.simulate(3, longest=9)
    for draws, repeats in ((200, 20),) if quick else ((25, 4000), (200, 2000)):
        shape, _ = yardstick.prepare(patients, 3, draws)
        params = yardstick.start(patients, shape.visits)
        params["x"] = params["x"].at[0, :, ::3].add(-2.5)  # concentrations below 1 too
        mean, variance = yardstick.moments(params, patients, range(3), draws=draws, repeats=repeats)
        other, spread = pathwise(params, patients, draws=draws, repeats=repeats)
        for name in "Wox":
            error = np.sqrt((variance[name] + spread[name]) / repeats)
            z = ((mean[name] - other[name])[error > 0] / error[error > 0]).ravel()
            size = np.sqrt(np.mean(z * z))
            print(f"{draws} draws, {name}: rms {size:.2f}, at most {np.abs(z).max():.2f} standard errors of {len(z)}")
