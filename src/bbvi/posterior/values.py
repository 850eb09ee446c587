"""What a posterior hands out: draws, ragged arrays that know their groups' lengths, tables that refuse nonsense."""

import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.draws.draws import MonteCarlo, draw_latent, latent_values, log_q, over_factors
from bbvi.draws.tilts import Features, features_at
from bbvi.families import AbstractFamily, Conditional, Params, PerValue, Tree, by_factors
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups
from bbvi.model.latents import Latent
from bbvi.model.paired import in_order, is_paired
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold

#: the length to which each ragged axis is padded, hashable
Padded = tuple[tuple[str, int], ...]


@functools.partial(jax.tree_util.register_dataclass, data_fields=["padded"], meta_fields=["own", "group_axis"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Ragged:
    """Values of a local latent whose groups differ in length: `values[i]` is group i at its own length.

    `padded` is the array with every group padded to the longest, groups on axis `group_axis`; `own` has for some axes,
    counted from the one after the groups, the length of each group.
    """

    padded: Array
    own: tuple[tuple[int, tuple[int, ...]], ...]
    group_axis: int

    def __len__(self) -> int:
        return self.padded.shape[self.group_axis]

    def __iter__(self):
        return (self[i] for i in range(len(self)))

    def __getitem__(self, group: int) -> Array:
        if not -len(self) <= group < len(self):
            raise IndexError(f"group {group} of {len(self)}")
        own = {self.group_axis + axis: slice(0, lengths[group]) for axis, lengths in self.own}
        cut = tuple(own.get(axis, slice(None)) for axis in range(self.padded.ndim - 1))
        return np.take(np.asarray(self.padded), group, axis=self.group_axis)[cut]

    def __repr__(self) -> str:
        return f"Ragged({len(self)} groups, padded shape {self.padded.shape})"


class Table(dict):
    """A dict by latent in which some latents are refused, with the reason."""

    def __init__(self, values: dict[str, Any], refused: dict[str, str]):
        super().__init__(values)
        self._refused = refused

    def __missing__(self, name: str) -> Any:
        if name in self._refused:
            raise TypeError(self._refused[name])
        raise KeyError(f"no latent {name!r}; there are {sorted([*self, *self._refused])}")


# compiled once for a latent and a number of draws, however often they are asked for; without options for the compiler,
# which JAX would refuse inside a program of the user's
@functools.partial(jax.jit, static_argnames=("name", "latent", "num", "padded"))
def sample_latent(
    params: Any,
    key: Key,
    groups: Array | None,
    name: str,
    latent: Latent,
    num: int,
    padded: Padded,
    features: Features = None,
) -> Array:
    """Draw from one latent's q: `(draws, ...)`, or from these groups' rows, `(draws, group, ...)`, given features of the globals."""
    draws, samples = MonteCarlo(num), jnp.arange(num, dtype=jnp.uint32)

    def one(p: Any, at: Key) -> Array:
        u = draw_latent(draws, name, latent, p, key=fold(at, name), group=0, samples=samples, lengths=dict(padded))
        if isinstance(latent.family, Conditional) and features is not None:
            u = latent.family.moved(p, latent.family.shifts(p, features), u)
        return jnp.moveaxis(latent_values(latent, u), -1, 0)

    if groups is None:
        return one(params, key)
    return jax.vmap(lambda p, group: one(p, fold(key, group)), out_axes=1)(params, groups)


@functools.partial(jax.jit, static_argnames=("latent", "padded", "local"))
def log_q_of_latent(
    params: Any, z: Array, own: dict[str, Array], latent: Latent, padded: Padded, local: bool
) -> Float[Array, ""]:
    """Return log q of one latent, summed over its factors that are not padding."""

    def one(p: Any, z_one: Array, lengths: dict[str, Array]) -> Array:
        u = over_factors(latent, latent.family.chart.coordinates, -1, 0)(z_one[..., None])
        keep = latent.mask(dict(padded), lengths) if lengths else True
        return jnp.where(keep, log_q(latent, p, u)[..., 0], 0).sum()

    return jax.vmap(one)(params, z, own).sum() if local else one(params, z, own)


def _check_shapes(problem: Problem, z: dict[str, Any]) -> None:
    """Refuse one draw of all latents whose arrays have other shapes."""
    model = problem.model
    for name, latent in (model.globals | model.locals).items():
        value = z[name].padded if isinstance(z[name], Ragged) else z[name]
        groups = (problem.num_groups,) if name in model.locals else ()
        expected = groups + latent.padded(problem.lengths) + latent.event
        if np.shape(value) != expected:
            raise ValueError(f"log_prob: {name!r} has shape {np.shape(value)}, expected {expected}")


def log_q_at(
    problem: Problem, params: dict[str, Lambda], z: dict[str, Any], lengths: dict[str, np.ndarray]
) -> Float[Array, ""]:
    """Return log q at one draw of all latents, locals with all their groups; `lengths` are the groups' own."""
    _check_shapes(problem, z)
    z = problem.joined(z)
    value, padded, features = jnp.zeros(()), tuple(problem.lengths.items()), None
    for name, latent in problem.latents.items():
        z_i = z[name].padded if isinstance(z[name], Ragged) else jnp.asarray(z[name])
        local = name in problem.locals
        own, of_latent = (
            {axis: jnp.asarray(lengths[axis]) for axis in latent.ragged_axes},
            params["locals" if local else "globals"][name],
        )
        if name == problem.leading:
            features = features_at(problem, params["globals"], {name: z_i[..., None]})
        if isinstance(latent.family, Conditional) and features is not None:
            of_latent = latent.family.given(of_latent, features[:, 0])
        value = value + log_q_of_latent(of_latent, z_i, own, latent, padded, local)
    return value


def own_lengths(groups: AbstractGroups | None) -> dict[str, np.ndarray]:
    """Return every group's length of every ragged axis."""
    if groups is None:
        return {}
    return {axis: np.asarray(own) for axis, own in groups.lengths(np.arange(len(groups))).items()}


def element_name(name: str, index: tuple[int, ...]) -> str:
    """Name an element of an array for people: theta[3], or theta alone for a single number."""
    return name + (f"[{','.join(map(str, index))}]" if index else "")


def of_draws(x: np.ndarray) -> SimpleNamespace:
    """Return the marginals of draws on the first axis, as `AbstractFamily.marginals` does of a law."""
    return SimpleNamespace(mean=lambda: x.mean(0), std=lambda: x.std(0), ppf=lambda p: np.quantile(x, p, 0))


def probabilities(latent: Latent, params: Any) -> np.ndarray | None:
    """Return the probability of each value of a latent on a last axis; None if it has no finite list of values."""
    if isinstance(latent.family, PerValue):
        return np.exp(np.asarray(_of_factors(latent.family, latent.family.log_q, params)))
    if isinstance(latent.family, Tree):
        return latent.family.probabilities(params)
    if "logits" not in params or latent.support not in ("binary", "categorical", "one_hot"):
        return None
    if latent.support == "binary":
        one = np.asarray(jax.nn.sigmoid(params["logits"]))
        return np.stack([1 - one, one], -1)
    return np.asarray(jax.nn.softmax(params["logits"]))


def of_discrete(problem: Problem, name: str, value: np.ndarray) -> tuple[str, np.ndarray]:
    """Give probabilities of a factor of q the name and the shape of the discrete latent that it has."""
    block = problem.model.blocks.get(name, {})
    if is_paired(block):
        return in_order(block)[0], value
    # a tree's numbers stand on the last axis while it is taken apart
    return name, np.moveaxis(problem.taken_apart({name: np.moveaxis(value, -1, 0)})[name], 0, -1) if block else value


def _of_factors(family: AbstractFamily, function: Callable[[Params], Array], params: Params) -> Array:
    shape = params["loc"].shape[:-2]
    found = jax.vmap(function)(by_factors(family, params))
    return found.reshape(*shape, *found.shape[1:])


def central_value(latent: Latent, params: Any, mean: Any) -> Array:
    """Return a central value of a latent: its mean, or its most probable category."""
    if isinstance(latent.family, PerValue):
        return _of_factors(latent.family, latent.family.centre, params)
    if latent.support == "categorical":
        return jnp.argmax(jnp.asarray(probabilities(latent, params)), -1)
    if latent.support == "one_hot":
        return jax.nn.one_hot(jnp.argmax(jnp.asarray(mean), -1), *latent.event, dtype=int)
    if latent.family.chart.is_discrete:
        return jnp.round(jnp.asarray(mean)).astype(int)
    return jnp.asarray(mean, float)
