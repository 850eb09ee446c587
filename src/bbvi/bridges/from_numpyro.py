"""Section 2, Eq. 12: the log joint of a NumPyro function, flat or with the elements of one of its plates as groups."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from bbvi.bridges.numpyro_function import Found, Function, find, traced
from bbvi.bridges.numpyro_groups import Grouped
from bbvi.model.latents import Latent
from bbvi.model.model import AnyModel, Model
from bbvi.model.origin import Draws, Origin

_NOT_TRACED = (TypeError, ValueError, AttributeError, IndexError, KeyError, AssertionError)


def from_numpyro(
    fn: Callable[..., Any], *args: Any, groups: str | None = None, rows: Sequence[str] = (), **kwargs: Any
) -> tuple[AnyModel, Any]:
    """Bring a NumPyro function: return its model and the data to fit it to.

    `fn` is called with the other arguments as NumPyro's samplers would call it. Its latents keep their names and shapes, and the
    log density of each statement is a term. `groups="N"` makes the elements of the plate "N" the groups of a
    `bbvi.HierarchicalModel`, to be fitted in batches; `rows` names the arguments that have a row for each of them.

    Examples:
        >>> import bbvi, numpy as np, numpyro, numpyro.distributions as dist
        >>> def schools(sigma, y=None):
        ...     mu = numpyro.sample("mu", dist.Normal(0, 5))
        ...     tau = numpyro.sample("tau", dist.HalfCauchy(5))
        ...     with numpyro.plate("school", len(sigma)):
        ...         theta = numpyro.sample("theta", dist.Normal(mu, tau))
        ...         numpyro.sample("y", dist.Normal(theta, sigma), obs=y)
        >>> model, data = bbvi.from_numpyro(schools, np.array([15.0, 10.0, 16.0]), y=np.array([28.0, 8.0, -3.0]))
        >>> model
        Model(mu: real() ~ Normal, tau: positive() ~ Gamma, theta: real(3,) ~ Normal)
        >>> posterior = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
        >>> {name: x.shape for name, x in posterior.to_numpyro(100).items()}
        {'mu': (100,), 'tau': (100,), 'theta': (100, 3)}
    """
    if isinstance(rows, str):
        raise TypeError(f"from_numpyro: rows= takes a list of names, such as [{rows!r}]")
    if rows and groups is None:
        raise ValueError(f"from_numpyro: rows={rows!r} are cut along the plate that groups= names")
    function = Function(fn, args, kwargs)
    found = find(function, groups)
    if not found.sites:
        raise ValueError("from_numpyro: the function has no latents: every statement has data")
    if groups is None:
        model, data = _flat(function, found)
    else:
        grouped = Grouped(function, found, groups, rows)
        model, data = grouped.model(), grouped.data
    model.origin = _origin(function, found)
    return model, data


def _flat(function: Function, found: Found) -> tuple[AnyModel, Any]:
    """Make a flat model; arrays among the arguments are its data, unless the function asks for their values."""

    def log_joint(z: Mapping[str, Any], data: Any) -> dict[str, Any]:
        return found.replay(function, z, given=data).terms

    arrays = {name: value for name, value in function.arguments.items() if _are_data(value)}
    shapes = {name: _shape(latent) for name, latent in found.latents.items()}
    latents: dict[str, Any] = dict(found.latents)
    model = Model(log_joint, **latents)
    if arrays:
        try:
            jax.eval_shape(log_joint, shapes, jax.tree.map(jnp.asarray, arrays))
            return model, arrays
        except _NOT_TRACED:
            pass  # it asks for the values of the data: they stay in the function
    with traced():
        jax.eval_shape(log_joint, shapes, {})
    return model, None


def _are_data(value: Any) -> bool:
    """Tell whether an argument is of arrays of numbers, none of them NaN, which may mark what was not measured."""
    leaves = jax.tree.leaves(value)
    return (
        bool(leaves)
        and all(eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves)
        and all(np.asarray(leaf).dtype.kind in "biuf" and np.size(leaf) and not np.isnan(leaf).any() for leaf in leaves)
    )


def _shape(latent: Latent) -> jax.ShapeDtypeStruct:
    kind = jnp.result_type(int if latent.family.chart.is_discrete else float)
    return jax.ShapeDtypeStruct((*latent.padded({}), *latent.event), kind)


def _origin(function: Function, found: Found) -> Origin:
    """Give draws back as values of the function's statements, and what follows from these."""

    def values(z: Draws) -> dict[str, Any]:
        whole = {name: jnp.moveaxis(x, 0, found.axes[name]) if name in found.axes else x for name, x in z.items()}
        statements = found.replay(function, whole).statements
        return {name: statements[name].value for name in found.sites}

    def drawn(values: Draws, key: Any) -> dict[str, Any]:
        statements, made = function.at({**values, **found.idle}).statements, {}
        for number, name in enumerate(found.observed):
            fn, shape = statements[name].fn, np.shape(statements[name].value)
            batch = np.broadcast_shapes(fn.batch_shape, shape[: len(shape) - fn.event_dim])
            made[name] = fn.expand(batch).sample(jax.random.fold_in(key, number))
        return made

    def densities(values: Draws) -> dict[str, Any]:
        statements = function.at({**values, **found.idle}).statements
        return {name: statements[name].fn.log_prob(statements[name].value) for name in found.observed}

    def predict(sites: Draws, key: Any) -> dict[str, Any]:
        keys = jax.random.split(key, len(next(iter(sites.values()))))
        return jax.jit(jax.vmap(drawn))(dict(sites), keys)

    return Origin(
        "numpyro", sites=lambda draws: jax.jit(jax.vmap(values))(dict(draws)), predict=predict,
        log_likelihood=lambda draws: jax.jit(jax.vmap(lambda z: densities(values(z))))(dict(draws)),
        observed={name: np.asarray(found.statements[name].value) for name in found.observed},
    )  # fmt: skip
