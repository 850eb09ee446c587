"""Draw the factors of q in stages, for many samples at once, and evaluate log q_i and its score.

A function of one factor's parameters and one draw is taken apart. What depends on the parameters alone, such as lgamma(a)
or the coefficients of a quantile function, is computed once for all draws and chunks of draws. The rest falls into stages
at the values that a function marks: XLA on CPU runs short loops faster than a long one, and would otherwise compute a
value again for each result that needs it.
"""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array, Bool, Float, Int, UInt32

from bbvi.blankets.jaxpr.inline import retrace
from bbvi.blankets.jaxpr.primitives import COPIES, CUSTOM, MOVES
from bbvi.blankets.jaxpr.run import bind_whole, reached, run
from bbvi.draws.draws import AbstractDraws
from bbvi.families import AbstractFamily, Params, score
from bbvi.model.latents import Latent
from bbvi.numerics.address import Address, Key
from bbvi.numerics.xla import is_mark, materialise

#: of each argument its axis to map over, or None
Axes = tuple[int | None, ...]


class Staged:
    """Take `function(params, *draw)` of one factor and one draw apart into stages.

    `before(params)` is a vector of what the draw does not enter. Each stage is a function
    `(params, before, earlier, *draw) -> value` that gets the values of the earlier ones, and the last one's is the result.
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
            while atom in made and makers[atom].primitive.name in MOVES | COPIES and makers[atom].invars[0] in made:
                atom = makers[atom].invars[0]
            return atom

        needed = [atom for atom in [*used, *jaxpr.outvars] if not isinstance(atom, Literal) and atom in made]
        self._kept = [v for v in dict.fromkeys(map(source, needed)) if jnp.issubdtype(v.aval.dtype, jnp.floating)]
        self._marks = [eqn for eqn in jaxpr.eqns if is_mark(eqn) and eqn.outvars[0] in entered]
        last = reached(jaxpr, jaxpr.invars[-1:])
        #: for each stage the axis of samples: none if the last argument, the number of the sample, does not enter it
        self.axes = [*(-1 if eqn.outvars[0] in last else None for eqn in self._marks), -1]

    def before(self, params: Any) -> Float[Array, " kept"]:
        """Compute what does not depend on the draw, in one vector."""
        others = [None] * (len(self._closed.jaxpr.invars) - self._num)
        values = run(self._closed, [*jax.tree.leaves(params), *others], self._kept)
        return jnp.concatenate([jnp.ravel(v) for v in values]) if values else jnp.zeros(0)

    def many(self, on: Array, params: Any, before: Any, *draw: Any, samples: Axes, rows: Axes) -> list[Any]:
        """Give the values of all stages for many factors and samples; `samples` and `rows` are the axes of `draw`."""
        ends = [(eqn.invars, jax.tree.structure(0)) for eqn in self._marks]
        ends.append((self._closed.jaxpr.outvars, self._tree))
        found: list[Any] = []
        for number, (end, axis) in enumerate(zip(ends, self.axes, strict=True)):
            stage = functools.partial(self._stage, number, *end)
            if axis is not None:
                stage = jax.vmap(stage, in_axes=(None, None, self.axes[:number], *samples), out_axes=axis)
            stage = jax.vmap(stage, in_axes=(0, 0, 0, *rows))
            found.append(materialise(on, stage, params, before, list(found), *draw))
        return found

    def again(self, params: Any, values: Sequence[Array], *draw: Any) -> Any:
        """Compute the result again from the values of all stages but the last, differentiably in the parameters."""
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
        """The trace, in which functions with a custom derivative are not inlined."""
        return retrace(self._traced, {}, _with_own_derivative)

    def _stage(self, number: int, outputs: Any, tree: Any, params: Any, before: Array, earlier: Any, *draw: Any) -> Any:
        """Compute these outputs from what is kept and the values of the earlier stages, whose number this is."""
        ends = itertools.accumulate(math.prod(variable.aval.shape) for variable in self._kept)
        pieces = zip(self._kept, jnp.split(before, list(ends)[:-1]), strict=False)
        given = {variable: piece.reshape(variable.aval.shape) for variable, piece in pieces}
        given |= _at_marks(zip(self._marks[:number], earlier, strict=True))
        inputs = [*jax.tree.leaves(params), *jax.tree.leaves(draw)]
        return jax.tree.unflatten(tree, run(self._closed, inputs, outputs, given=given))


def _with_own_derivative(eqn: Any, values: list[Any], source: Any) -> list[Any] | None:
    return bind_whole(eqn, values) if eqn.primitive.name in CUSTOM else None


def _at_marks(values: Iterable[tuple[Any, Array]]) -> dict[Any, Array]:
    """Map the variables before and after each mark to the mark's value."""
    atoms = [(atom, value) for eqn, value in values for atom in (eqn.outvars[0], eqn.invars[0])]
    return {atom: value for atom, value in atoms if not isinstance(atom, Literal)}


class Prepared(NamedTuple):
    """The factors' lambda and what is computed from lambda alone, for drawing and for the density."""

    params: Params
    drawing: Float[Array, "rows _"]
    density: Float[Array, "rows _"] | None


class Rows(NamedTuple):
    """Factors of q of one family: lambda, prepared, and where each factor's random numbers are.

    `real` tells which are not padding, and those from `used` on need not be looked at.
    """

    prepared: Any
    keys: UInt32[Array, "rows 2"]
    groups: UInt32[Array, " rows"]
    elements: UInt32[Array, " rows"]
    real: Bool[Array, " rows"] | None
    used: Int[Array, ""] | None

    @property
    def address(self) -> tuple[Array, Array, Array]:
        """Where the random numbers of all samples are."""
        return self.keys, self.groups, self.elements


class Drawer:
    """Draw factors of q of one family for many samples, and evaluate log q_i and its score.

    With `paths` a draw can be followed as lambda moves, instead: `coordinates` is (u, path) for `along_path`.
    """

    def __init__(self, draws: AbstractDraws, name: str, latent: Latent, *, paths: bool = False):
        self.latent, self.paths, float_ = latent, paths, jnp.result_type(float)
        #: whether the path is the draw's derivatives; otherwise it is what they can be computed from
        self._slopes = paths and _is_scalar(latent.family)
        self._drawing = _staged(_drawing, draws, name if draws.reads_names else "", latent.family, self._slopes, float_)
        self.coordinates_shape: Any = self._drawing.shape[0] if self._slopes else self._drawing.shape
        self._density = None if paths else _staged(_density, latent.family, self.coordinates_shape, float_)

    def prepare(self, params: Params) -> Prepared:
        """Prepare the parameters of many factors, which stand on the first axis."""
        density = None if self._density is None else jax.vmap(self._density.before)(params)
        return Prepared(params, jax.vmap(self._drawing.before)(params), density)

    def coordinates(self, on: Array, rows: Rows, samples: Array) -> Any:
        """Draw many factors, `(rows, *event, samples)`, for the samples with these numbers."""
        draw = (rows.prepared.params, rows.prepared.drawing, *rows.address, samples)
        found = self._drawing.many(on, *draw, samples=(None, None, None, 0), rows=(0, 0, 0, None))
        return (found[-1], found[:-1]) if self.paths and not self._slopes else found[-1]

    def values(self, coordinates: Array) -> Array:
        """Turn coordinates into the z that the model sees; any axes of factors stand first, samples last."""
        see = jax.vmap(self.latent.family.chart.value, in_axes=-1, out_axes=-1)
        for _ in range(coordinates.ndim - 1 - len(self.coordinates_shape.shape)):
            see = jax.vmap(see)
        return see(coordinates)

    def along_path(self, row: Rows, path: Any, samples: Array, slope: Array) -> Params:
        """Sum slope * du / dlambda_i over samples, for one factor."""
        if self._slopes:
            return jax.tree.map(lambda of_draw: (slope * of_draw).sum(-1), path)

        def draw(p: Params) -> Array:
            again = lambda stored, sample: self._drawing.again(p, stored, *row.address, sample)  # noqa: E731
            return jax.vmap(again, in_axes=(self._drawing.axes[:-1], 0), out_axes=-1)(path, samples)

        return jax.vjp(draw, row.prepared.params)[1](slope)[0]

    def density(self, on: Array, prepared: Prepared, coordinates: Array) -> tuple[Array, Params]:
        """Evaluate log q_i and its score for many factors and samples."""
        assert self._density is not None
        of_factors = (prepared.params, prepared.density)
        return self._density.many(on, *of_factors, coordinates, samples=(-1,), rows=(0,))[-1]


def _staged(made: Callable[..., Staged], *of: Any) -> Staged:
    """Keep what was taken apart: a family is in many models, and tracing it takes longer than many steps."""
    try:
        return _kept(made, *of)
    except TypeError:  # holds arrays, which cannot be compared
        return made(*of)


@functools.lru_cache(maxsize=64)
def _kept(made: Callable[..., Staged], *of: Any) -> Staged:
    return made(*of)


def _drawing(draws: AbstractDraws, name: str, family: AbstractFamily, slopes: bool, float_: Any) -> Staged:
    def one(p: Params, key: Key, group: Array, element: Array, sample: Array) -> Any:
        draw = lambda p: draws.sample(name, family, p, Address(key, group, element, sample))  # noqa: E731
        return jax.value_and_grad(draw)(p) if slopes else draw(p)

    word = jax.ShapeDtypeStruct((), jnp.uint32)
    return Staged(one, _shapes(family, float_), jax.ShapeDtypeStruct((2,), jnp.uint32), word, word, word)


def _density(family: AbstractFamily, coordinates: Any, float_: Any) -> Staged:
    return Staged(lambda p, u: score(family, p, u), _shapes(family, float_), coordinates)


def _is_scalar(family: AbstractFamily) -> bool:
    """Tell whether a draw is one number of few scalar parameters, so that its derivatives are few."""
    return family.chart.shape == () and all(entry.raw_shape() == () for entry in family.parameters().values())


def _shapes(family: AbstractFamily, float_: Any) -> Any:
    return {p: jax.ShapeDtypeStruct(entry.raw_shape(), float_) for p, entry in family.parameters().items()}
