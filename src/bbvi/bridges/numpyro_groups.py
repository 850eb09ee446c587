"""Eq. 12 from a NumPyro function: the elements of one of its plates are the groups, what stands in it is local."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.read_sets import empty
from bbvi.blankets.reads import reads
from bbvi.bridges.numpyro_function import Found, Function, traced
from bbvi.bridges.numpyro_sites import Plate, jacobian_of
from bbvi.model.model import HierarchicalModel, Values
from bbvi.numerics.xla import for_one_run

_MOST_CHECKED = 1000


class Grouped:
    """A function cut along a plate: `data` are its groups, and `model()` has the log densities of one."""

    def __init__(self, function: Function, found: Found, plate: str, rows: Sequence[str]):
        if plate not in found.sizes:
            raise ValueError(
                f"from_numpyro: groups={plate!r}, but the function makes no plate of that name outside of its loops; it makes "
                f"{sorted(found.sizes)}"
            )
        self._function, self._found, self._plate, self._size = function, found, plate, found.sizes[plate]
        self.data: dict[str, Any] = {"group": np.arange(self._size)}
        if rows:
            self.data["rows"] = {name: self._rows(name) for name in rows}
        # held whole, on the device: they may be looked up by the number of a group
        self._whole = {n: jax.tree.map(_on_device, x) for n, x in function.arguments.items() if n not in rows}
        inside = {name: s for name, s in found.statements.items() if plate in s.plates}
        #: the terms of statements in the plate: of latents, and of data
        self._local = [t for name, s in inside.items() if s.is_latent for t in (name, jacobian_of(name))]
        self._likelihood = [name for name, s in inside.items() if not s.is_latent and name not in self._local]

    def _rows(self, name: str) -> Any:
        if name not in self._function.arguments:
            raise ValueError(
                f"from_numpyro: rows={name!r} is no argument of the call; these are {[*self._function.arguments]}"
            )
        rows = jax.tree.map(np.asarray, self._function.arguments[name])
        for leaf in jax.tree.leaves(rows):
            if leaf.shape[:1] != (self._size,):
                raise ValueError(
                    f"from_numpyro: rows={name!r} has the shape {leaf.shape}; its first axis must be that of the {self._size} "
                    f"elements of the plate {self._plate!r}"
                )
        return rows

    def model(self) -> HierarchicalModel:
        """Make the model of one group, checked against the whole function."""
        sites, latents = self._found.sites.values(), self._found.latents
        with traced():
            self._refuse_ties()
            self._refuse_other_densities()
        own = {site.latent: latents[site.latent] for site in sites if site.axis is not None}
        return HierarchicalModel(
            log_prior=self._log_prior, log_likelihood=self._log_likelihood, log_local=self._log_local if own else None,
            globals={name: latent for name, latent in latents.items() if name not in own}, locals=own,
        )  # fmt: skip

    def _log_prior(self, beta: Values) -> Any:
        return self._outside(self._terms(beta, *self._some_group()))

    def _log_local(self, beta: Values, z: Values, row: Any) -> Any:
        return {name: term for name, term in self._terms(beta, z, row).items() if name in self._local}

    def _log_likelihood(self, beta: Values, z: Values, row: Any) -> Any:
        found = self._terms(beta, z, row)
        return {name: term for name, term in found.items() if name in self._likelihood} or jnp.zeros(())

    def _outside(self, terms: Mapping[str, Any]) -> Any:
        inside = {*self._local, *self._likelihood}
        return {name: term for name, term in terms.items() if name not in inside} or jnp.zeros(())

    def _terms(self, beta: Values, z: Values, row: Any) -> dict[str, Any]:
        arranged = {**beta, **{name: jnp.expand_dims(value, self._found.axes[name]) for name, value in z.items()}}
        idle = {name: self._of_group(name, value, 0) for name, value in self._found.idle.items()}
        return self._found.replay(self._function, arranged, idle, **self._at(row)).terms

    def _at(self, row: Any) -> dict[str, Any]:
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], row.get("rows", {}))
        return {"given": self._whole | given, "plate": Plate(self._plate, jnp.asarray(row["group"])[None])}

    def _of_group(self, name: str, value: Any, group: Any) -> Any:
        """Take one group of a statement's value, if it is in the plate."""
        s = self._found.statements[name]
        if self._plate not in s.plates:
            return value
        axis = np.ndim(value) - s.fn.event_dim + s.plates[self._plate]
        return jax.lax.dynamic_slice_in_dim(jnp.asarray(value), group, 1, axis)

    def _start(self, *, local: bool) -> dict[str, Any]:
        """Arbitrary values of the latents."""
        found = self._found
        own = {n: s.of_value(found.statements[n].value, found.supports[n]) for n, s in found.sites.items()}
        return {s.latent: own[name] for name, s in found.sites.items() if (s.axis is not None) == local}

    def _some_group(self) -> tuple[Any, Any]:
        """Locals and the row of the first group, for what does not depend on them."""
        z = {name: jnp.take(value, 0, self._found.axes[name]) for name, value in self._start(local=True).items()}
        return z, jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self.data)

    def _refuse_ties(self) -> None:
        """Raise if a statement outside of the plate reads what stands in it."""

        def outside(inside: Any, beta: Any) -> dict[str, Any]:
            terms = self._outside(self._terms(beta, *inside))
            return terms if isinstance(terms, dict) else {}

        found = reads(outside, self._some_group(), self._start(local=False))
        for name, part in zip(sorted(found.shapes), found.outputs, strict=True):
            if not np.all(empty(part)):
                raise ValueError(
                    f"from_numpyro: {name!r} stands outside of the plate {self._plate!r} and reads what is in it, so that the groups "
                    "are not independent given the globals; leave groups= out"
                )

    def _refuse_other_densities(self) -> None:
        """Raise if a statement has another density where one group is looked at than in the whole."""
        found, checked = self._found, np.linspace(0, self._size - 1, min(self._size, _MOST_CHECKED)).astype(int)
        values = {name: jnp.asarray(found.statements[name].value) for name in found.supports}

        def in_group(row: Any) -> dict[str, Any]:
            own = {name: self._of_group(name, value, row["group"]) for name, value in values.items()}
            terms = self._function.at(own, **self._at(row)).terms
            return {name: term for name, term in terms.items() if name in found.terms}

        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[checked]), self.data)
        for name, term in jax.jit(jax.vmap(in_group), **for_one_run())(rows).items():
            whole, got = np.asarray(found.terms[name]), np.asarray(term)
            dims = found.statements[name].plates
            wanted = np.moveaxis(whole, dims[self._plate], 0)[checked] if self._plate in dims else whole[None]
            wanted = np.broadcast_to(wanted, (len(checked), *wanted.shape[1:]))
            if got.size != wanted.size or not np.allclose(
                got.reshape(wanted.shape), wanted, 1e-3, 1e-3, equal_nan=True
            ):
                raise ValueError(
                    f"from_numpyro: the density of {name!r} in one group is not what it is in the whole: name in rows= the "
                    f"arguments that have a row for each of the {self._size} elements of the plate {self._plate!r}, and look other "
                    "things up by the indices that the plate yields"
                )


def _on_device(leaf: Any) -> Any:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biuf" else leaf
