"""Eq. 12 in q: what q of locals takes from draws of the globals, and what their slopes give back to these."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bbvi.draws.layout import Layout
from bbvi.draws.rows import Arrays, zero_padding
from bbvi.families import AbstractFamily, Conditional, Framed, Params
from bbvi.families.abstract import Lambda
from bbvi.model.problem import Problem

#: what locals depend on at each sample; None where q has no such dependence
Features = Float[Array, "features samples"] | None


def features_at(problem: Problem, params: Lambda, beta: Arrays) -> Features:
    """Return the features at values of the globals, samples last, where `params` are the globals' lambda."""
    if problem.leading is None:
        return None
    family, own = _framed(problem.globals[problem.leading].family), params[problem.leading]
    see = lambda z: family.features(own, family.chart.coordinates(z))  # noqa: E731
    return jax.vmap(see, in_axes=-1, out_axes=-1)(beta[problem.leading])


def informed(problem: Problem, params: Lambda, share: float = 1.0) -> dict[str, AbstractFamily]:
    """Return the family of each factor of q; those of locals know the moments of the features at the globals' lambda `params`.

    With batches of a `share` of the groups, regressions on the globals make that share of natural steps: the noise of all
    groups' regressions makes q of the globals too narrow, and so it is no more than that of as many groups as a batch has.
    """
    families = {name: latent.family for name, latent in problem.latents.items()}
    if problem.leading is None:
        return families
    moments = _framed(families[problem.leading]).moments(params[problem.leading])
    return {n: own.informed(moments, share) if isinstance(own, Conditional) else own for n, own in families.items()}


def features_of(layout: Layout, u: Arrays) -> Features:
    """Return the features at draws of the tables."""
    if layout.problem.leading is None:
        return None
    name, at, family, params = _leading(layout)
    return jax.vmap(functools.partial(family.features, params), in_axes=-1, out_axes=-1)(u[name][at])


def tilted(layout: Layout, u: Arrays, features: Features) -> Arrays:
    """Move draws of the tables that depend on the globals to where these put them."""
    found = dict(u)
    if features is None:
        return found
    for name, family, params, _ in _following(layout):
        found[name] = family.moved(params, family.shifts(params, features), u[name])
    return found


def pulled_back(layout: Layout, u: Arrays, features: Features, slopes: Arrays) -> Arrays:
    """Add to the slopes in the leading globals what they move in the locals along with them.

    These are slopes of log p - log q in coordinates at fixed noise: of log q(z_i | beta) only volumes move, the chart's and the scales'.
    """
    following = _following(layout)
    if features is None or not layout.tables[_leading(layout)[0]].is_fitted:
        return slopes
    name, at, family, params = _leading(layout)
    total = jnp.zeros(())
    for own, local, lambda_z, real in following:
        volume = jax.grad(lambda c, chart=local.chart: jnp.sum(chart.log_slope(c)))
        slope = slopes[own] + jax.vmap(jax.vmap(volume, in_axes=-1, out_axes=-1))(u[own])
        around = u[own] - lambda_z["loc"][..., None] - local.shifts(lambda_z, features)["loc"]
        by = {"tilt": slope, "swell": slope * around + 1}
        moved = [jnp.einsum("rij,ris->js", lambda_z[p], zero_padding(real, leaf)) for p, leaf in by.items()]
        total = total + layout.of_all(own, moved[0] + moved[1])
    back = jax.vmap(functools.partial(family.pulled_back, params), in_axes=-1, out_axes=-1)(layout.scale * total)
    return slopes | {name: slopes[name].at[at].add(back)}


def _following(layout: Layout) -> list[tuple[str, Conditional, Params, Array | None]]:
    """List the tables that depend on the globals: their family, their lambda, and which rows are not padding."""
    found = []
    for name, table in layout.locals.items():
        if isinstance(family := table.drawer.latent.family, Conditional):
            found.append((name, family, table.rows.prepared.params, table.rows.real))
    return found


def _leading(layout: Layout) -> tuple[str, int, Framed, Params]:
    """Return the table of the leading globals, their row in it, their family and their lambda."""
    leading = layout.problem.leading
    assert leading is not None
    name, table = next((name, own) for name, own in layout.globals.items() if leading in own.columns.shapes)
    names = list(table.columns.shapes)
    at = sum(table.columns.sizes[: names.index(leading)])
    family = _framed(table.drawer.latent.family)
    return name, at, family, {p: leaf[at] for p, leaf in table.rows.prepared.params.items()}


def _framed(family: AbstractFamily) -> Framed:
    assert isinstance(family, Framed)
    return family
