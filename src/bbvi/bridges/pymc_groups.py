"""Eq. 12 from a PyMC model: the elements of one of its dimensions are the groups, the variables along it are local."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.model.latents import Latent
from bbvi.model.model import HierarchicalModel, Values
from bbvi.model.origin import Draws, Origin
from bbvi.numerics.xla import for_one_run

_MOST_CHECKED = 1000
_HOW = (
    "name the dimension in the dims= of all variables, potentials and data that have an entry for each group, wrap data by pm.Data, and "
    "let no entry read those of other groups"
)
Function = Callable[[Sequence[Any]], dict[str, Any]]


class Grouped:
    """A model cut along a dimension: `data` are its groups, and `model` has the log densities of one.

    `latents` are those of the whole by name, with the axis of the groups; `of_group` makes those of one group.
    """

    def __init__(
        self, own: Any, dim: str, values: Sequence[Any], terms: Mapping[str, Any], to_jax: Callable[..., Function]
    ):
        if dim not in own.dim_lengths:
            raise ValueError(
                f"from_pymc: groups={dim!r}, but the dimensions of the model are {sorted(own.dim_lengths)}"
            )
        dims = {name: list(named) for name, named in own.named_vars_to_dims.items()}
        along = {name: named.index(dim) for name, named in dims.items() if dim in named}
        owners = {v.name: own.values_to_rvs[v].name for v in values}
        rows = {x.name: x for x in own.data_vars} | {rv.name: own.rvs_to_values[rv] for rv in own.observed_RVs}
        rows = {name: x for name, x in rows.items() if name in along}
        self._dim, self._size = dim, int(own.dim_lengths[dim].eval())
        #: by name, the axis of the groups in a latent or in data, and in a term
        self.axes = {name: along[owner] for name, owner in owners.items() if owner in along} | {
            n: along[n] for n in rows
        }
        self._inside = {name: along[name] for name in terms if name in along}
        self._local = [name for name in self._inside if name in owners.values()]
        self._names = [*(v.name for v in values), *rows]
        held = {name: np.asarray(x.get_value() if hasattr(x, "get_value") else x.eval()) for name, x in rows.items()}
        self.data = {name: np.moveaxis(x, self.axes[name], 0) for name, x in held.items()}
        variables = dict(zip(self._names, [*values, *rows.values()], strict=True))
        with self._by_itself():
            self._of_group = to_jax(*_for_length_one(own, dim, variables, self.axes, terms))
        self._of_all = to_jax(values, terms)

    def model(self, latents: Mapping[str, Latent], of_group: Callable[[str, int], Latent]) -> HierarchicalModel:
        """Make the model of one group, checked against the whole; `latents` are of all groups, `of_group(name, axis)` of one."""
        for seed in range(2):
            self._refuse_other_densities(latents, np.random.default_rng(seed))
        some = {
            name: jnp.asarray(latent.some_values({}, 1, np.random.default_rng(0))[0])
            for name, latent in latents.items()
        }
        start = {name: jnp.take(some[name], 0, self.axes[name]) for name in latents if name in self.axes}
        first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self.data)
        inside, local = set(self._inside), set(self._local)

        def log_prior(beta: Values) -> Any:
            return _only(self._terms(beta, start, first), lambda name: name not in inside)

        def log_local(beta: Values, z: Values, row: Any) -> Any:
            return _only(self._terms(beta, z, row), lambda name: name in local)

        def log_likelihood(beta: Values, z: Values, row: Any) -> Any:
            return _only(self._terms(beta, z, row), lambda name: name in inside - local)

        own = {name: of_group(name, self.axes[name]) for name in start}
        return HierarchicalModel(
            log_prior=log_prior, log_likelihood=log_likelihood, log_local=log_local if own else None,
            globals={name: latent for name, latent in latents.items() if name not in own}, locals=own,
        )  # fmt: skip

    def origin(self, origin: Origin) -> Origin:
        """Put the groups, which stand first in draws, where the model has them."""

        def arranged(fn: Callable[..., Any] | None) -> Callable[..., Any] | None:
            return fn and (lambda draws: fn(self._arranged(draws)))

        found = arranged(origin.sites)
        assert found is not None
        return dataclasses.replace(origin, sites=found, log_likelihood=arranged(origin.log_likelihood))

    @contextlib.contextmanager
    def _by_itself(self) -> Iterator[None]:
        """Say what to do where shapes of one group do not fit those of the whole."""
        try:
            yield
        except (TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"from_pymc: no group can be looked at by itself along {self._dim!r}: {_HOW}. {error}"
            ) from error

    def _arranged(self, draws: Draws) -> dict[str, Any]:
        return {n: jnp.moveaxis(x, 1, 1 + self.axes[n]) if n in self.axes else x for n, x in draws.items()}

    def _terms(self, beta: Values, z: Values, row: Any) -> dict[str, Any]:
        given = {**beta, **{n: jnp.expand_dims(jnp.asarray(x), self.axes[n]) for n, x in {**z, **row}.items()}}
        found = self._of_group([given[name] for name in self._names])
        return {name: jnp.asarray(term, float) for name, term in found.items()}

    def _refuse_other_densities(self, latents: Mapping[str, Latent], generator: np.random.Generator) -> None:
        """Raise if a term is another where one group is looked at than in the whole."""
        at = {name: jnp.asarray(latent.some_values({}, 1, generator)[0]) for name, latent in latents.items()}
        whole = self._of_all([at[name] for name in latents])
        checked = np.linspace(0, self._size - 1, min(self._size, _MOST_CHECKED)).astype(int)
        local = {name: jnp.moveaxis(x, self.axes[name], 0)[checked] for name, x in at.items() if name in self.axes}
        beta = {name: x for name, x in at.items() if name not in self.axes}
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[checked]), self.data)
        with self._by_itself():
            one = jax.jit(jax.vmap(lambda z, row: self._terms(beta, z, row)), **for_one_run())(local, rows)
        for name, term in one.items():
            wanted, got = np.asarray(whole[name], float), np.asarray(term)
            if name in self._inside:
                splits = self._inside[name] < wanted.ndim and wanted.shape[self._inside[name]] == self._size
                wanted = np.moveaxis(wanted, self._inside[name], 0)[checked] if splits else wanted[None]
            else:
                splits, wanted = True, np.broadcast_to(wanted, (len(checked), *wanted.shape))
            if not splits or got.size != wanted.size or not np.allclose(got.reshape(wanted.shape), wanted, 1e-3, 1e-3):
                raise ValueError(f"from_pymc: the density of {name!r} does not split along {self._dim!r}: {_HOW}")


def _only(terms: Mapping[str, Any], chosen: Callable[[str], bool]) -> Any:
    return {name: term for name, term in terms.items() if chosen(name)} or jnp.zeros(())


def _for_length_one(
    own: Any, dim: str, variables: Mapping[str, Any], axes: Mapping[str, int], terms: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return inputs and terms of a graph in which the dimension may have the length one."""
    from pytensor.graph.replace import clone_replace
    from pytensor.tensor import constant, tensor

    inputs = {}
    for name, x in variables.items():
        shape = [None if k == axes.get(name) else size for k, size in enumerate(x.type.shape)]
        inputs[name] = tensor(name, dtype=x.dtype, shape=shape) if name in axes else x
    replaced = [(x, inputs[name]) for name, x in variables.items() if name in axes]
    length = own.dim_lengths[dim]
    replaced.append((length, constant(np.asarray(1, length.dtype))))
    return list(inputs.values()), dict(
        zip(terms, clone_replace(list(terms.values()), replaced, rebuild_strict=False), strict=True)
    )
