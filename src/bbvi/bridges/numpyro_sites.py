"""A NumPyro function run with given values: each statement's log density, taken where it stands in the user's code."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
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
#: gives a statement, by its message, its value
Give = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """A latent statement: the latent that stands for it, the shape of its value, and the axis of the groups in that.

    `kept` are the numbers of those elements of a value that are latents, the others being as in `filling`; None if all are. Where a
    bijection makes the value, the shape is that of what goes in.
    """

    name: str
    latent: str
    shape: tuple[int, ...]
    declared: Declared
    axis: int | None = None
    kept: np.ndarray | None = None
    filling: Any = None

    def arranged(self, z: Array) -> Array:
        """Put what one draw has of the latent into the shape of the value."""
        shifted = z + self.declared.shift if self.declared.shift else z
        if self.kept is None:
            return shifted
        flat = jnp.asarray(self.filling).reshape(-1, *self.declared.event)
        return flat.at[self.kept].set(shifted).reshape(self.shape)

    def of_value(self, value: Any, support: Any) -> Array:
        """Turn a value into what one draw has of the latent."""
        if self.declared.transformed:
            return biject_to(support).inv(jnp.asarray(value))
        z = jnp.asarray(value) - self.declared.shift
        return z if self.kept is None else z.reshape(-1, *self.declared.event)[self.kept]


class Statement(NamedTuple):
    """What was found of a statement: its distribution and value; whether it is a latent; its plates with their dimensions."""

    fn: Any
    value: Any
    is_latent: bool
    is_observed: bool
    plates: Mapping[str, int]


class Plate(NamedTuple):
    """The plate whose elements are groups, and the numbers of those that are looked at."""

    name: str
    index: Any


class Replay(Messenger):
    """Run a function with given values; afterwards `terms` has the log density of each statement, unsummed.

    `give` tells the value of a statement without data, or the latent in its place if `sites` says that a bijection makes the value.
    Statements in `silent` have no density. Elements of the `plate` are those of its index, and count once.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        give: Give,
        *,
        sites: Mapping[str, Site] | None = None,
        silent: Collection[str] = (),
        plate: Plate | None = None,
    ):
        super().__init__(fn)
        self._give, self._silent, self._plate = give, silent, plate
        self._transformed = [name for name, site in (sites or {}).items() if site.declared.transformed]
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
        elif kind == "sample" and msg.get("_control_flow_done"):  # a loop's statement, with its values at all steps
            self._latent.update([name] * (not msg["is_observed"]))
        elif kind == "sample" and msg["value"] is None:
            self._latent.add(name)
            msg["value"] = self._value(msg)
        elif kind == "plate" and not msg.get("_control_flow_done"):
            self._of_plate(msg)

    def _of_plate(self, msg: Any) -> None:
        size, _ = msg["args"]
        self.sizes[msg["name"]] = size
        if self._plate is not None and msg["name"] == self._plate.name:
            msg["value"] = jnp.asarray(self._plate.index)
        else:  # all of it: groups= is how to subsample; known, so that arrays of NumPy can be looked up by it
            with jax.ensure_compile_time_eval():
                msg["value"] = jnp.arange(size)
        msg["args"] = (size, None)

    def _value(self, msg: Any) -> Any:
        """Give a statement its value; inside of a loop the values at all steps, or that at the step."""
        name, fn = msg["name"], msg["fn"]
        if isinstance(list(layers(fn))[-1], dist.Delta):
            return fn.mean
        given = self._give(msg)
        if name not in self._transformed:
            return given
        step, transform = msg["infer"].get("_scan_current_index"), biject_to(fn.support)
        u = given if step is None else given[step]
        value = transform(u)
        slope = transform.log_abs_det_jacobian(u, value)
        slope = slope.sum(tuple(range(value.ndim - fn.event_dim, slope.ndim)))
        if step is None:
            self._jacobians[name] = slope
        else:
            numpyro.factor(jacobian_of(name), slope)
        return value

    def postprocess_message(self, msg: Any) -> None:
        """Take the log density of a statement."""
        if msg["type"] != "sample":
            return
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if name in self.statements:
            raise ValueError(f"from_numpyro: two statements have the name {name!r}; names must differ")
        plates = {frame.name: frame.dim for frame in msg["cond_indep_stack"]}
        self.statements[name] = Statement(fn, value, name in self._latent, bool(msg["is_observed"]), plates)
        if name not in self._silent:
            # a support looks at values of NumPy by NumPy, which cannot compare them with bounds that depend on latents
            at = jnp.asarray(value) if isinstance(value, np.ndarray) else value
            self.terms[name] = self._scaled(fn.log_prob(at), msg["scale"], plates)
        if name in self._jacobians:
            self.terms[jacobian_of(name)] = self._scaled(self._jacobians[name], msg["scale"], plates)

    def _scaled(self, log_prob: Any, scale: Any, plates: Mapping[str, int]) -> Array:
        """Scale a log density as handlers around it say; by how few elements of the plate are looked at, the fit does."""
        log_prob = jnp.asarray(log_prob)
        log_prob = log_prob if jnp.issubdtype(log_prob.dtype, jnp.floating) else log_prob.astype(float)
        if scale is not None and self._plate is not None and self._plate.name in plates:
            scale = scale * (len(self._plate.index) / self.sizes[self._plate.name])
        is_one = scale is None or (isinstance(scale, (int, float)) and abs(scale - 1) < 1e-12)
        return log_prob if is_one else scale * log_prob


def jacobian_of(name: str) -> str:
    """Name the term that a bijection adds to a statement."""
    return f"{name}.jacobian"
