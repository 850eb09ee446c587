"""Refuse a log joint that counts a density several times because a sum was forgotten.

`Normal(0, 1).log_prob(w) + loglik.sum()` has the shape of w, and its total has the likelihood as often as w has elements. What
is added to several elements of an array, as a single number or along an axis, is meant where it is part of one density, as log sigma is; not where it is a
library's density, or a sum of such. Of densities written by hand nobody can tell.

What is meant, too: what is chosen for each element (`jnp.where(label == 1, log_p, log_q)`), what is added to a single one by a mask that is known, and what
is counted in a sum that the user takes.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.inline import retrace
from bbvi.blankets.jaxpr.lines import line_of
from bbvi.blankets.jaxpr.run import reached, run
from bbvi.blankets.opening import open_branches, open_map
from bbvi.blankets.repeats import Density, Mask, Place, densities
from bbvi.blankets.trace import Trace
from bbvi.blankets.walk import Walk

_MOST_PASSES = 10
#: above this size masks are not looked at
_MOST_NUMBERS = 1 << 22
_REMEDY = (
    "Sum the array before you add to it, for example .log_prob(w).sum(), or return the parts as a dict of terms. If it is "
    "meant to count so often, return the sum of the whole"
)


def refuse_forgotten_sums(trace: Trace, known: Sequence[Any] | None = None) -> None:
    """Raise if a returned array has a library's density, or a sum of such, added to each of its elements.

    `known` are the arrays of the data, if the function always sees these.
    """
    closed = _opened(trace.inlined)
    latents = closed.jaxpr.invars[: len(trace.names)]
    walk = Walk(closed.jaxpr, latents)
    value = _values(closed, len(latents), known)
    outputs = dict(zip(trace.outputs, closed.jaxpr.outvars, strict=True))
    found = list(densities(walk, outputs, value))
    by_density = collections.defaultdict(list)
    for density in found:
        by_density[density.eqn.outvars[0]].append(density)
    for ways in by_density.values():
        for density in ways:
            times = _times(density, ways, found, walk, value)
            if times > 1:
                _refuse(density, times, trace, walk)
        net = sum(_units(density) for density in ways)
        if abs(net) > 1.5:
            _refuse(ways[0], round(abs(net)), trace, walk)


def _refuse(density: Density, times: int, trace: Trace, walk: Walk) -> None:
    eqn, place = density.eqn, density.place
    names = dict(zip(walk.jaxpr.invars, trace.names, strict=False))
    read = ", ".join(repr(name) for v, name in names.items() if v in walk.leaves[eqn.outvars[0]])
    at = f" ({line_of(eqn.source_info)})".replace(" ()", "")
    what = f"{'a single number' if density.own == 1 else f'an array of {density.own} numbers'} that reads {read}{at}"
    if density.times == 1:
        said = f"{what} is added up {times} times, in {place.output} or there and elsewhere: log p would count it {times} times. "
        raise ValueError(said + "Return each part of log p once")
    shape = f"{place.output} is an array of shape {trace.closed.out_avals[trace.outputs.index(place.output)].shape}"
    to = "each of its elements" if density.own == 1 else f"{density.times} of its elements each"
    raise ValueError(f"{shape}, and {what} is added to {to}: log p would count it {times} times. {_REMEDY}")


def _units(density: Density) -> float:
    """Count how often a density enters log p as it is, whole, this way; 0 where it is not known what it counts."""
    place = density.place
    whole = density.own == 1 or not place.cut
    return place.units if density.times == 1 and not place.masks and whole else 0.0


def _times(density: Density, ways: list[Density], found: list[Density], walk: Walk, value: Callable[[Any], Any]) -> int:
    """Count how often each number of a density is added by mistake this way; at most once if it is not, or if nobody can tell."""
    place = density.place
    shape = density.eqn.outvars[0].aval.shape
    own = [axis for axis, size in zip(place.axes, shape, strict=True) if size > 1 and axis is not None]
    missing = {axis for axis, size in enumerate(place.region) if size > 1 and axis not in own}
    if density.times == 1 or place.summed or (own and place.chosen) or _is_shared_out(density):
        return 1
    masks = [(mask, k < place.below) for k, mask in enumerate(place.masks) if missing & set(mask.axes)]
    if any(not is_above for _, is_above in masks):
        return 1  # spread by the mask itself, or chosen
    for mask, _ in masks:
        if mask.choice and not _in_all_cases(mask, density, found, walk):
            return 1
        if not mask.choice and _has_alternative(mask, density, found, value):
            return 1
    keeps = np.ones([1] * len(place.region), bool)
    for mask, _ in masks:
        own_marks = None if mask.choice else _kept(mask, place, value(mask.atom))
        if own_marks is None and _may_select(mask, own, walk):
            return 1
        keeps = keeps & (True if own_marks is None else own_marks)
    marks = np.broadcast_to(keeps, place.region)
    if own and marks.sum(tuple(own)).max() <= 1:
        return 1  # one of them is selected everywhere
    return int(marks.sum(tuple(missing)).max())


def _is_shared_out(density: Density) -> bool:
    """Tell whether a number was divided by how many elements it is added to."""
    scale = density.place.scale
    return scale is not None and math.isclose(abs(scale) * density.times, 1, rel_tol=1e-3)


def _in_all_cases(mask: Mask, density: Density, found: list[Density], walk: Walk) -> bool:
    """Tell whether a density stands in all cases of a choice, computed once or anew."""
    assert mask.choice is not None
    eqn, _, num = mask.choice
    in_case: dict[int, list[Any]] = collections.defaultdict(list)
    for other in found:
        for its in other.place.masks:
            if its.choice and its.choice[0] == eqn:
                in_case[its.choice[1]].append(other.eqn.outvars[0])
    own = density.eqn.outvars[0]
    return len(in_case) == num and all(
        any(_same_value(own, atom, walk) for atom in atoms) for atoms in in_case.values()
    )


def _has_alternative(mask: Mask, density: Density, found: list[Density], value: Callable[[Any], Any]) -> bool:
    """Tell whether something else is kept by a mask that is of the same output and keeps nothing of what this one keeps."""
    own = _kept(mask, density.place, value(mask.atom))
    for other in found:
        if other.place.output != density.place.output or other.place.region != density.place.region:
            continue
        for its in other.place.masks:
            if its.choice or its.axes != mask.axes:
                continue
            marks = _kept(its, other.place, value(its.atom))
            if (own is None) != (marks is None):
                continue
            same = its.atom is mask.atom and its.keeps == mask.keeps
            if not same if own is None else not (own & marks).any():
                return True
    return False


def _may_select(mask: Mask, own: list[int], walk: Walk) -> bool:
    """Tell whether a mask that is not known may choose one of several numbers everywhere: one of data that are bits says what was seen."""
    atom, aval = mask.atom, mask.atom.aval
    while (eqn := walk.maker(atom)) is not None and eqn.primitive.name in (
        "convert_element_type",
        "broadcast_in_dim",
        "reshape",
    ):
        atom, aval = eqn.invars[0], eqn.invars[0].aval
    is_seen = walk.maker(atom) is None and aval.dtype == bool
    return bool(own) and set(own) <= set(mask.axes) and not is_seen


def _kept(mask: Mask, place: Place, number: np.ndarray | None) -> np.ndarray | None:
    """Mark which elements of the region of a place a mask keeps, with size 1 along axes that it does not have; None if unknown."""
    if number is None or number.size > _MOST_NUMBERS:
        return None
    along = [(axis, k) for k, axis in enumerate(mask.along) if axis is not None and number.shape[k] > 1]
    if any(number.shape[k] != place.region[axis] for axis, k in along):
        return None  # of a part of it
    order = sorted(range(len(along)), key=lambda i: along[i][0])
    flat = np.transpose(np.squeeze(number), order) if number.size > 1 else np.ravel(number)[0]
    shape = [1] * len(place.region)
    for axis, k in along:
        shape[axis] = number.shape[k]
    return ((np.asarray(flat) != 0) == bool(mask.keeps)).reshape(shape)


def _same_value(one: Any, other: Any, walk: Walk) -> bool:
    """Tell whether two variables are computed from the same ones in the same way."""
    todo, seen = [(one, other)], set()
    while todo:
        a, b = todo.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        seen.add((id(a), id(b)))
        if isinstance(a, Literal) and isinstance(b, Literal) and np.array_equal(a.val, b.val):
            continue
        first, second = walk.maker(a), walk.maker(b)
        if first is None or second is None or first.primitive is not second.primitive:
            return False
        if first.outvars.index(a) != second.outvars.index(b) or str(first.params) != str(second.params):
            return False
        if len(first.invars) != len(second.invars):
            return False
        todo += zip(first.invars, second.invars, strict=True)
    return True


def _opened(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Write branches as choices between their results, and loops whose steps are apart as one step for all."""
    for _ in range(_MOST_PASSES):
        rewrites = {}
        for eqn in closed.jaxpr.eqns:
            opened = open_branches if eqn.primitive.name == "cond" else open_map(eqn)
            if opened is not None and eqn.outvars:
                rewrites[eqn.outvars[0]] = opened
        if not rewrites:
            break
        closed = retrace(retrace(closed, rewrites), {})
    return closed


def _values(closed: ClosedJaxpr, num_latents: int, known: Sequence[Any] | None) -> Callable[[Any], np.ndarray | None]:
    """Return a function that computes what depends on constants, and data if these are known, alone; None for the rest."""
    jaxpr = closed.jaxpr
    unknown = reached(jaxpr, jaxpr.invars[:num_latents] if known is not None else jaxpr.invars)
    given = [*[None] * num_latents, *(known if known is not None else [None] * (len(jaxpr.invars) - num_latents))]
    found: dict[Any, np.ndarray] = {}

    def value(atom: Any) -> np.ndarray | None:
        if isinstance(atom, Literal):
            return np.asarray(atom.val)
        if atom in unknown:
            return None
        if atom not in found:
            found[atom] = np.asarray(run(closed, given, [atom])[0])
        return found[atom]

    return value
