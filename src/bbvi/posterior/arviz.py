"""What the library asks of ArviZ, the same from 0.2x and from 1.x."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bbvi.model.model import AnyModel

_ATTRIBUTES = {"inference_library": "bbvi"}


def inference_data(groups: Mapping[str, Mapping[str, Any]], dims: Mapping[str, Sequence[str]]) -> Any:
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
    data = from_dict(**groups, dims=dict(dims)) if is_old else from_dict(groups, dims=dict(dims))
    for part in (data, *(data[name] for name in groups)):
        part.attrs.update(_ATTRIBUTES)
    return data


def dims_of(model: AnyModel) -> dict[str, list[str]]:
    """Name the axes of latents' draws after chain and draw: "group" for groups, ragged axes by their own names."""
    found = {}
    for name, latent in (model.globals | model.locals).items():
        axes = [x if isinstance(x, str) else f"{name}_dim_{k}" for k, x in enumerate(latent.shape + latent.event)]
        found[name] = ["group", *axes] if name in model.locals else axes
    return found


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
