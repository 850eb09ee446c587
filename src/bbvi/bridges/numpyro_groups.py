"""Eq. 12 from a NumPyro function: the elements of one of its plates are the groups, what stands in it is local."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from bbvi.blankets.read_sets import empty
from bbvi.blankets.reads import reads
from bbvi.bridges.numpyro_function import Found, Function, traced
from bbvi.bridges.numpyro_sites import Plate
from bbvi.model.model import HierarchicalModel

_MOST_CHECKED = 64


class Grouped:
    """A function cut along a plate: what is global runs at any group, what is local at the rows of one."""

    def __init__(self, function: Function, found: Found, plate: str, rows: Sequence[str]):
        self._function, self._found, self._plate = function, found, plate
        if plate not in found.sizes:
            raise ValueError(
                f"from_numpyro: groups={plate!r}, but the function makes no plate of that name outside of its loops; it makes "
                f"{sorted(found.sizes)}"
            )
        self.size = found.sizes[plate]
        self.rows = {name: self._rows(name) for name in rows}
        self.data = {"group": np.arange(self.size), "rows": self.rows}
        if not rows:
            del self.data["rows"]
        #: the terms of statements in the plate, by whether these are latents
        of = {t: t.removesuffix(".jacobian") for n in found.statements for t in (n, f"{n}.jacobian")}
        inside = {t: found.statements[n] for t, n in of.items() if plate in found.statements[n].plates}
        self._local = [t for t, s in inside.items() if s.is_latent]
        self._likelihood = [t for t, s in inside.items() if not s.is_latent]

    def _rows(self, name: str) -> Any:
        if name not in self._function.arguments:
            raise ValueError(
                f"from_numpyro: rows={name!r} is no argument of the call; these are {[*self._function.arguments]}"
            )
        rows = jax.tree.map(np.asarray, self._function.arguments[name])
        for leaf in jax.tree.leaves(rows):
            if leaf.shape[:1] != (self.size,):
                raise ValueError(
                    f"from_numpyro: rows={name!r} has the shape {leaf.shape}; its first axis must be that of the {self.size} "
                    f"elements of the plate {self._plate!r}"
                )
        return rows

    def model(self) -> HierarchicalModel:
        """Make the model of one group, checked against the whole function."""
        latents = {True: {}, False: {}}  # type: dict[bool, dict[str, Any]]
        for site in self._found.sites.values():
            latents[site.axis is not None][site.latent] = self._found.latents[site.latent]
        with traced():
            self._refuse_ties()
            self._refuse_other_densities()
        return HierarchicalModel(
            log_prior=self._log_prior, log_likelihood=self._log_likelihood, globals=latents[False], locals=latents[True],
            log_local=self._log_local if latents[True] else None,
        )  # fmt: skip

    def _log_prior(self, beta: Mapping[str, Any]) -> Any:
        first = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self.data)
        return self._prior_terms(self._terms(beta, self._some_locals(), first))

    def _log_local(self, beta: Mapping[str, Any], z: Mapping[str, Any], row: Any) -> Any:
        terms = self._terms(beta, z, row)
        return {name: terms[name] for name in self._local if name in terms}

    def _log_likelihood(self, beta: Mapping[str, Any], z: Mapping[str, Any], row: Any) -> Any:
        terms = self._terms(beta, z, row)
        return {name: terms[name] for name in self._likelihood if name in terms} or jnp.zeros(())

    def _prior_terms(self, terms: Mapping[str, Any]) -> Any:
        return {n: term for n, term in terms.items() if n not in (*self._local, *self._likelihood)} or jnp.zeros(())

    def _terms(self, beta: Mapping[str, Any], z: Mapping[str, Any], row: Any) -> dict[str, Any]:
        arranged = {
            name: site.arranged(beta[site.latent] if site.axis is None else jnp.expand_dims(z[site.latent], site.axis))
            for name, site in self._found.sites.items()
        }
        return self._function.replay(self._found.sites, arranged, self._dropped(), **self._at(row)).terms

    def _at(self, row: Any) -> dict[str, Any]:
        given = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], dict(row.get("rows", {})))
        return {"given": given, "plate": Plate(self._plate, jnp.asarray(row["group"])[None])}

    def _dropped(self, group: Any = 0) -> dict[str, Any]:
        return {n: self._of_group(n, jnp.asarray(x), group) for n, x in self._found.dropped.items()}

    def _of_group(self, name: str, value: Any, group: Any) -> Any:
        """Take one group of a statement's value, if it is in the plate."""
        s = self._found.statements[name]
        if self._plate not in s.plates:
            return value
        return jax.lax.dynamic_slice_in_dim(value, group, 1, jnp.ndim(value) - s.fn.event_dim + s.plates[self._plate])

    def _some_locals(self) -> dict[str, Any]:
        """Locals of the first group, for what does not depend on them."""
        found = {}
        for name, site in self._found.sites.items():
            if site.axis is not None:
                s = self._found.statements[name]
                u = biject_to(s.fn.support).inv(s.value) if site.declared.transformed else s.value - site.declared.shift
                found[site.latent] = jnp.take(u, 0, site.axis)
        return found

    def _refuse_ties(self) -> None:
        """Raise if a statement outside of the plate reads what stands in it."""
        sites, statements = self._found.sites, self._found.statements
        beta = {s.latent: self._start(name) for name, s in sites.items() if s.axis is None}
        row = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), self.data)

        def outside(inside: Any, beta: Any) -> Any:
            return self._prior_terms(self._terms(beta, *inside))

        found = reads(outside, (self._some_locals(), row), beta)
        for name, part in zip(
            sorted(found.shapes) if isinstance(found.shapes, dict) else [], found.outputs, strict=False
        ):
            if not np.all(empty(part)):
                raise ValueError(
                    f"from_numpyro: {name!r} stands outside of the plate {self._plate!r} and reads what is in it, so that the groups "
                    "are not independent given the globals; leave groups= out"
                )
        assert statements

    def _start(self, name: str) -> Any:
        site, s = self._found.sites[name], self._found.statements[name]
        if site.kept is not None:
            return jnp.asarray(s.value).reshape(-1, *site.declared.event)[site.kept] - site.declared.shift
        return biject_to(s.fn.support).inv(s.value) if site.declared.transformed else s.value - site.declared.shift

    def _refuse_other_densities(self) -> None:
        """Raise if a statement in the plate has another density in one group than in the whole."""
        statements = self._found.statements
        values = {name: jnp.asarray(statements[name].value) for name in self._found.sites}
        checked = np.unique(np.linspace(0, self.size - 1, min(self.size, _MOST_CHECKED)).astype(int))

        def of(row: Any) -> dict[str, Any]:
            own = {name: self._of_group(name, value, row["group"]) for name, value in values.items()}
            return self._function.at(own, self._dropped(row["group"]), **self._at(row)).terms

        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[checked]), self.data)
        found = jax.jit(jax.vmap(of))(rows)
        for name in [*self._local, *self._likelihood]:
            if name in found and name in self._found.terms:
                whole = np.asarray(self._found.terms[name])
                axis = whole.ndim + statements[name].plates[self._plate]
                wanted = np.moveaxis(np.take(whole, checked, axis), axis, 0)
                got = np.asarray(found[name])
                if got.size != wanted.size or not np.allclose(
                    got.reshape(wanted.shape), wanted, 1e-3, 1e-3, equal_nan=True
                ):
                    raise ValueError(
                        f"from_numpyro: the density of {name!r} in one group is not what it is in the whole: name in rows= the "
                        f"arguments that have a row for each of the {self.size} elements of the plate {self._plate!r}, and look other "
                        "things up by the indices that the plate yields"
                    )
