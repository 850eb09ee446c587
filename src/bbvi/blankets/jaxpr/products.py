"""The sides of a dot product, arranged so that one can be multiplied with the other."""

from typing import Any

from bbvi.blankets.jaxpr.primitives import dot_axes


def along_common_axes(eqn: Any, sides: list[Any]) -> list[Any]:
    """Give both sides of a `dot_general` the axes of their product: shared, left, right, summed; 1 long where one has none.

    Further axes of a side, such as that of samples, stay behind.
    """
    (_, left, _), (_, right, _) = axes = dot_axes(eqn)
    ones: Any = ([], [1] * len(right)), ([1] * len(left), [])
    arranged = []
    for side, (shared, own, summed), (before, behind) in zip(sides, axes, ones, strict=True):
        further = range(len(shared) + len(own) + len(summed), side.ndim)
        sizes = [[side.shape[axis] for axis in part] for part in (shared, own, (*summed, *further))]
        ordered = side.transpose([*shared, *own, *summed, *further])
        arranged.append(ordered.reshape([*sizes[0], *before, *sizes[1], *behind, *sizes[2]]))
    return arranged
