"""Section 3.1: the densities of single observations, read off the likelihood's trace by undoing its last sums."""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from bbvi.blankets.jaxpr.run import reached, run
from bbvi.blankets.trace import Trace
from bbvi.blankets.walk import Walk

_MOVES = {"convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "copy"}
_DENSITY = {*_MOVES, "select_n", "mul", "neg", "reduce_sum"}


class Pointwise:
    """The outputs of a trace with the sums undone that lead to them: an array with one number for each observation.

    Arrays of one shape that are added in one output are of the same observations; a constant is spread evenly over them. An output
    that does not fall apart so stays whole. `masks` tells which elements a `where` over the data leaves in place.
    Of a likelihood, or of `names` among the outputs, all is taken. With `densities` the outputs are not the likelihood's alone: of a
    number, what libraries' densities make of the data is taken, and of arrays those that read data.
    """

    def __init__(self, trace: Trace, *, names: Sequence[str] | None = None, densities: bool = False):
        self._trace, jaxpr = trace, trace.inlined.jaxpr
        self._walk = Walk(jaxpr, jaxpr.invars[: len(trace.names)])
        self._data = reached(jaxpr, jaxpr.invars[len(trace.names) :])
        self._parts: dict[str, list[tuple[Any, float]]] = {}
        #: the outputs of which the likelihood could not be told apart
        self.refused: list[str] = []
        for name, output in zip(trace.outputs, jaxpr.outvars, strict=True):
            if (names is not None and name not in names) or (densities and not self.reads_data(output)):
                continue
            parts = self._peeled(output, 1.0)
            if densities and output.aval.shape == ():
                parts = [part for part in parts if self.reads_data(part[0])]
                if not all(a.aval.shape and self._walk.is_density(a, _DENSITY) for a, _ in parts):
                    self.refused.append(name)
                    continue
            if not self._is_pointwise(parts):
                # of a number that names itself the likelihood's, nothing can be told of its observations
                if densities or (names is not None and output.aval.shape == ()):
                    self.refused.append(name)
                    continue
                parts = [(output, 1.0)]
            self._parts[name] = parts

    @property
    def names(self) -> list[str]:
        """The outputs that have observations, in the order in which they are written."""
        return [name for name in self._trace.written if name in self._parts]

    def size(self) -> int:
        """Count the observations."""
        return sum(max(a.aval.size for a, _ in parts) for parts in self._parts.values())

    def reads_data(self, atom: Any) -> bool:
        """Whether an array of the data enters."""
        return not isinstance(atom, Literal) and atom in self._data

    def __call__(self, *arguments: Any) -> dict[str, Array]:
        """Evaluate at `(*latents, constants)`."""
        atoms = [atom for parts in self._parts.values() for atom, _ in parts]
        values, found = iter(self._run(arguments, atoms)), {}
        for name, parts in self._parts.items():
            arrays = [number * jnp.asarray(next(values)) for _, number in parts]
            largest = max(arrays, key=jnp.size)
            even = [a if a.shape == largest.shape else a / max(1, largest.size) for a in arrays]
            found[name] = sum(even[1:], even[0])
        return found

    def masks(self, *arguments: Any) -> dict[str, Array]:
        """Tell which elements are observations, which does not depend on the latents."""
        found = {}
        for name, parts in self._parts.items():
            largest = max((atom for atom, _ in parts), key=lambda atom: atom.aval.size)
            atoms = self._kept(largest)
            keep = jnp.ones(largest.aval.shape, bool)
            for (_, is_kept), value in zip(atoms, self._run(arguments, [atom for atom, _ in atoms]), strict=True):
                keep &= jnp.asarray(value, bool) == is_kept
            found[name] = keep
        return found

    def _run(self, arguments: Sequence[Any], atoms: list[Any]) -> list[Any]:
        *latents, constants = arguments
        return run(self._trace.inlined, self._trace.inputs(tuple(latents), constants), atoms)

    def _peeled(self, atom: Any, number: float) -> list[tuple[Any, float]]:
        """The arrays whose sums over all elements, by a number each, add up to this number."""
        eqn = self._walk.maker(atom)
        if eqn is None or atom.aval.shape != () or not jnp.issubdtype(atom.aval.dtype, jnp.floating):
            return [(atom, number)]
        name = eqn.primitive.name
        if name == "reduce_sum":
            return [(eqn.invars[0], number)]
        if name in _MOVES and eqn.invars[0].aval.shape == () and eqn.invars[0].aval.dtype == atom.aval.dtype:
            return self._peeled(eqn.invars[0], number)
        if name in ("add", "sub", "add_any"):
            left, right = eqn.invars
            return self._peeled(left, number) + self._peeled(right, -number if name == "sub" else number)
        if name == "neg":
            return self._peeled(eqn.invars[0], -number)
        if name == "mul":
            for factor, other in (eqn.invars, eqn.invars[::-1]):
                if isinstance(factor, Literal):
                    return self._peeled(other, number * float(factor.val))
        return [(atom, number)]

    def _is_pointwise(self, parts: list[tuple[Any, float]]) -> bool:
        """Whether all arrays have one shape, but for constants: a number that reads a latent is of no one observation."""
        largest = max((atom.aval for atom, _ in parts), key=lambda aval: aval.size)
        rest = [atom for atom, _ in parts if atom.aval.shape != largest.shape]
        return all(atom.aval.shape == () and not self._walk.is_read(atom) for atom in rest) and (
            any(self._walk.is_read(atom) for atom, _ in parts if atom.aval.shape == largest.shape)
        )

    def _kept(self, atom: Any) -> list[tuple[Any, bool]]:
        """The arrays of the data that mask this one, of its shape, and what each is where an element stays."""
        eqn, shape = self._walk.maker(atom), atom.aval.shape
        if eqn is None:
            return []
        fixed: Callable[[Any], bool] = lambda a: a.aval.shape == shape and not self._walk.is_read(a)  # noqa: E731
        if eqn.primitive.name == "select_n" and len(eqn.invars) == 3 and fixed(eqn.invars[0]):
            mask, *cases = eqn.invars
            for kept, other in ((True, cases[0]), (False, cases[1])):
                if self._walk.is_zero(other):
                    return [(mask, kept), *self._kept(cases[int(kept)])]
        if eqn.primitive.name == "mul":
            for mask, other in (eqn.invars, eqn.invars[::-1]):
                if not isinstance(mask, Literal) and fixed(mask) and self._is_boolean(mask):
                    return [(mask, True), *self._kept(other)]
        return []

    def _is_boolean(self, atom: Any) -> bool:
        eqn = self._walk.maker(atom)
        if atom.aval.dtype == jnp.bool_:
            return True
        return eqn is not None and eqn.primitive.name in _MOVES and self._is_boolean(eqn.invars[0])
