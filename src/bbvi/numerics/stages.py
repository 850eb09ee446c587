"""A function of one factor's parameters and one draw, taken apart into what can be computed once and in stages.

What depends on the parameters alone, such as lgamma(a) or the coefficients of a quantile function, is computed once
for all draws and chunks of draws. The rest falls into stages at the values that a function marks: XLA on CPU runs
short loops faster than a long one, and would otherwise compute a value again for each result that needs it.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Float

from bbvi.blankets.jaxpr.inline import retrace
from bbvi.blankets.jaxpr.run import CUSTOM, bind_custom, reached, run
from bbvi.numerics.marks import is_mark


def run_time_true(key: Array) -> Array:
    """True, which the compiler cannot know."""
    return (key[0] | np.uint32(1)) != 0


def materialise(on: Array, stage: Callable[..., Any], *arguments: Any) -> Any:
    """Run a stage so that its results are stored once.

    XLA on CPU would otherwise copy a cheap-looking producer, such as the random numbers, into every consumer:
    more to compile and more to compute. A condition that is always true, though the compiler cannot know, stops it.
    """
    stage = jax.jit(stage)  # traced once
    shapes = jax.eval_shape(stage, *arguments)
    zeros = lambda *_: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)  # noqa: E731
    return jax.lax.cond(on, stage, zeros, *arguments)


def stored(on: Array, values: Any) -> Any:
    """The same values, computed once and for all that follows."""
    return materialise(on, lambda same: same, values)


_MOVES = frozenset("slice squeeze reshape expand_dims broadcast_in_dim transpose copy".split())


class Staged:
    """`function(params, *draw)` of one factor and one draw, taken apart.

    `before(params)` is a vector of what the draw does not enter; `stages` are functions
    `(params, before, earlier, *draw) -> value` of which each gets the values of the earlier ones, and the last one's
    is the result.
    """

    def __init__(self, function: Callable[..., Any], params: Any, *draw: Any):
        closed, shape = jax.make_jaxpr(function, return_shape=True)(params, *draw)
        #: what the function returns
        self.shape = shape
        self._traced, self._closed, self._tree = closed, retrace(closed, {}), jax.tree.structure(shape)
        self._num = len(jax.tree.leaves(params))
        jaxpr = self._closed.jaxpr
        entered = reached(jaxpr, jaxpr.invars[self._num :])
        used = [atom for eqn in jaxpr.eqns if any(v in entered for v in eqn.outvars) for atom in eqn.invars]
        made = reached(jaxpr, jaxpr.invars[: self._num]) - entered - set(jaxpr.invars)
        makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}

        def source(atom: Any) -> Any:
            # what is only moved is kept where it comes from: a table in one piece
            while atom in made and makers[atom].primitive.name in _MOVES and makers[atom].invars[0] in made:
                atom = makers[atom].invars[0]
            return atom

        needed = [atom for atom in [*used, *jaxpr.outvars] if not isinstance(atom, Literal) and atom in made]
        self._kept: list[Any] = [
            v for v in dict.fromkeys(map(source, needed)) if jnp.issubdtype(v.aval.dtype, jnp.floating)
        ]
        self._marks = [eqn for eqn in jaxpr.eqns if is_mark(eqn) and eqn.outvars[0] in entered]
        last = reached(jaxpr, jaxpr.invars[-1:])
        #: for each stage whether the last argument, the number of the sample, enters it
        self.varies = [*(eqn.outvars[0] in last for eqn in self._marks), True]

    def before(self, params: Any) -> Float[Array, " kept"]:
        """What does not depend on the draw, in one vector."""
        others = [None] * (len(self._closed.jaxpr.invars) - self._num)
        values = run(self._closed, [*jax.tree.leaves(params), *others], self._kept)
        return jnp.concatenate([jnp.ravel(v) for v in values]) if values else jnp.zeros(0)

    @property
    def stages(self) -> list[Callable[..., Any]]:
        steps: list[Callable[..., Any]] = [
            self._stage([eqn.invars[0]], number) for number, eqn in enumerate(self._marks)
        ]
        last = self._stage(self._closed.jaxpr.outvars, len(self._marks))
        return [*[lambda *a, s=step: s(*a)[0] for step in steps], lambda *a: jax.tree.unflatten(self._tree, last(*a))]

    def again(self, params: Any, values: Sequence[Array], *draw: Any) -> Any:
        """The result from the values of all stages but the last, as a function of the parameters that has a derivative."""
        jaxpr, num = self._whole.jaxpr, self._num
        drawn, moved = reached(jaxpr, jaxpr.invars[num:]), reached(jaxpr, jaxpr.invars[:num])
        marks = [eqn for eqn in jaxpr.eqns if is_mark(eqn) and eqn.outvars[0] in drawn]
        if len(marks) != len(values):  # some are inside a function with a derivative of its own
            marks = []
        still = [(eqn, value) for eqn, value in zip(marks, values, strict=False) if eqn.outvars[0] not in moved]
        inputs = [*jax.tree.leaves(params), *jax.tree.leaves(draw)]
        made = run(self._whole, inputs, jaxpr.outvars, _with_own_derivative, given=_at_marks(still))
        return jax.tree.unflatten(self._tree, made)

    @functools.cached_property
    def _whole(self) -> ClosedJaxpr:
        """The trace with functions that have a derivative of their own left whole."""
        return retrace(self._traced, {}, _with_own_derivative)

    def _stage(self, outputs: Sequence[Any], number: int) -> Callable[..., list[Array]]:
        def stage(params: Any, before: Array, earlier: Sequence[Array], *draw: Any) -> list[Array]:
            given: dict[Any, Array] = {}
            offset = 0
            for variable in self._kept:
                size = int(np.prod(variable.aval.shape))
                given[variable] = before[offset : offset + size].reshape(variable.aval.shape)
                offset += size
            given |= _at_marks(zip(self._marks[:number], earlier, strict=True))
            inputs = [*jax.tree.leaves(params), *jax.tree.leaves(draw)]
            return run(self._closed, inputs, outputs, given=given)

        return stage


def _with_own_derivative(eqn: Any, values: list[Any], source: Any) -> list[Any] | None:
    return bind_custom(eqn, values) if eqn.primitive.name in CUSTOM else None


def _at_marks(values: Iterable[tuple[Any, Array]]) -> dict[Any, Array]:
    """The value of each mark, before and behind it."""
    atoms = [(atom, value) for eqn, value in values for atom in (eqn.outvars[0], eqn.invars[0])]
    return {atom: value for atom, value in atoms if not isinstance(atom, Literal)}
