"""Follow log p back through what the user's code adds up, to the densities in it, and see how often each is counted.

The walk goes through additions, scalings, masks, choices and moves of data, whose axes it follows to the axes of the array that is
returned: along those that a density does not have it is repeated.
"""

import collections
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import Literal

from bbvi.blankets.jaxpr.lines import is_library, is_log_prob
from bbvi.blankets.jaxpr.primitives import ADDITIONS, COPIES
from bbvi.blankets.walk import Walk, axes_before

_MOVED = COPIES | {"convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "expand_dims", "transpose", "rev"}
#: between a density and its sum: masks, mixtures
_BEHIND = ADDITIONS | _MOVED | {
    "mul", "div", "select_n", "concatenate", "reduce_sum", "reduce_max", "max", "log", "log1p", "exp", "stop_gradient", "dot_general",
    "integer_pow",
}  # fmt: skip
#: what people write in place of the logarithm of 0
_LOG_OF_ZERO = -1e4


class Mask(NamedTuple):
    """What keeps or drops elements: a predicate or weights, and which of its values keep.

    `along` says for each of its axes which of the region that is, and `axes` along which of these it varies. `choice` is the number of the equation where
    something else stands for what it drops, which case this is, and how many are not zero.
    """

    atom: Any
    along: tuple[int | None, ...]
    axes: tuple[int, ...]
    keeps: int
    choice: tuple[int, int, int] | None = None


class Place(NamedTuple):
    """A variable on the way, and its place in what is returned.

    `region` is the shape of the part of the returned array in which it is, and `axes` says for each axis of the variable which axis
    of the region that is, None if it was cut down. `below` counts the masks above the last addition. After an explicit sum how often something
    is counted is what the user asked for; of an array that was cut, or whose elements were chosen, not all is counted. `scale` is what it is multiplied by, if that is known, and `units` how often it
    is added as it is.
    """

    atom: Any
    axes: tuple[int | None, ...]
    region: tuple[int, ...]
    output: str
    masks: tuple[Mask, ...] = ()
    below: int = 0
    scale: float | None = 1.0
    units: float = 1.0
    summed: bool = False
    cut: bool = False
    chosen: bool = False


class Density(NamedTuple):
    """A density, or a sum of such, on one of its ways into log p: `own` numbers, of which each is counted so many `times`."""

    eqn: Any
    place: Place
    own: int
    times: int


def root(atom: Any, output: str, like: Place | None = None) -> Place:
    """Start from an output; or start anew `like` a place whose axes cannot be followed any further."""
    shape = tuple(atom.aval.shape)
    place = Place(atom, tuple(range(len(shape))), shape, output)
    if like is None:
        return place
    return place._replace(
        scale=like.scale,
        units=0.0 if like.masks else like.units,
        summed=like.summed,
        cut=like.cut or bool(like.masks),
        chosen=like.chosen,
    )


def densities(walk: Walk, outputs: dict[str, Any], value: Callable[[Any], np.ndarray | None]) -> Iterator[Density]:
    """Yield the densities that enter the outputs, once for each way in; `value` gives variables that are known.

    Ways that differ in their scales alone go on as one: else they would double at each sum of two that come from one.
    """
    open_: dict[Any, dict[Place, tuple[float | None, float]]] = collections.defaultdict(dict)

    def add(place: Place) -> None:
        if isinstance(place.atom, Literal) or not walk.is_read(place.atom):
            return
        key = place._replace(scale=0.0, units=0.0)
        scale, units = open_[place.atom].get(key, (0.0, 0.0))
        both = None if scale is None or place.scale is None else scale + place.scale
        open_[place.atom][key] = (both, units + place.units)

    for name, atom in outputs.items():
        add(root(atom, name))
    for eqn in reversed(walk.jaxpr.eqns):
        for out in eqn.outvars:
            for key, (scale, units) in open_.pop(out, {}).items():
                place = key._replace(scale=scale, units=units)
                aval: Any = out.aval
                own = [axis for axis, size in zip(place.axes, aval.shape, strict=True) if size > 1]
                times = math.prod(size for axis, size in enumerate(place.region) if axis not in own)
                if is_log_prob(eqn) or (times > 1 and not place.summed and _is_sum(eqn, walk)):
                    yield Density(eqn, place, aval.size, times)
                elif not is_library(eqn):
                    for before in _behind(eqn, place, walk, value):
                        add(before)


def _is_sum(eqn: Any, walk: Walk) -> bool:
    """Tell whether an equation sums densities, which may be masked, weighed or mixed."""
    name = eqn.primitive.name
    if name == "scan":
        return any(is_log_prob(inner) for inner in eqn.params["jaxpr"].jaxpr.eqns)
    return name in ("reduce_sum", "dot_general") and any(_is_density(atom, walk) for atom in eqn.invars)


def _is_density(atom: Any, walk: Walk) -> bool:
    todo, seen = [atom], set()
    while todo:
        eqn = walk.maker(todo.pop())
        if eqn is None or id(eqn) in seen:
            continue
        if is_log_prob(eqn):
            return True
        seen.add(id(eqn))
        todo += eqn.invars if eqn.primitive.name in _BEHIND else []
    return False


def _behind(eqn: Any, place: Place, walk: Walk, value: Callable[[Any], np.ndarray | None]) -> list[Place]:
    """Return the places of what an equation adds up; nothing where it does something else."""
    name = eqn.primitive.name
    if name in ADDITIONS:
        signs = {"neg": [-1.0], "sub": [1.0, -1.0]}.get(name, [1.0, 1.0])
        below = len(place.masks) if len(eqn.invars) > 1 else place.below
        parts = zip(eqn.invars, signs, strict=True)
        return [
            _at(place, atom)._replace(scale=_times(place.scale, sign), units=sign * place.units, below=below)
            for atom, sign in parts
        ]
    if name in ("mul", "div"):
        return _scaled(eqn, place, walk, value)
    if name == "select_n":
        return _chosen(eqn, place, walk, value)
    if name in ("max", "min", "clamp"):
        read = [atom for atom in eqn.invars if walk.is_read(atom)]
        return [_at(place, read[0])._replace(cut=True)] if len(read) == 1 else []
    if name in _MOVED:
        axes = axes_before(eqn) if name != "rev" else {a: a for a in range(len(place.axes))}
        if axes is None:
            return [root(eqn.invars[0], place.output, place)]
        moved: list[int | None] = [None] * eqn.invars[0].aval.ndim
        for out, before in axes.items():
            moved[before] = place.axes[out]
        return [place._replace(atom=eqn.invars[0], axes=tuple(moved))]
    if name == "reduce_sum":
        (atom,) = eqn.invars
        size, start = eqn.outvars[0].aval.size, root(atom, place.output, place)
        # a single number was not cut itself
        cut = (start.cut and size > 1) or bool(place.masks)
        return [start._replace(summed=place.summed or atom.aval.size > size, cut=cut)]
    return _joined(eqn, place)


def _joined(eqn: Any, place: Place) -> list[Place]:
    """Return the places of what is put beside each other, or into parts of another array."""
    name = eqn.primitive.name
    if name == "concatenate":
        axis = place.axes[eqn.params["dimension"]]
        return [_narrowed(place, atom, [axis]) for atom in eqn.invars]
    if name == "stack":
        at = eqn.params["axis"]
        axis, rest = place.axes[at], (*place.axes[:at], *place.axes[at + 1 :])
        region = tuple(1 if k == axis else size for k, size in enumerate(place.region))
        return [place._replace(atom=atom, axes=rest, region=region) for atom in eqn.invars]
    if name == "tile":
        pairs = zip(place.axes, eqn.params["reps"], eqn.invars[0].aval.shape, strict=True)
        parts = [(None if reps > 1 else axis, reps > 1 and size > 1) for axis, reps, size in pairs]
        return (
            []
            if any(again for _, again in parts)
            else [place._replace(atom=eqn.invars[0], axes=tuple(axis for axis, _ in parts))]
        )
    if name in ("gather", "sort") and eqn.outvars[0].aval.size > 1:
        return [root(eqn.invars[0], place.output, place)._replace(chosen=True, cut=True)]
    if name == "split":
        return [place._replace(atom=eqn.invars[0], cut=True)]
    if name in ("pad", "slice"):
        cut = place._replace(cut=place.cut or name == "slice")
        return [_narrowed(cut, eqn.invars[0], place.axes if name == "pad" else [])]
    if name == "scatter-add":
        return [place._replace(atom=eqn.invars[0]), root(eqn.invars[2], place.output, place)]
    return []


def _narrowed(place: Place, atom: Any, axes: Any) -> Place:
    """Return the place of a part of an array, shorter along these axes of the region; slices leave the region as it is."""
    region = list(place.region)
    for axis, size in zip(place.axes, atom.aval.shape, strict=True):
        if axis is not None and axis in axes:
            region[axis] = size
    return place._replace(atom=atom, region=tuple(region))


def _at(place: Place, atom: Any) -> Place:
    # a literal, or a number beside an array
    return place._replace(atom=atom, axes=place.axes if atom.aval.ndim == len(place.axes) else (None,) * atom.aval.ndim)


def _scaled(eqn: Any, place: Place, walk: Walk, value: Callable[[Any], np.ndarray | None]) -> list[Place]:
    read = [walk.is_read(atom) for atom in eqn.invars]
    if sum(read) != 1 or (eqn.primitive.name == "div" and read[1]):
        return []
    atom, by = eqn.invars if read[0] else reversed(eqn.invars)
    axes = _varies(by, place, walk)
    if axes:
        mask = Mask(by, place.axes, axes, 1)
        return [_at(place, atom)._replace(masks=(*place.masks, mask), scale=None, units=0.0)]
    number = value(by)
    factor = None if number is None or not number.size else float(np.ravel(number)[0])
    if factor is not None and eqn.primitive.name == "div":
        factor = 1 / factor if factor else None
    units = place.units * (factor or 0.0) if factor in (1.0, -1.0) else 0.0
    return [_at(place, atom)._replace(scale=_times(place.scale, factor), units=units)]


def _chosen(eqn: Any, place: Place, walk: Walk, value: Callable[[Any], np.ndarray | None]) -> list[Place]:
    """Return the places of the cases of a choice; where zero stands in one of two, or log 0, the other is masked."""
    which, *cases = eqn.invars
    if walk.is_read(which):
        # what is not finite is replaced
        read = [case for case in cases if walk.is_read(case)]
        return [_at(place, read[0])._replace(cut=True)] if len(read) == 1 and _asks_if_finite(which, walk) else []
    axes, along = _varies(which, place, walk), place.axes if which.aval.ndim else ()
    used = [k for k, case in enumerate(cases) if not (walk.is_zero(case) or _is_log_of_zero(case, walk, value))]
    found = []
    for k in used:
        mask = Mask(
            None if isinstance(which, Literal) else which,
            along,
            axes,
            k,
            (id(eqn), k, len(used)) if len(used) > 1 else None,
        )
        found.append(_at(place, cases[k])._replace(masks=(*place.masks, mask)))
    return found


def _asks_if_finite(atom: Any, walk: Walk) -> bool:
    eqn = walk.maker(atom)
    if eqn is None:
        return False
    if eqn.primitive.name in ("not", "convert_element_type"):
        return _asks_if_finite(eqn.invars[0], walk)
    others = [part for part in eqn.invars if not walk.is_read(part)]
    is_limit = len(others) == 1 and isinstance(others[0], Literal) and np.isinf(others[0].val)
    is_itself = len(eqn.invars) == 2 and eqn.invars[0] is eqn.invars[1]
    return eqn.primitive.name == "is_finite" or (eqn.primitive.name in ("eq", "ne") and (is_limit or is_itself))


def _is_log_of_zero(atom: Any, walk: Walk, value: Callable[[Any], np.ndarray | None]) -> bool:
    number = None if walk.is_read(atom) else value(atom)
    return number is not None and number.size > 0 and bool(np.all(number < _LOG_OF_ZERO))


def _varies(atom: Any, place: Place, walk: Walk) -> tuple[int, ...]:
    """Return the axes of the region along which a mask, or a weight, varies: not those along which it was repeated."""
    axes = dict(enumerate(place.axes)) if not isinstance(atom, Literal) and atom.aval.ndim == len(place.axes) else {}
    while (eqn := walk.maker(atom)) is not None and eqn.primitive.name in (
        "broadcast_in_dim",
        "convert_element_type",
        "reshape",
        "squeeze",
    ):
        before = axes_before(eqn)
        if before is None:
            break
        axes = {k: axes[out] for out, k in before.items() if out in axes}
        atom = eqn.invars[0]
    shape = atom.aval.shape
    return tuple(axis for k, axis in axes.items() if axis is not None and shape[k] > 1)


def _times(scale: float | None, by: float | None) -> float | None:
    return None if scale is None or by is None else scale * by
