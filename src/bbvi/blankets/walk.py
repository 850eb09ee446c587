"""Section 3.1: the walk from an output back through the sums that lead to it, to the arrays it is the sum of.

It goes through additions, sums over axes, moves of data, scalings and masks.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal

from bbvi.blankets.jaxpr.integers import Integers, Ranges, is_whole
from bbvi.blankets.jaxpr.lines import is_library, line_of
from bbvi.blankets.jaxpr.primitives import ADDITIONS, REARRANGED, num_summed

# each scale or mask may meet a sum of two: what is under more of them stays whole, lest the pieces double without end
_MOST_SCALES = 3
_SUMMED = REARRANGED | {"broadcast_in_dim", "neg", "reduce_sum"}
_ARITHMETIC = ADDITIONS | {"mul", "reduce_sum"}
_TYPES = (jnp.float32, jnp.float64, jnp.int32, jnp.int64)


class By(NamedTuple):
    """What multiplies, divides or masks an array of terms: axis k of `atom`, those of size 1 aside, is `axes[k]`."""

    kind: str
    atom: Any
    axes: tuple[int, ...]


class Term(NamedTuple):
    """An array of terms: `number` times `atom`, under each of `by`, the last first."""

    atom: Any
    number: float
    by: tuple[By, ...]

    @property
    def atoms(self) -> list[Any]:
        return [self.atom, *(b.atom for b in self.by)]

    def compute(self, values: list[Any]) -> Any:
        value, *others = values
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            value = jnp.asarray(value, float)
        for b, other in reversed(list(zip(self.by, others, strict=True))):
            value = _under(b, value, other)
        return value if self.number == 1 else self.number * value


def computed(terms: Iterable[Term], values: Iterator[Any]) -> list[Any]:
    """Compute arrays of terms from the values of all their atoms, in order."""
    return [term.compute([next(values) for _ in term.atoms]) for term in terms]


class Walk:
    """The walk from an output back to the arrays of terms it is the sum of; `ranges` has those of inputs that are known."""

    def __init__(self, jaxpr: Jaxpr, latents: list[Any], ranges: Ranges | None = None, *, elementwise: bool = False):
        self.jaxpr, self.elementwise = jaxpr, elementwise
        self._integers = Integers(jaxpr, ranges or {})
        #: the lines of sums of integers that stay whole
        self.may_wrap: dict[str, None] = {}
        self._makers = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
        #: which of the latents each variable reads, as whole arrays
        self.leaves: dict[Any, frozenset[Any]] = {v: frozenset([v]) for v in latents}
        self._with_sums: set[Any] = set()
        for eqn in jaxpr.eqns:
            read = frozenset[Any]().union(*(self.leaves.get(a, ()) for a in eqn.invars if not isinstance(a, Literal)))
            self.leaves.update((v, read) for v in eqn.outvars if read)
            if read and self._has_sum(eqn):
                self._with_sums.update(eqn.outvars)

    def is_read(self, atom: Any) -> bool:
        return not isinstance(atom, Literal) and atom in self.leaves

    def enters(self, piece: Term) -> bool:
        """Whether any latent enters an array of terms."""
        return any(map(self.is_read, piece.atoms))

    def maker(self, atom: Any) -> Any:
        """The equation that makes a variable; None for inputs and literals."""
        return None if isinstance(atom, Literal) else self._makers.get(atom)

    def pieces(self, output: Any) -> list[Term]:
        open_: dict[tuple[Any, tuple[By, ...]], float] = collections.defaultdict(float)
        found: list[Term] = []

        def add(piece: Term) -> None:
            if self.is_read(piece.atom):
                open_[piece.atom, piece.by] += piece.number
            else:
                found.append(piece)

        add(Term(output, 1.0, ()))
        for eqn in reversed(self.jaxpr.eqns):
            for atom, by in [key for key in open_ if key[0] in eqn.outvars]:
                piece = Term(atom, open_.pop((atom, by)), by)
                parts = self.open(eqn, piece)
                found += [piece] if parts is None else []
                for part in parts or []:
                    add(part)
        found += [Term(atom, number, by) for (atom, by), number in open_.items()]
        order = {v: k for k, eqn in enumerate(self.jaxpr.eqns) for v in eqn.outvars}
        return sorted(found, key=lambda piece: -1 if isinstance(piece.atom, Literal) else order.get(piece.atom, -1))

    def open(self, eqn: Any, piece: Term) -> list[Term] | None:
        """The pieces whose sums add up to that of this one; None where it is an array of terms itself."""
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        if out.dtype not in _TYPES:
            return None  # in other types a sum may wrap around, or be rounded too much to be taken apart
        if name in _ARITHMETIC and is_whole(out) and not self._integers.is_exact(eqn):
            if name == "reduce_sum":
                self.may_wrap[line_of(eqn.source_info)] = None
            return None
        if len(piece.by) > _MOST_SCALES and name in ("mul", "div", "select_n"):
            return None
        if self.elementwise and (name not in ADDITIONS or any(atom.aval.shape != out.shape for atom in eqn.invars)):
            return None
        if name == "convert_element_type" and not _is_exact(eqn.invars[0].aval, out):
            return None
        if name == "broadcast_in_dim":
            piece = piece._replace(number=piece.number * (out.size / max(1, eqn.invars[0].aval.size)))
        if name in ("reduce_sum", "broadcast_in_dim") or name in REARRANGED:
            return _through(piece, eqn.invars[0], axes_before(eqn))
        if name in ADDITIONS:
            return self._added(eqn, piece)
        if name == "mul" or (name == "div" and jnp.issubdtype(out.dtype, jnp.floating)):
            return self._scaled(eqn, piece)
        return self._masked(eqn, piece) if name == "select_n" else None

    def _added(self, eqn: Any, piece: Term) -> list[Term] | None:
        name, out = eqn.primitive.name, eqn.outvars[0].aval
        if any(b.axes for b in piece.by) and any(a.aval.shape != out.shape for a in eqn.invars):
            return None
        if name != "neg" and out.shape != () and self._is_one_density(eqn):
            return None
        signs = {"neg": [-1.0], "sub": [1.0, -1.0]}.get(name, [1.0, 1.0])
        repeated = [out.size / max(1, atom.aval.size) for atom in eqn.invars]
        parts = zip(eqn.invars, signs, repeated, strict=True)
        return [piece._replace(atom=atom, number=piece.number * sign * times) for atom, sign, times in parts]

    def _is_one_density(self, eqn: Any) -> bool:
        """Whether two arrays are added inside of one density: its parts often cancel, so it stays whole.

        That is so inside of a library's density; and where one part reads no other latents than the other does,
        unless both are a library's densities.
        """
        left, right = (frozenset() if isinstance(a, Literal) else self.leaves.get(a, frozenset()) for a in eqn.invars)
        if not left or not right:
            return False
        nested = left <= right or right <= left
        return is_library(eqn) or (nested and not all(self.is_density(a, _SUMMED) for a in eqn.invars))

    def is_density(self, atom: Any, through: Iterable[str]) -> bool:
        """Tell whether a library's density made this array, with no more than these operations behind it."""
        todo = [atom]
        while todo:
            eqn = self.maker(todo.pop())
            if eqn is not None and is_library(eqn):
                return True
            todo += eqn.invars if eqn is not None and eqn.primitive.name in through else []
        return False

    def _scaled(self, eqn: Any, piece: Term) -> list[Term] | None:
        """Go on into one side of a product or quotient, and leave the other as a scale of what is found there."""
        name, (left, right) = eqn.primitive.name, eqn.invars
        if self.is_read(left) and self.is_read(right):
            if self._sums(left) == self._sums(right) or (name == "div" and self._sums(right)):
                return None
            left, right = (right, left) if self._sums(right) else (left, right)
        elif name == "mul" and self.is_read(right):
            left, right = right, left
        elif self.is_read(right):
            return None
        if left.aval.shape != eqn.outvars[0].aval.shape:
            return None
        if isinstance(right, Literal) and np.ndim(right.val) == 0:
            number = float(right.val)
            if number == 0:
                return None
            return [piece._replace(atom=left, number=piece.number * (number if name == "mul" else 1 / number))]
        return [piece._replace(atom=left, by=(*piece.by, By(name, right, _axes(right.aval))))]

    def _masked(self, eqn: Any, piece: Term) -> list[Term] | None:
        """Go on into what a mask keeps, where it puts zero for the rest."""
        mask, *cases = eqn.invars
        kept = [(kind, case) for kind, case in zip(("drop", "keep"), cases, strict=False) if not self.is_zero(case)]
        if len(cases) != 2 or isinstance(mask, Literal) or len(kept) != 1:
            return None
        ((kind, case),) = kept
        return [piece._replace(atom=case, by=(*piece.by, By(kind, mask, _axes(mask.aval))))]

    def is_zero(self, atom: Any) -> bool:
        if isinstance(atom, Literal):
            return bool(np.all(np.asarray(atom.val) == 0))
        eqn = self.maker(atom)
        moves = ("broadcast_in_dim", "convert_element_type", "reshape")
        return eqn is not None and eqn.primitive.name in moves and self.is_zero(eqn.invars[0])

    def _sums(self, atom: Any) -> bool:
        """Whether the walk would find a sum over axes behind this, not counting sums of arrays element by element."""
        return not isinstance(atom, Literal) and atom in self._with_sums

    def _has_sum(self, eqn: Any) -> bool:
        name = eqn.primitive.name
        if name == "reduce_sum":
            return eqn.invars[0].aval.size > eqn.outvars[0].aval.size
        if name == "dot_general":
            return can_open_dot(eqn, self.is_read)
        if name in REARRANGED or name in ("neg", "mul", "div", "broadcast_in_dim"):
            return any(map(self._sums, eqn.invars))
        return name in ("add", "sub") and eqn.outvars[0].aval.size == 1 and any(map(self._sums, eqn.invars))


def can_open_dot(eqn: Any, is_read: Callable[[Any], bool]) -> bool:
    """Whether a product is no larger, before its sum is taken, than what it is made of."""
    left, right, out = (atom.aval for atom in (*eqn.invars, *eqn.outvars))
    sizes = [atom.aval.size for atom in eqn.invars if is_read(atom)]
    return left.dtype == right.dtype == out.dtype in _TYPES and out.size * num_summed(eqn) <= max([out.size, *sizes])


def _through(piece: Term, before: Any, axes: dict[int, int] | None) -> list[Term] | None:
    """The piece one move of data earlier; `axes` tells where each axis of what came out was before."""
    by = []
    for b in piece.by:
        if b.axes and (axes is None or any(axis not in axes for axis in b.axes)):
            return None
        by.append(b._replace(axes=tuple(axes[axis] for axis in b.axes) if axes else ()))
    return [piece._replace(atom=before, by=tuple(by))]


def axes_before(eqn: Any) -> dict[int, int] | None:
    """Which axis of the input each axis of the output was; None where that cannot be said."""
    name, before, out = eqn.primitive.name, eqn.invars[0].aval, eqn.outvars[0].aval
    if name == "reduce_sum":
        return dict(enumerate(a for a in range(before.ndim) if a not in eqn.params["axes"]))
    if name == "transpose":
        return dict(enumerate(eqn.params["permutation"]))
    if name == "broadcast_in_dim":
        dimensions = eqn.params["broadcast_dimensions"]
        return {d: a for a, d in enumerate(dimensions) if before.shape[a] == out.shape[d]}
    if name in ("reshape", "squeeze", "expand_dims"):
        long = [[a for a, s in enumerate(shape) if s != 1] for shape in (out.shape, before.shape)]
        same = [out.shape[a] for a in long[0]] == [before.shape[a] for a in long[1]]
        return dict(zip(*long, strict=True)) if same else None
    return None if name == "rev" else {a: a for a in range(out.ndim)}


def _axes(aval: Any) -> tuple[int, ...]:
    return tuple(axis for axis, size in enumerate(aval.shape) if size != 1)


def _under(b: By, value: Any, other: Any) -> Any:
    in_order = jnp.transpose(jnp.squeeze(other), np.argsort(b.axes).tolist()) if b.axes else jnp.reshape(other, ())
    other = jax.lax.broadcast_in_dim(in_order, jnp.shape(value), sorted(b.axes))
    if b.kind == "mul":
        return value * other
    if b.kind == "div":
        return value / other
    return jnp.where(other, value, 0) if b.kind == "keep" else jnp.where(other, 0, value)


def _is_exact(before: Any, after: Any) -> bool:
    """Whether the sum over all elements is the same before and after a change of type."""
    if jnp.issubdtype(before.dtype, jnp.floating):
        return bool(jnp.issubdtype(after.dtype, jnp.floating))
    wide = before.dtype in (jnp.int32, jnp.int64) and after.dtype.itemsize >= before.dtype.itemsize
    return wide and bool(jnp.issubdtype(after.dtype, jnp.signedinteger) or jnp.issubdtype(after.dtype, jnp.floating))
