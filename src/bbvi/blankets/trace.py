"""A part of log p, traced once: its terms, its blankets, its jumps and its values are all read off this trace."""

import dataclasses
import random
from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

from bbvi.blankets.jaxpr.continuity import Cell
from bbvi.blankets.jaxpr.inline import retrace
from bbvi.blankets.jaxpr.intervals import REALS
from bbvi.blankets.jaxpr.jumps import cell_of
from bbvi.blankets.jaxpr.primitives import MOVES
from bbvi.blankets.jaxpr.run import all_consts, bind_whole, reached, run
from bbvi.blankets.jaxpr.samples import Last, run_last
from bbvi.blankets.jaxpr.trusted import has_own_derivatives
from bbvi.blankets.jaxpr.work import work_of
from bbvi.blankets.lost_numbers import refuse_lost_numbers
from bbvi.model.latents import Latent
from bbvi.model.model import Model, Values
from bbvi.model.problem import Problem, Terms

_KEEP_RANGES = MOVES | {"convert_element_type"}

Shapes = dict[str, jax.ShapeDtypeStruct]


class Trace:
    """The trace of `function(*latents, constants) -> {name: array}`, a function of dicts of latents and of the data.

    `trace(*latents, constants)` evaluates it. The function itself is called once, here; the trace keeps no data, but the ranges
    of it: of `constants` themselves if these are arrays, or of their `extremes`.
    """

    def __init__(
        self, function: Callable[..., Terms], latents: tuple[Shapes, ...], constants: Any, extremes: Any = None
    ):
        arrays, static = eqx.partition(constants, is_array)
        written: list[str] = []

        def of_arrays(latents: tuple[Values, ...], arrays: Any) -> Terms:
            terms = function(*latents, eqx.combine(arrays, static))
            written[:] = terms
            return terms

        before = _random_states()
        #: the function as it was written, with the functions that it calls
        self.closed: ClosedJaxpr = jax.make_jaxpr(of_arrays)(latents, arrays)
        if _random_states() != before:
            # another function, so that JAX does not answer with the trace that it has
            _refuse_randomness(self.closed, jax.make_jaxpr(lambda *given: of_arrays(*given))(latents, arrays))
        self.latents = latents
        #: the latents' names in the order of the trace's inputs; the arrays of the constants follow
        self.names = [name for part in latents for name in sorted(part)]
        #: the terms' names in the order in which they are written, and in that of the trace's outputs
        self.written, self.outputs = written, sorted(written)
        #: the same trace without calls: what is called stands where it is called
        self.inlined = retrace(self.closed, {})
        #: the cells of data, and of what is computed from data alone and divided by
        self.known = self._cells(arrays, extremes)

    def __call__(self, *arguments: Any) -> Terms:
        """Evaluate the terms at `(*latents, constants)`."""
        *latents, constants = arguments
        given = self.inputs(tuple(latents), constants)
        # calls stay calls: by what they call, and by derivatives that they bring, functions are known to be continuous
        values = run(self.closed, given, self.closed.jaxpr.outvars, lambda eqn, ins, _: bind_whole(eqn, ins))
        return dict(zip(self.outputs, values, strict=True))

    def at_samples(self, latents: tuple[Values, ...], constants: Any, num: int) -> Terms:
        """Evaluate the terms at `num` samples, which stand on the last axis of the latents and of the result."""
        return jax.vmap(lambda *one: self(*one, constants), in_axes=-1, out_axes=-1, axis_size=num)(*latents)

    def inputs(self, latents: tuple[Values, ...], constants: Any) -> list[Array]:
        """The inputs of the trace, with the types that it was traced with."""
        given = jax.tree.leaves((latents, eqx.filter(constants, is_array)))
        return [jnp.asarray(value, v.aval.dtype) for value, v in zip(given, self.closed.jaxpr.invars, strict=True)]

    def _cells(self, arrays: Any, extremes: Any) -> dict[Any, Cell]:
        jaxpr, num_latents, given = self.closed.jaxpr, len(self.names), jax.tree.leaves(arrays)
        at_hand = not any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in given)
        values = given if at_hand else jax.tree.leaves(extremes)
        found = {v: _cell_of(value) for v, value in zip(jaxpr.invars[num_latents:], values, strict=False)}
        if not at_hand:
            return found
        makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        entered, divisors = reached(jaxpr, jaxpr.invars[:num_latents]), set()
        for atom in [eqn.invars[1] for eqn in jaxpr.eqns if eqn.primitive.name == "div"]:
            source = atom
            while (
                not isinstance(source, Literal) and source in makers and makers[source].primitive.name in _KEEP_RANGES
            ):
                source = makers[source].invars[0]
            if not isinstance(source, Literal) and source in makers and source not in entered:
                divisors.add(atom)
        computed = run(self.closed, [*[None] * num_latents, *given], list(divisors)) if divisors else []
        return found | {v: _cell_of(value) for v, value in zip(divisors, computed, strict=True)}

    def derivative(self, names: Collection[str]) -> list[Any]:
        """Give the trace of the derivative in some latents as text, and the arrays in it: a function may bring its own."""
        jaxpr, at = self.closed.jaxpr, [i for i, name in enumerate(self.names) if name in names]
        if not at or "custom_" not in str(jaxpr):
            return []

        def total(moving: list[Array], inputs: list[Array]) -> Array:
            given = [moving[at.index(i)] if i in at else value for i, value in enumerate(inputs)]
            values = run(self.closed, given, jaxpr.outvars, lambda eqn, ins, _: bind_whole(eqn, ins))
            return sum((jnp.sum(value) for value in values), jnp.zeros(()))

        inputs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in jaxpr.invars]
        closed = jax.make_jaxpr(lambda *given: jax.grad(total)([given[i] for i in at], list(given)))(*inputs)
        return [str(closed.jaxpr), *all_consts(closed)]

    def work(self) -> float:
        """Count the numbers that an evaluation computes; infinite where a host or a loop of unknown length computes them."""
        return 1.0 + work_of(self.closed.jaxpr)

    def has_own_derivatives(self) -> bool:
        """Tell whether a derivative rule of the user's own is in it."""
        return has_own_derivatives(self.closed.jaxpr)

    def largest(self) -> int:
        """The number of elements of the largest array that depends on a latent: what one draw takes in memory."""
        jaxpr = self.inlined.jaxpr
        entered = reached(jaxpr, jaxpr.invars[: len(self.names)])
        return max((int(np.prod(v.aval.shape)) for v in entered), default=1)


@dataclasses.dataclass(frozen=True, eq=False)
class AtSamples:
    """A trace evaluated for many samples at once: `at(latents, logs, constants, num) -> {name: array}`.

    With `derivatives` the result will be differentiated: functions that bring a derivative of their own keep it.
    """

    closed: ClosedJaxpr
    latents: list[str]
    outputs: list[str]
    _: dataclasses.KW_ONLY
    fast_lgamma: bool
    derivatives: bool = False

    def __call__(self, latents: Values, logs: Values, constants: Any, num: int) -> Terms:
        """The terms, with samples on the last axis as in the latents; `logs` are the logarithms that are known."""
        last = [_last(latents[name], logs.get(name)) for name in self.latents]
        return self._run([*last, *jax.tree.leaves(eqx.filter(constants, is_array))], num)

    def over_groups(self, beta: Values, z: Values, logs: Values, rows: Any, num: int) -> Terms:
        """The same at one sample of the globals, with `num` groups on the last axis of the locals and the rows."""
        last = [_last(z[name], logs.get(name)) if name in z else beta[name] for name in self.latents]
        return self._run([*last, *map(Last, jax.tree.leaves(rows))], num)

    def _run(self, inputs: list[Any], num: int) -> Terms:
        values = run_last(self.closed, inputs, num, fast_lgamma=self.fast_lgamma, derivatives=self.derivatives)
        return dict(zip(self.outputs, values, strict=True))


def _cell_of(data: Any) -> Cell:
    cell = cell_of(np.asarray(data)) if data.dtype.kind in "biuf" else Cell()
    return cell._replace(range=REALS) if cell.constant else cell


def _last(value: Array, log: Array | None) -> Last:
    return Last(value, None if log is None else lambda: log)


def trace_prior(problem: Problem, data: Any, known: Trace | None = None) -> Trace:
    """Trace the terms that no group owns, as a function of the globals and a flat model's data.

    With the trace that is `known` of the same function of latents by themselves, the function is not called again.
    """
    if known is not None:
        return Trace(_of_members(problem, known), (_shapes(problem, problem.globals),), data)
    trace = Trace(problem.prior_terms, (_shapes(problem, problem.globals),), data)
    names = ["log_joint"] if isinstance(problem.model, Model) else ["log_prior"]
    _refuse_lost(problem, names, trace, problem.prior_terms, data)
    return trace


def trace_group(problem: Problem, row: Any, known: Trace | None = None, extremes: Any = None) -> Trace:
    """Trace the terms of one group, as a function of the globals, its locals and its row of the data."""
    function = problem.group_terms if known is None else _of_members(problem, known)
    trace = Trace(function, (_shapes(problem, problem.globals), _shapes(problem, problem.locals)), row, extremes)
    if known is None:
        _refuse_lost(problem, ["log_local", "log_likelihood"], trace, problem.group_terms, row)
    return trace


def _refuse_lost(problem: Problem, names: list[str], trace: Trace, function: Callable[..., Terms], data: Any) -> None:
    """Raise if the functions of these names hold numbers that are others in their trace."""
    functions = {name: own for name in names if (own := getattr(problem.model, name, None)) is not None}

    def again(widen: bool) -> ClosedJaxpr:
        arrays, static = eqx.partition(data, is_array)
        given = jax.tree.map(lambda leaf: _argument(leaf, widen), (trace.latents, arrays))
        return jax.make_jaxpr(lambda z, x: function(*z, eqx.combine(x, static)))(*given)

    refuse_lost_numbers(functions, trace.closed, again)


def _argument(leaf: Any, widen: bool) -> jax.ShapeDtypeStruct:
    kinds = {"float32": "float64", "int32": "int64"} if widen else {}
    return jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(kinds.get(str(leaf.dtype), leaf.dtype)))


def _of_members(problem: Problem, known: Trace) -> Callable[..., Terms]:
    def terms(*given: Any) -> Terms:
        *latents, constants = given
        found = known(*map(problem.members, latents), constants)
        return {name: found[name] for name in known.written}

    return terms


def is_array(leaf: Any) -> bool:
    """Tell whether a leaf of the data enters the trace; others are built into it."""
    return eqx.is_array(leaf) or isinstance(leaf, (np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _shapes(problem: Problem, latents: Mapping[str, Latent]) -> Shapes:
    """The arrays of some latents, and the call site of opaque functions."""
    kinds = {name: jnp.result_type(int if x.family.chart.is_discrete else float) for name, x in latents.items()}
    found = {name: jax.ShapeDtypeStruct(problem.shape(name) + x.event, kinds[name]) for name, x in latents.items()}
    return found | {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in problem.no_call_site().items()}


def _random_states() -> Any:
    """The states of the random generators that a function may use without being given one."""
    _, words, *position = np.random.get_state()
    return random.getstate(), np.asarray(words).tobytes(), position


def _refuse_randomness(one: ClosedJaxpr, other: ClosedJaxpr) -> None:
    """Raise if two traces of a function differ: its random numbers would be frozen in the first."""
    pairs = zip(all_consts(one), all_consts(other), strict=False)
    if str(one) != str(other) or not all(np.array_equal(a, b, equal_nan=True) for a, b in pairs):
        raise RuntimeError(
            "the log joint draws from the global random state of NumPy or Python, so that each call returns another value: "
            "a function that hides state or randomness has no gradient to follow. Draw the numbers before the fit and pass "
            "them as data, or declare the function with bbvi.opaque(fn, stochastic=True)"
        )
