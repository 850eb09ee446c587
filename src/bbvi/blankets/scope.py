"""Section 3.1: a part of log p, its terms and the latents that they read.

A *scope* is the terms that no group owns (the whole log joint of a flat model, log p(beta) of a hierarchical one), or those
of one group at some padded length. log p_i of Eq. 6 is the sum of the terms that read z_i. Arrays have samples on the last
axis; a sampler has groups there instead, called lanes.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jaxtyping import Array, Bool, UInt32

from bbvi.blankets.broadcast import refuse_forgotten_sums
from bbvi.blankets.jaxpr.intervals import Interval, range_of
from bbvi.blankets.jaxpr.run import all_consts
from bbvi.blankets.look_ups import LookedUp, chosen_elements, looked_up
from bbvi.blankets.patterns import AbstractPattern, Reduction, pairs_of, recognise
from bbvi.blankets.read_sets import MOST_PAIRS, everything, matrix, num_pairs
from bbvi.blankets.reads import Lost, reads
from bbvi.blankets.terms import SplitTerms
from bbvi.blankets.trace import AtSamples, Trace, is_array
from bbvi.families import Tree
from bbvi.families.charts import Counts
from bbvi.model.latents import Latent
from bbvi.model.model import Values
from bbvi.model.problem import Problem, Terms

Arrays = dict[str, Array]
Patterns = Mapping[str, Mapping[str, AbstractPattern]]
#: by latent, which of its factors each element of an array of terms reads
Pairs = dict[str, sparse.csr_array]
Item = TypeVar("Item")
#: of each array of terms, its sums over some axes
Sums = dict[str, dict[tuple[int, ...], Array]]

_MAY_WRAP = (
    "a sum of integers that may wrap around, or be too large for floating point; sum real numbers, z.astype(float)"
)


class Lanes(NamedTuple):
    """The arrays of a scope: its data, the numbers of its groups, and which latent elements are not padding."""

    data: Any
    groups: UInt32[Array, " lanes"]
    real: dict[str, Bool[Array, "*factors lanes"]]


class Point(NamedTuple):
    """Values of a scope's latents and the logarithms that are known, lanes last."""

    values: Arrays
    logs: Arrays


class Scope(NamedTuple):
    """A part of log p: its trace, its terms, and for each latent how it sums those that read it.

    `patterns` tell it by latent and array of terms; `look_ups` are of terms that read elements of a latent which the data of
    a group choose.
    """

    problem: Problem
    of_groups: bool
    trace: Trace
    split: SplitTerms
    function: AtSamples
    patterns: Patterns
    look_ups: Mapping[str, Mapping[str, LookedUp]]
    indices: Callable[[Any], list[Array]]
    shapes: dict[str, tuple[int, ...]]
    lost: list[Lost]
    #: by latent with a Markov tree as q and array of terms, which of its numbers each element reads; None if that is not known
    numbers: Mapping[str, Mapping[str, sparse.csr_array | None]]

    @property
    def latents(self) -> Mapping[str, Latent]:
        """The latents that belong to this part: the globals, or the locals of a group."""
        return self.problem.locals if self.of_groups else self.problem.globals

    @property
    def size(self) -> int:
        """The number of elements of all terms, for one draw."""
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def traced(self, *, apart: bool = True) -> list[Any]:
        """Give the trace of the terms, or that of the function if not `apart`, as text, and the arrays in it."""
        closed = self.function.closed if apart else self.trace.closed
        return [str(closed.jaxpr), self.function.fast_lgamma, *all_consts(closed)]

    def reading(self, names: Iterable[str]) -> list[str]:
        """Name the arrays of terms that read any of these latents."""
        found = [[*self.patterns.get(name, {}), *self.look_ups.get(name, {})] for name in names]
        return list(dict.fromkeys(itertools.chain(*found)))

    def pairs(self, term: str, names: Iterable[str], indices: list[Array]) -> Pairs:
        """List by latent which of its factors each element of a term reads, in any case or as the `indices` choose."""
        direct = {name: item.pairs() for name, item in by_name(self.patterns, term, names).items()}
        return direct | {name: item.pairs(indices) for name, item in by_name(self.look_ups, term, names).items()}

    def at_samples(self, values: Values, constants: Any, num: int, logs: Values | None = None) -> Terms:
        """Evaluate the terms at `num` samples; `constants` is the data or a row, `logs` are known logarithms."""
        return self.function(values, logs or {}, constants, num)

    def sums(self, terms: Terms) -> Sums:
        """Sum the terms over the axes that any latent needs, each once, and over all."""
        found: Sums = {}
        for name, term in terms.items():
            patterns = by_name(self.patterns, name, self.patterns).values()
            wanted = dict.fromkeys(pattern.summed for pattern in patterns if isinstance(pattern, Reduction))
            made = {axes: term.sum(axes) for axes in wanted if axes}
            smallest = min(made.values(), key=lambda leaf: leaf.size, default=term)
            everything = tuple(range(term.ndim - 1))
            made[everything] = made.get(everything, smallest.sum(tuple(range(smallest.ndim - 1))))
            found[name] = made
        return found

    def log_p_i(self, latent: str, terms: Terms, sums: Sums | None = None) -> Array | float:
        """Sum, for every factor i of `latent`, the terms that read it; 0 where none does (Eq. 6).

        `sums` are those of `Scope.sums`, if they are there. An axis along which all factors have the same may have size 1.
        """
        found: list[Array] = []
        for name, pattern in self.patterns.get(latent, {}).items():
            if sums is not None and isinstance(pattern, Reduction) and pattern.summed:
                found.append(pattern.arranged(sums[name][pattern.summed]))
            else:
                found.append(pattern.sum(terms[name]))
        return functools.reduce(jnp.add, found) if found else 0.0

    def looked_up(self, latent: str, terms: Terms, indices: list[Array]) -> list[Array]:
        """Sum the terms for the elements of `latent` that these groups' data choose; terms and indices have groups first."""
        return [item.sum(terms[term], indices) for term, item in self.look_ups.get(latent, {}).items()]

    def spread(self, latent: str, sums: list[Array]) -> Array | float:
        """Give the share of `looked_up` in log p_i."""
        items = self.look_ups.get(latent, {}).values()
        return sum((item.spread(value) for item, value in zip(items, sums, strict=True)), 0.0)

    def of_one_group(self, latent: str, terms: Terms, indices: list[Array], sums: Sums | None = None) -> Array | float:
        """Sum log p_i of one group's local, what its data choose included."""
        one = jax.tree.map(lambda leaf: leaf[None], (terms, indices))
        return self.log_p_i(latent, terms, sums) + self.spread(latent, self.looked_up(latent, *one))

    def terms(self, beta: Point, z: Point, lanes: Lanes) -> Terms:
        """Evaluate all arrays of terms in lanes, at one sample of the globals."""
        if not self.of_groups:
            return self.at_samples(beta.values, lanes.data, 1, beta.logs)
        one = {name: value[..., 0] for name, value in beta.values.items()}
        return self.function.over_groups(one, z.values, z.logs, lanes.data, len(lanes.groups))

    def log_p(self, names: Sequence[str], terms: Terms, lanes: Lanes) -> Arrays:
        """Sum, in lanes, for each factor i of these latents the terms that read it: linear in the terms.

        A global's are summed over the groups, too: one lane is left.
        """
        return {name: self._in_lanes(name, terms, lanes) for name in names}

    def _in_lanes(self, name: str, terms: Terms, lanes: Lanes) -> Array:
        over_lanes = self.of_groups and name in self.problem.globals
        num = len(lanes.groups) if self.of_groups and not over_lanes else 1
        own = {term: leaf.sum(-1, keepdims=True) for term, leaf in terms.items()} if over_lanes else terms
        total: Any = jnp.zeros((*self.problem.shape(name), num)) + self.log_p_i(name, own)
        if self.look_ups.get(name):
            indices = jax.vmap(self.indices, in_axes=-1)(lanes.data)
            first = {term: jnp.moveaxis(leaf, -1, 0)[..., None] for term, leaf in terms.items()}
            total = total + self.spread(name, self.looked_up(name, first, indices))
        return total

    def changed(self, names: Sequence[str], accepted: Arrays, terms: Terms, lanes: Lanes) -> dict[str, Array]:
        """Tell which terms read an accepted element: the sums of `log_p` the other way round."""
        shapes = {term: jax.ShapeDtypeStruct(terms[term].shape, terms[term].dtype) for term in self.reading(names)}
        kind = next(iter(shapes.values())).dtype
        back = jax.linear_transpose(lambda terms: self.log_p(names, terms, lanes), shapes)
        (counts,) = back({name: accepted[name].astype(kind) for name in names})
        return {term: count > 0.5 for term, count in counts.items()}


def by_name(items: Mapping[str, Mapping[str, Item]], term: str, names: Iterable[str]) -> dict[str, Item]:
    """Take what is there for one array of terms and each of these latents."""
    return {name: items[name][term] for name in names if term in items.get(name, {})}


def find_scope(problem: Problem, trace: Trace, constant: Any, *, of_groups: bool, fast_lgamma: bool) -> Scope:
    """Split a part of log p into terms, and find which latent elements each term element reads."""
    known, arrays = not of_groups, eqx.filter(constant, is_array)
    refuse_forgotten_sums(trace, jax.tree.leaves(arrays) if known else None)
    ranges = {name: bounds for name, latent in problem.latents.items() if (bounds := _bounds(latent)) is not None}
    terms = SplitTerms(trace, jax.tree.leaves(arrays) if known else None, ranges)
    found = reads(lambda given, a: terms(*given, a), trace.latents, arrays, known=known)
    sizes = [int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(trace.latents)]
    width = sum(sizes) + sum(look_up.size for look_up in found.look_ups)
    shapes = {term: leaf.shape for term, leaf in sorted(found.shapes.items())}
    lost = [*found.lost, *(Lost(line, _MAY_WRAP) for line in terms.may_wrap)]
    patterns: dict[str, dict[str, AbstractPattern]] = {}
    look_ups: dict[str, dict[str, LookedUp]] = {}
    numbers: dict[str, dict[str, sparse.csr_array | None]] = {}
    for (term, shape), output in zip(shapes.items(), found.outputs, strict=True):
        if num_pairs(output) > MOST_PAIRS:
            output = everything([output], (1,))
            lost.append(Lost(terms.lines[term], "too many pairs of elements to keep apart"))
        crowded = output is not None and output.ids.shape != shape
        pairs = matrix(output, 1 if crowded else int(np.prod(shape)), width)
        for leaf, (name, size, end) in enumerate(zip(trace.names, sizes, np.cumsum(sizes), strict=True)):
            if name not in problem.latents:  # where an opaque function's call stands: nothing to differentiate
                continue
            event, factor_shape = int(np.prod(problem.latents[name].event)), problem.shape(name)
            rows, columns = pairs[:, end - size : end].nonzero()
            if isinstance(problem.latents[name].family, Tree) and (len(rows) or found.look_ups):
                own = None if crowded or found.look_ups else pairs_of(rows, columns, shape, (size,))
                numbers.setdefault(name, {})[term] = own
            # a vector, such as a Dirichlet's, is one factor of q
            direct = pairs_of(rows, columns // event, pairs.shape[:1], factor_shape)
            chosen = looked_up(shape, pairs, found.look_ups, leaf, factor_shape, event)
            if chosen and not direct.nnz and not crowded:
                look_ups.setdefault(name, {})[term] = chosen
            elif chosen or (direct.nnz and crowded):
                # read directly and by a look-up: no element may be counted twice, so each counts for all
                if chosen:
                    lost.append(Lost(terms.lines[term], f"{name!r} is read by an index in the data and otherwise too"))
                patterns.setdefault(name, {})[term] = Reduction(shape, factor_shape, (None,) * len(factor_shape))
            elif direct.nnz:
                patterns.setdefault(name, {})[term] = recognise(direct, shape, factor_shape)
    function = AtSamples(found.closed, trace.names, list(shapes), fast_lgamma=fast_lgamma)
    shapes = {name: shapes[name] for name in terms.names}
    indices = functools.partial(chosen_elements, found.closed, found.look_ups, len(trace.names))
    return Scope(problem, of_groups, trace, terms, function, patterns, look_ups, indices, shapes, lost, numbers)


def _bounds(latent: Latent) -> Interval | None:
    """Return the range of a latent that has few values, or counts."""
    values = latent.chart.values()
    if values is None and isinstance(latent.chart, Counts):
        values = np.array([0, jnp.iinfo(jnp.result_type(int)).max])
    return None if values is None else range_of(values)
