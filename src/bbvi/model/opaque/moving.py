"""Section 3.1 without a trace: which term elements change when one factor of q is moved.

Several random points are tried, since a value may be read at some and not at others. Where what is seen leaves
room for doubt, more is counted as read: that costs variance, never bias.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bbvi.model.latents import Latent
from bbvi.model.opaque.calls import Segment

_MOST_CALLS = 2000
_FEWEST_GROUPS = 3
_DECLARED_POINTS, _DECLARED_MOVES = 3, 20


class Slot(NamedTuple):
    """One latent among a function's arguments; `at` are the numbers of its factors of q over all of them."""

    name: str
    latent: Latent
    lengths: dict[str, int]
    at: slice

    def some(self, num: int, generator: np.random.Generator) -> np.ndarray:
        """Draw arbitrary values, `(num, *factors, *event)`."""
        with jax.ensure_compile_time_eval():
            return self.latent.some_values(self.lengths, num, generator)


class Term(NamedTuple):
    """One array of terms; `at` are the numbers of its elements over all of them."""

    name: str
    shape: tuple[int, ...]
    at: slice


class Probe(NamedTuple):
    """What can be moved, what is looked at, and how to call: `(calls, term elements)` from a segment.

    The latents are those of each argument of the function, and `slots` all of them.
    """

    latents: tuple[Mapping[str, Latent], ...]
    slots: list[Slot]
    terms: list[Term]
    rows: list[tuple[Any, ...]]
    same_lengths: bool
    call: Callable[[Segment], np.ndarray]
    seeds: np.ndarray | None

    @property
    def num_factors(self) -> int:
        return self.slots[-1].at.stop if self.slots else 0

    @property
    def num_elements(self) -> int:
        return self.terms[-1].at.stop


Point = Sequence[np.ndarray]


def one_after_another(shapes: Sequence[tuple[int, ...]]) -> list[slice]:
    """Number the elements of several arrays, one array after another."""
    ends = itertools.accumulate(map(math.prod, shapes))
    return [slice(end - math.prod(shape), end) for end, shape in zip(ends, shapes, strict=True)]


def find_slots(latents: tuple[Mapping[str, Latent], ...], lengths: dict[str, int]) -> list[Slot]:
    """Number the factors of q in the order in which JAX lists the leaves of the arguments."""
    named = [(name, part[name]) for part in latents for name in sorted(part)]
    numbers = one_after_another([latent.padded(lengths) for _, latent in named])
    return [Slot(name, latent, lengths, at) for (name, latent), at in zip(named, numbers, strict=True)]


def arguments(latents: tuple[Mapping[str, Latent], ...], values: Point) -> Any:
    """Arrange values of all slots as a function's arguments."""
    return jax.tree.unflatten(jax.tree.structure(latents), values)


def observe(probe: Probe, row: tuple[Any, ...], base: Point, other: Point, moves: np.ndarray) -> np.ndarray:
    """Evaluate the terms at `base`, then with each set of factors moved to `other`: `(1 + moves, term elements)`."""
    moves = np.concatenate([np.zeros((1, probe.num_factors), bool), moves])
    values = []
    for slot, one, two in zip(probe.slots, base, other, strict=True):
        shape = (*slot.latent.padded(slot.lengths), *[1] * len(slot.latent.event))
        values.append(np.where(moves[:, slot.at].reshape(-1, *shape), two, one))
    return probe.call(Segment(arguments(probe.latents, values), row, probe.seeds, len(moves)))


def changed(values: np.ndarray) -> np.ndarray:
    """Return which entries differ from the first row; NaN is the same as NaN."""
    return ~((values[1:] == values[0]) | (np.isnan(values[1:]) & np.isnan(values[0])))


def find(probe: Probe) -> np.ndarray:
    """Find which term elements read which factors of q: `(term elements, factors)`."""
    num_groups, points, tests = _plan(probe)
    if not points or probe.num_elements == 1 or not probe.slots:
        return np.ones((probe.num_elements, probe.num_factors), bool)
    generator = np.random.default_rng(0)
    informed, moving, differs = np.zeros(probe.num_elements, bool), np.array(False), np.array(False)
    unions: list[np.ndarray] = []
    for row in _spread(probe.rows, num_groups):
        union = np.zeros((probe.num_elements, probe.num_factors), bool)
        for _ in range(points):
            moves = _classes(probe, tests, generator) if tests else np.eye(probe.num_factors, dtype=bool)
            values = observe(probe, row, *_two_points(probe, generator), moves)
            # a term that is not finite hides what it reads: such a point tells nothing
            finite = np.isfinite(values[0])
            seen = (_decode(changed(values), moves) if tests else changed(values).T) & finite[:, None]
            moving = moving | _disagree(probe, union, seen, empty_counts=False)
            union |= seen
            informed |= finite
        unions.append(union)
        # groups of different lengths differ in which terms are masked, and that says nothing
        differs = differs | _disagree(probe, unions[0], union, empty_counts=probe.same_lengths)
    known = np.any(unions, axis=0)
    discrete = [slot for slot in probe.slots if slot.latent.family.chart.is_discrete]
    for t, term in enumerate(probe.terms):
        for s, slot in enumerate(probe.slots):
            of_term = known[term.at]
            # the elements read move with an integer, as in a look-up: those not seen yet may be read as well
            looked_up = moving[t, s] and any(of_term[:, d.at].any() for d in discrete)
            # globals that one group reads and another does not: an index in the data, which other groups have otherwise
            if looked_up or (s < len(probe.latents[0]) and differs[t, s]):
                of_term[:, slot.at] = True
    known[~informed] = True
    return known


def _plan(probe: Probe) -> tuple[int, int, int]:
    """Decide how many groups and points to look at, and how many sets of factors to move at each point.

    0 sets: move each factor alone. 0 points: there are too many factors to find out anything.
    """
    most, fewest = len(probe.rows), min(len(probe.rows), _FEWEST_GROUPS)
    with_three = [(num, 3) for num in range(most, fewest - 1, -1)]
    for num_groups, points in [(most, 5), (most, 4), *with_three, (fewest, 2)]:
        if num_groups * points * (probe.num_factors + 1) <= _MOST_CALLS:
            return num_groups, points, 0
    if any(slot.latent.family.chart.is_discrete for slot in probe.slots):
        # two moves of integers can cancel in a sum: sets of them would hide what is read
        return 0, 0, 0
    return num_groups, points, _MOST_CALLS // (num_groups * points) - 1


def _spread(rows: list[Any], num: int) -> list[Any]:
    return [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, num).astype(int))]


def _two_points(probe: Probe, generator: np.random.Generator) -> tuple[Point, Point]:
    """Draw two values of everything that differ in every factor, if some of a few random ones do."""
    base, other = [], []
    for slot in probe.slots:
        values = slot.some(8, generator)
        first, rest = values[0], values[1:]
        differs = (rest != first).any(tuple(range(-len(slot.latent.event), 0)), keepdims=True)
        base.append(first)
        other.append(np.take_along_axis(rest, differs.argmax(0)[None], 0)[0])
    return base, other


def _classes(probe: Probe, num: int, generator: np.random.Generator) -> np.ndarray:
    """Draw random sets of factors, from a half of them to a few, for functions with too many to move one by one."""
    most = max(1, int(np.log2(probe.num_factors)) - 1)
    share = 0.5 ** generator.integers(1, most, (num, 1), endpoint=True)
    return generator.random((num, probe.num_factors)) < share


def _decode(moved: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Rule out reads: a term that stayed the same reads nothing of the set that was moved; all others count as read."""
    return (~moved).T.astype(np.float32) @ moves.astype(np.float32) == 0


def _disagree(probe: Probe, one: np.ndarray, other: np.ndarray, *, empty_counts: bool) -> np.ndarray:
    """Tell for each term and latent whether an element was seen to read different factors; or, one time, none."""
    read = np.array([[seen[:, slot.at].any(1) for slot in probe.slots] for seen in (one != other, one, other)])
    differ = read[0] & (empty_counts | (read[1] & read[2]))
    return np.array([differ[:, term.at].any(1) for term in probe.terms])


def breach(probe: Probe, known: np.ndarray, values: np.ndarray, moves: np.ndarray) -> str | None:
    """Describe the first change that `known` does not allow, from what `observe` returned."""
    # float32 products are exact here: they count
    allowed = (moves.astype(np.float32) @ known.T.astype(np.float32)) > 0
    if not len(outside := np.argwhere(changed(values) & ~allowed)):
        return None
    move, element = (int(i) for i in outside[0])
    factor = int(np.flatnonzero(moves[move])[0])
    term = next(term for term in probe.terms if element < term.at.stop)
    slot = next(slot for slot in probe.slots if factor < slot.at.stop)
    was, now = float(values[0, element]), float(values[1 + move, element])
    return (
        f"{term.name}, element {element - term.at.start}, changed from {was} to {now} "
        f"with element {factor - slot.at.start} of latent {slot.name!r}"
    )


def check_declared(probe: Probe, known: np.ndarray) -> str | None:
    """Move whole latents and a few single factors; describe a change that was not declared, if there is one."""
    generator = np.random.default_rng(0)
    sizes = [slot.at.stop - slot.at.start for slot in probe.slots]
    whole = np.repeat(np.eye(len(sizes), dtype=bool), sizes, axis=1)
    for row in _spread(probe.rows, _FEWEST_GROUPS):
        for _ in range(_DECLARED_POINTS):
            moves = np.concatenate([whole, single_moves(probe, known, generator, _DECLARED_MOVES)])
            values = observe(probe, row, *_two_points(probe, generator), moves)
            if found := breach(probe, known, values, moves):
                return found
    return None


def single_moves(probe: Probe, known: np.ndarray, generator: np.random.Generator, num: int) -> np.ndarray:
    """Choose up to `num` moves of one factor that not every term reads."""
    factors = generator.permutation(np.flatnonzero(~known.all(0)))[:num]
    return factors[:, None] == np.arange(probe.num_factors)
