"""What the library asks of ArviZ, the same from 0.2x and from 1.x."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bbvi.model.model import AnyModel

_ATTRIBUTES = {"inference_library": "bbvi"}


def inference_data(
    groups: Mapping[str, Mapping[str, Any]], dims: Mapping[str, Sequence[str]], coords: Mapping[str, Any] | None = None
) -> Any:
    """Draws by group and name, first axes chain and draw: an InferenceData, or from ArviZ 1 on a DataTree.

    Examples:
        >>> import numpy as np
        >>> data = inference_data({"posterior": {"x": np.zeros((2, 5, 3))}}, {"x": ["lab"]})
        >>> dict(data.posterior.x.sizes)
        {'chain': 2, 'draw': 5, 'lab': 3}
    """
    import arviz  # slow to import

    from_dict: Any = arviz.from_dict
    is_old = arviz.__version__.startswith("0.")
    named = {"dims": {name: list(own) for name, own in dims.items()}, "coords": dict(coords or {})}
    data = from_dict(**groups, **named) if is_old else from_dict(groups, **named)
    for part in (data, *(data[name] for name in groups)):
        part.attrs.update(_ATTRIBUTES)
    return data


def dims_of(model: AnyModel, group: str = "group") -> dict[str, list[str]]:
    """Name the axes of latents' draws after chain and draw: by the latents' own names, `group` for groups."""
    found = {}
    for name, latent in (model.globals | model.locals).items():
        axes = [own or f"{name}_dim_{k}" for k, own in enumerate(latent.dims)]
        found[name] = [group, *axes] if name in model.locals else axes
    return found


def coords_of(model: AnyModel) -> dict[str, Any]:
    """Return the entries along the axes that latents name."""
    latents = (model.globals | model.locals).values()
    found = [(name, entries) for latent in latents for name, entries in latent.coords.items()]
    return {name: list(range(x)) if isinstance(x, int) else list(x) for name, x in found}


def flat_draws(group: Any) -> dict[str, np.ndarray]:
    """The draws of a group such as `data.posterior`, chain after chain on one first axis.

    Examples:
        >>> import numpy as np
        >>> data = inference_data({"posterior": {"x": np.zeros((2, 5, 3))}}, {"x": ["lab"]})
        >>> flat_draws(data.posterior)["x"].shape
        (10, 3)
    """
    values = {str(name): x.transpose("chain", "draw", ...).values for name, x in group.data_vars.items()}
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in values.items()}
