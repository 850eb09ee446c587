"""A NumPyro function run with given latents: each statement's log density, taken where it stands in the user's code."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from bbvi.bridges.numpyro_supports import Declared, layers

_REFUSED = {
    "param": "is a numpyro.param, a number without a prior that bbvi has no rule to fit; give it a prior by numpyro.sample",
    "mutable": "is a numpyro mutable, a state that changes from call to call; pass it as an argument",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A latent statement: the latent that stands for it, the shape of its value, and the axis of the groups in that.

    `kept` are the numbers of those elements of a value that are latents, the others being as in `filling`; None if all are.
    """

    name: str
    latent: str
    shape: tuple[int, ...]
    declared: Declared
    axis: int | None = None
    kept: np.ndarray | None = None
    filling: Any = None

    def arranged(self, z: Array) -> Array:
        """Put what one draw has of the latent into the shape of the value, or of that before the bijection."""
        if self.kept is None:
            return z + self.declared.shift if self.declared.shift else z
        event = self.declared.event
        flat = jnp.asarray(self.filling).reshape(-1, *event).at[self.kept].set(z + self.declared.shift)
        return flat.reshape(self.shape)


class Statement(NamedTuple):
    """What was found of a statement: its distribution and value; whether it is a latent; its plates by name."""

    fn: Any
    value: Any
    is_latent: bool
    is_observed: bool
    is_stacked: bool
    plates: Mapping[str, int]


class Plate(NamedTuple):
    """The plate whose elements are groups, and the numbers of those that are looked at."""

    name: str
    index: Any


class Replay(Messenger):
    """Run a function with the values of latents; afterwards `terms` has the log density of each statement, unsummed.

    `arranged` has each site's latent in the shape of its value. Statements in `dropped` keep the value given there, and have no
    density. Elements of the `plate` are those of its index, and count once.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        sites: Mapping[str, Site],
        arranged: Mapping[str, Any],
        dropped: Mapping[str, Any],
        plate: Plate | None = None,
    ):
        super().__init__(fn)
        self._sites, self._arranged, self._dropped, self._plate = sites, arranged, dropped, plate
        self._jacobians: dict[str, Any] = {}
        self._latent: set[str] = set()
        self.sizes: dict[str, int] = {}
        self.terms: dict[str, Array] = {}
        self.statements: dict[str, Statement] = {}

    def process_message(self, msg: Any) -> None:
        """Give a statement its value, a plate its elements, and a loop what its statements are to be given."""
        kind, name = msg["type"], msg.get("name")
        if kind in _REFUSED:
            raise TypeError(f"from_numpyro: {name!r} {_REFUSED[kind]}")
        if kind == "control_flow":
            msg["kwargs"]["substitute_stack"].append(("substitute", self._value))
        elif kind == "plate" and not msg.get("_control_flow_done"):
            self._of_plate(msg)
        elif kind == "sample" and not msg.get("_control_flow_done"):
            if msg["value"] is None:
                self._latent.add(name)
                msg["value"] = self._value(msg)
        elif kind == "sample" and not msg["is_observed"]:
            self._latent.add(name)

    def _of_plate(self, msg: Any) -> None:
        size, num = msg["args"]
        self.sizes[msg["name"]] = size
        if self._plate is not None and msg["name"] == self._plate.name:
            msg["value"] = jnp.asarray(self._plate.index)
        elif num is not None and num != size:
            msg["value"] = jnp.arange(size)  # all of it: what is subsampled is chosen by groups=
        msg["args"] = (size, None)

    def _value(self, msg: Any) -> Any:
        name, fn = msg["name"], msg["fn"]
        if name in self._dropped:
            return self._dropped[name]
        if name not in self._sites:
            return fn.mean if isinstance(list(layers(fn))[-1], dist.Delta) else None
        site, u = self._sites[name], self._arranged[name]
        if not site.declared.transformed:
            return u
        step, transform = msg["infer"].get("_scan_current_index"), biject_to(fn.support)
        u = u if step is None else u[step]
        value = transform(u)
        slope = transform.log_abs_det_jacobian(u, value)
        slope = slope.sum(tuple(range(value.ndim - fn.event_dim, slope.ndim)))
        if step is None:
            self._jacobians[name] = slope
        else:
            numpyro.factor(f"{name}.jacobian", slope)
        return value

    def postprocess_message(self, msg: Any) -> None:
        """Take the log density of a statement."""
        if msg["type"] != "sample":
            return
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if name in self.statements:
            raise ValueError(f"from_numpyro: two statements have the name {name!r}; names must differ")
        plates = {frame.name: frame.dim for frame in msg["cond_indep_stack"]}
        stacked = bool(msg.get("_control_flow_done"))
        self.statements[name] = Statement(fn, value, name in self._latent, bool(msg["is_observed"]), stacked, plates)
        if name in self._dropped:
            return
        self.terms[name] = self._scaled(fn.log_prob(value), msg["scale"], plates)
        if name in self._jacobians:
            self.terms[f"{name}.jacobian"] = self._scaled(self._jacobians[name], msg["scale"], plates)

    def _scaled(self, log_prob: Any, scale: Any, plates: Mapping[str, int]) -> Array:
        """Scale a log density as handlers around it say; by how few elements of the plate are looked at, the fit does."""
        log_prob = jnp.asarray(log_prob)
        log_prob = log_prob if jnp.issubdtype(log_prob.dtype, jnp.floating) else log_prob.astype(float)
        if scale is not None and self._plate is not None and self._plate.name in plates:
            scale = scale * (len(self._plate.index) / self.sizes[self._plate.name])
        is_one = scale is None or (isinstance(scale, (int, float)) and abs(scale - 1) < 1e-12)
        return log_prob if is_one else scale * log_prob
