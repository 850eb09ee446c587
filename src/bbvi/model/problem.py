"""Section 2 and Eq. 12: a model bound to the shape of its data, and the terms of its log joint."""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.families import Framed
from bbvi.model.groups import AbstractGroups, Cohort, as_groups, as_numpy
from bbvi.model.joint import put_together, take_apart
from bbvi.model.labels import Labels, by_name, labels_of
from bbvi.model.model import AnyModel, HierarchicalModel, Model, Values
from bbvi.model.numbers import is_number_list, refuse_unfit
from bbvi.model.opaque.function import Opaque
from bbvi.model.opaque.host import CALL_SITE, CALL_SITE_WORDS, Host
from bbvi.model.paired import is_paired
from bbvi.numerics.address import Key, fold, threefry
from bbvi.numerics.xla import chosen_value

Terms = dict[str, Array]


_ROWS_TO_MOVE = 8


class Problem:
    """A model bound to the shape of its data: what the later rooms need to know, and no arrays."""

    def __init__(
        self, model: AnyModel, lengths: dict[str, int], num_groups: int, *, opaque: Mapping[str, Host] | None = None
    ):
        self.model, self.lengths, self.num_groups = model, lengths, num_groups
        #: what the data call their axes
        self.labels = Labels()
        #: those of the model's functions that are opaque, bound to the data
        self.opaque = dict(opaque or {})
        #: by factors of q: a block of latents is one of them
        self.globals, self.locals = model.factors["globals"], model.factors["locals"]
        self.latents = {**self.globals, **self.locals}
        #: the block of globals, if there is one, that q of locals depends on
        self.leading = next((name for name, x in self.globals.items() if isinstance(x.family, Framed)), None)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a latent's array of factors of q, in one group."""
        return self.latents[name].padded(self.lengths)

    def members(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values a person knows, blocks taken apart, from values by factors of q."""
        found, latents = self.taken_apart(values), self.model.globals | self.model.locals
        for name in itertools.chain(*(block for block in self.model.blocks.values() if is_paired(block))):
            if name in found and latents[name].family.chart.is_discrete:
                found[name] = jax.tree.map(chosen_value, found[name])
        return found

    def taken_apart(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Numbers by latents, such as their means, from those by factors of q."""
        return take_apart(numbers, self.model.blocks, (*self.model.globals, *self.model.locals))

    def joined(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays by factors of q from those a person knows."""
        return put_together(values, self.model.blocks)

    def at(self, lengths: dict[str, int]) -> "Problem":
        """The same problem with ragged axes of other lengths."""
        return Problem(self.model, lengths, self.num_groups, opaque=self.opaque)

    def call_site(self, key: Key, samples: Array, group: Array | int = 0) -> dict[str, Array]:
        """Where draws stand, beside their values, for opaque functions: a seed, the sample, the group."""
        if not self.opaque:
            return {}
        seeds, _ = threefry(fold(key, "opaque"), jnp.asarray(samples, jnp.uint32), jnp.zeros_like(samples, jnp.uint32))
        numbers = jnp.broadcast_arrays(seeds, jnp.asarray(samples, jnp.uint32), jnp.asarray(group, jnp.uint32))
        return {CALL_SITE: jnp.stack(numbers)}

    def no_call_site(self, *samples: int) -> dict[str, Any]:
        """The same place for all samples: what only moves latents must not change a seed."""
        return {CALL_SITE: np.zeros((CALL_SITE_WORDS, *samples), np.uint32)} if self.opaque else {}

    def raise_failure(self) -> None:
        """Raise what went wrong in an opaque function, if anything did."""
        for failure in [host.take_failure() for host in self.opaque.values()]:
            if failure is not None:
                raise failure

    def prior_terms(self, beta: Values, data: Any) -> Terms:
        """Terms that no group owns: the whole log joint of a flat model, log p(beta) of a hierarchical one."""
        if isinstance(self.model, Model):
            return self._terms("log_joint", [beta], data)
        return self._terms("log_prior", [beta])

    def group_terms(self, beta: Values, z: Values, row: Any) -> Terms:
        """Terms of one group: log p(z_i | beta) and log p(x_i | z_i, beta)."""
        if isinstance(self.model, Model):
            return {}
        terms = self._terms("log_local", [beta, z], row) if self.model.locals else {}
        return terms | self.likelihood_terms(beta, z, row)

    def likelihood_terms(self, beta: Values, z: Values, row: Any) -> Terms:
        """log p(x_i | z_i, beta) alone."""
        return self._terms("log_likelihood", [beta, z], row)

    def _terms(self, name: str, latents: list[Values], *constants: Any) -> Terms:
        function, members = getattr(self.model, name), [self.members(part) for part in latents]
        if name in self.opaque:
            function = self.opaque[name].traced
        else:
            members = [{n: value for n, value in part.items() if n != CALL_SITE} for part in members]
        try:
            result = function(*members, *constants)
        except KeyError as error:
            raise ValueError(
                f"{name} asked for {error.args[0]!r}, which is neither a latent ({self._listed()}) nor a field of "
                "the data; check its spelling and the declaration of the model"
            ) from error
        except (TypeError, ValueError, IndexError, AttributeError) as error:
            error.add_note(f"This came from {name}. Latents: {self._listed()}.")
            if isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)):
                error.add_note(
                    "JAX traces the function once for all values: write jnp.where(...) in place of `if`, and jnp in place of "
                    "np; or wrap the function as it is: bbvi.opaque(fn)."
                )
            raise
        return _named_terms(name, result)

    def _listed(self) -> str:
        return ", ".join(f"{name}: shape {self.shape(name) + latent.event}" for name, latent in self.latents.items())


def bind(model: AnyModel, data: Any) -> tuple[Problem, Any, AbstractGroups | None]:
    """Check the data and bind the model to it: the problem, a flat model's data, a hierarchical one's groups."""
    given, data = data, by_name(data)
    if isinstance(model, Model):
        flat = flat_data(data)
        problem = Problem(model, {}, 0, opaque=_hosts(model, {}, flat, None))
        problem.labels = labels_of(given)
        return problem, flat, None
    if not isinstance(model, HierarchicalModel):
        raise TypeError(f"expected a bbvi.Model or a bbvi.HierarchicalModel, got {type(model).__name__}")
    groups = as_groups(data)
    for name, latent in model.locals.items():
        for axis in latent.ragged_axes:
            if axis not in groups.padded():
                known = ", ".join(groups.padded()) or "none"
                raise ValueError(
                    f"latent {name!r} has the ragged axis {axis!r}, which the data do not have (they have: {known}); "
                    f"pass data=bbvi.ragged({axis}={{...}})"
                )
    hosts = _hosts(model, groups.padded(), None, groups)
    problem = Problem(model, groups.padded(), len(groups), opaque=hosts)
    problem.labels = groups.labels.labels if isinstance(groups, Cohort) else labels_of(given)
    return problem, None, groups


def _hosts(model: AnyModel, lengths: dict[str, int], data: Any, groups: AbstractGroups | None) -> dict[str, Host]:
    """The opaque ones among the model's functions, bound to the data."""
    names = ("log_joint", "log_prior", "log_local", "log_likelihood")
    found = {name: function for name in names if isinstance(function := getattr(model, name, None), Opaque)}
    if not found:
        return {}
    if model.blocks:
        raise ValueError(f"joint= is for functions in JAX, and {next(iter(found))} is opaque; leave joint= out")
    own = [()] if groups is None else _some_rows(groups)
    same = groups is None or all(len(np.unique(n)) == 1 for n in groups.lengths(np.arange(len(groups))).values())
    constant = jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, (data,))
    # functions that share a simulator must not meet in it
    lock = threading.Lock()
    hosts = {}
    for name, function in found.items():
        of_group = name in ("log_local", "log_likelihood")
        hosts[name] = Host(
            function, name, (model.globals, model.locals) if of_group else (model.globals,),
            lengths=lengths, rows=own if of_group else [()], constant=constant if name == "log_joint" else (),
            same_lengths=same, lock=lock,
        )  # fmt: skip
    return hosts


def _some_rows(groups: AbstractGroups) -> list[tuple[Any]]:
    """A few groups, the longest of each axis among them."""
    numbers = [int(n) for n in np.linspace(0, len(groups) - 1, min(len(groups), _ROWS_TO_MOVE))]
    longest = [int(np.argmax(np.asarray(own))) for own in groups.lengths(np.arange(len(groups))).values()]
    chosen = np.unique([*longest, *numbers[len(longest) :]] if len(groups) > _ROWS_TO_MOVE else numbers)
    rows = jax.tree.map(np.asarray, groups.take(chosen))
    return [(jax.tree.map(lambda leaf, i=i: leaf[i], rows),) for i in range(len(chosen))]


def flat_data(data: Any) -> Any:
    """A flat model's data with its arrays on the device; other leaves pass through untouched."""

    if isinstance(data, (list, tuple, dict)) and len(data) == 0:
        raise ValueError("data is empty: pass data=None if the log joint needs none")

    def convert(leaf: Any) -> Any:
        if not (is_number_list(leaf) or hasattr(leaf, "__array__")):
            return leaf
        array = as_numpy(leaf)
        if array.size == 0:
            raise ValueError(f"data holds an empty array of shape {array.shape}: nothing to fit")
        return array

    converted = jax.tree.map(convert, data, is_leaf=is_number_list)
    refuse_unfit(converted, "data")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, converted)


def _named_terms(name: str, result: Any) -> Terms:
    leaves = jax.tree_util.tree_leaves_with_path(result)
    if not leaves:
        raise ValueError(f"{name} returned {result!r}; it must return a number or terms (did it forget `return`?)")
    terms = {}
    for path, leaf in leaves:
        label = name + jax.tree_util.keystr(path)
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError):
            raise TypeError(f"{label} must be a number or an array, got {type(leaf).__name__}") from None
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise TypeError(
                f"{label} must be a log density, a real number; got {array.dtype} of shape {array.shape}. "
                "Return floats: 0.0 in place of 0, or value.astype(float)"
            )
        terms[label] = array
    return terms


def total(arrays: Terms) -> Any:
    """Sum of everything, for each sample."""
    return sum((leaf.reshape(-1, leaf.shape[-1]).sum(0) for leaf in arrays.values()), 0.0)
