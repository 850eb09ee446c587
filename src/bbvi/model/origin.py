"""Where a model came from: what gives the draws of its latents back to the library it was written for."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array

Draws = Mapping[str, Array]


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """What a bridge knows of a model beyond log p; arrays of draws have the samples on their first axis.

    `library` is the name of the other library. `sites(draws)` turns draws of the latents, as `Posterior.sample` gives them, into
    those of its own variables, and `log_likelihood(draws)` is the density of each observation at them. `predict(sites, key)` draws what is
    observed. `dims` and `coords` name the axes of its variables, where it names them.
    """

    library: str
    sites: Callable[[Draws], dict[str, Array]]
    predict: Callable[[Draws, Any], dict[str, Array]] | None = None
    log_likelihood: Callable[[Draws], dict[str, Array]] | None = None
    observed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dims: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    coords: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def origin_of(model: Any, library: str) -> Origin:
    """Return where a model came from, if that is this library."""
    if model.origin is None or model.origin.library != library:
        raise ValueError(f"the model was not made by bbvi.from_{library}: draw from it with posterior.sample(n)")
    origin: Origin = model.origin
    return origin
