"""What a posterior hands out: ragged arrays that know their groups' lengths, and tables that refuse nonsense."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array


class _Lengths:
    """Groups' lengths and the axes they belong to, compared by identity so that they can ride in a tree."""

    def __init__(self, own: dict[int, np.ndarray]):
        self.own = own


@jax.tree_util.register_pytree_node_class
class Ragged:
    """Values of a local latent whose groups differ in length: `values[i]` is group i at its own length.

    `padded` is the array with every group padded to the longest, groups on axis `group_axis`.
    """

    def __init__(self, padded: Array, lengths: _Lengths, group_axis: int):
        self.padded, self._lengths, self._group_axis = padded, lengths, group_axis

    @classmethod
    def of(cls, padded: Array, own: dict[int, np.ndarray], group_axis: int) -> "Ragged":
        """`own` maps an axis, counted from the one after the groups, to each group's length."""
        return cls(padded, _Lengths(own), group_axis)

    def __len__(self) -> int:
        return self.padded.shape[self._group_axis]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, group: int) -> Array:
        if not -len(self) <= group < len(self):
            raise IndexError(f"group {group} of {len(self)}")
        own = {self._group_axis + axis: slice(0, int(length[group])) for axis, length in self._lengths.own.items()}
        cut = tuple(own.get(axis, slice(None)) for axis in range(self.padded.ndim - 1))
        return np.take(np.asarray(self.padded), group, axis=self._group_axis)[cut]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} groups, padded shape {self.padded.shape})"

    def tree_flatten(self):
        return (self.padded,), (self._lengths, self._group_axis)

    @classmethod
    def tree_unflatten(cls, auxiliary, children):
        return cls(children[0], *auxiliary)


class Table(dict):
    """A dict by latent in which some latents are refused, with the reason."""

    def __init__(self, values: dict[str, Any], refused: dict[str, str]):
        super().__init__(values)
        self._refused = refused

    def __missing__(self, name: str) -> Any:
        if name in self._refused:
            raise TypeError(self._refused[name])
        raise KeyError(f"no latent {name!r}; there are {sorted([*self, *self._refused])}")
