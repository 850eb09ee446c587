"""Algorithms 1 and 2, "draw S samples from q": how z[s] are drawn, how many, and in what chunks."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets import Blankets
from bbvi.counter import Address, Key
from bbvi.families import AbstractFamily, Params, score
from bbvi.latents import Latent
from bbvi.model import Problem
from bbvi.stages import Staged, materialise

# sums over this many samples are fast; where there is little to do, one chunk is faster still
_SAMPLES_PER_CHUNK, _FEW_FLOATS = 288, 1 << 17
_FLOATS_PER_CHUNK = 1 << 20


#: an estimate of the gradient by some draws, with random numbers from a key, in memory that an earlier one has left
EstimateBy = Callable[["AbstractDraws", Key, Any], Any]


class AbstractDraws(eqx.Module):
    """A way to draw the S samples of one step."""

    num: eqx.AbstractVar[int]
    chunk: eqx.AbstractVar[int | None]
    #: whether the samples are independent of each other; if not, the first fold is of the others
    independent: ClassVar[bool] = True

    def num_folds(self, wanted: int) -> int:
        """Into how many folds the samples can be cut where so many are wanted."""
        return wanted

    def arranged(self, problem: Problem, blankets: Blankets, folds: int) -> "AbstractDraws":
        """The same draws for the latents of a problem, to be cut into this many folds."""
        return self

    def init(self) -> Any:
        """What a fit keeps from step to step, to decide how many draws the next one makes; None if that is fixed."""
        return None

    def room(self, room_of: Callable[["AbstractDraws"], Any]) -> Any:
        """Memory for the estimates of a step, given what those by some draws take."""
        return room_of(self)

    def estimate(self, by: EstimateBy, state: Any, step: Array, *, key: Key, room: Any) -> tuple[Any, Any, Array]:
        """The state after a step, the step's estimate, and how many draws it took."""
        return state, by(self, key, room), jnp.int32(self.num)

    @abstractmethod
    def sample(self, name: str, family: AbstractFamily, params: Params, address: Address) -> Array:
        """Coordinates of one draw of one factor of the latent `name`."""


class MonteCarlo(AbstractDraws):
    """Draw `n` independent samples; many are evaluated in chunks, so that memory does not grow with n.

    Examples:
        >>> import bbvi
        >>> bbvi.MonteCarlo(1000).num
        1000
    """

    num: int
    chunk: int | None = None

    def __init__(self, n: int, *, chunk: int | None = None):
        check_numbers("MonteCarlo", n, chunk)
        self.num, self.chunk = int(n), chunk

    def sample(self, name, family, params, address):
        return family.sample(params, address)


def check_numbers(what: str, n: Any, chunk: Any) -> None:
    """Refuse numbers of draws that are none."""
    for name, value in (("the number of draws", n), ("chunk", 1 if chunk is None else chunk)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{what}: {name} must be an integer of 1 or more, got {value!r}")


class Layout(NamedTuple):
    """How the samples of a step are cut: into folds by their numbers, and into chunks that are evaluated at a time.

    A chunk holds all folds, or lies within one; so chunks do not change what is in a fold.
    """

    num: int
    folds: int
    fold_size: int
    chunk: int
    num_chunks: int

    @property
    def folds_in_chunk(self) -> int:
        return self.folds if self.num_chunks == 1 else 1

    def samples(self, chunk: Array) -> tuple[Array, Array | None]:
        """The numbers of a chunk's samples, and which of them count; None if all do."""
        within = jnp.arange(self.chunk, dtype=jnp.uint32)
        if self.num_chunks == 1:
            return within, None if self.chunk == self.num else within < self.num
        per_fold = self.num_chunks // self.folds
        fold, part = chunk // per_fold, chunk % per_fold
        inside = part * self.chunk + within
        samples = fold * self.fold_size + inside
        full = self.fold_size * self.folds == self.num and self.chunk * per_fold == self.fold_size
        return samples, None if full else (inside < self.fold_size) & (samples < self.num)


def layout(draws: AbstractDraws, floats_per_draw: int, folds: int = 1) -> Layout:
    """Cut the samples so that a chunk's arrays stay small."""
    most = draws.chunk or max(64, _FLOATS_PER_CHUNK // max(1, floats_per_draw))
    if not draws.chunk and draws.num * floats_per_draw > _FEW_FLOATS:
        most = min(most, _SAMPLES_PER_CHUNK)
    fold_size = -(-draws.num // draws.num_folds(folds))
    folds = -(-draws.num // fold_size)
    if fold_size * folds <= most:
        return Layout(draws.num, folds, fold_size, fold_size * folds, 1)
    per_fold = -(-fold_size // most)
    return Layout(draws.num, folds, fold_size, -(-fold_size // per_fold), folds * per_fold)


def draw_latent(
    draws: AbstractDraws,
    name: str,
    latent: Latent,
    params: Params,
    *,
    key: Key,
    group: Array | int,
    samples: Array,
    lengths: dict[str, int],
) -> Float[Array, "*values samples"]:
    """Coordinates of a whole latent array for the samples with these numbers."""
    elements, number = jnp.asarray(latent.elements(lengths)), jnp.asarray(group, jnp.uint32)

    def one(p, element, sample):
        return draws.sample(name, latent.family, p, Address(key, number, element, sample))

    many = jax.vmap(one, in_axes=(None, None, 0), out_axes=-1)
    for _ in latent.shape:
        many = jax.vmap(many, in_axes=(0, 0, None))
    return many(params, elements, samples)


class Prepared(NamedTuple):
    """A latent's lambda with what follows from it alone, for drawing and for the density."""

    params: Params
    drawing: Float[Array, "rows _"]
    density: Float[Array, "rows _"]


class Drawer:
    """One latent's factors of q in stages: draws for many samples, log q_i and its score."""

    def __init__(self, draws: AbstractDraws, name: str, latent: Latent):
        self.latent, family = latent, latent.family
        float_, word = jnp.result_type(float), jax.ShapeDtypeStruct((), jnp.uint32)
        params = {p: jax.ShapeDtypeStruct(entry.raw_shape(), float_) for p, entry in family.parameters().items()}

        def one(p: Params, key: Key, group: Array, element: Array, sample: Array) -> Array:
            return draws.sample(name, family, p, Address(key, group, element, sample))

        self._drawing = Staged(one, params, jax.ShapeDtypeStruct((2,), jnp.uint32), word, word, word)
        self.coordinates_shape: Any = self._drawing.shape
        self._density = Staged(lambda p, u: score(family, p, u), params, self._drawing.shape)

    def prepare(self, params: Params) -> Prepared:
        """`params` of many factors, these on the first axis."""
        return Prepared(params, jax.vmap(self._drawing.before)(params), jax.vmap(self._density.before)(params))

    def coordinates(
        self, on: Array, prepared: Prepared, keys: Array, groups: Array, elements: Array, samples: Array
    ) -> Float[Array, "rows *event samples"]:
        """Coordinates of many factors for the samples with these numbers."""
        found: list[Array] = []
        axes: list[int | None] = []
        for stage, by_sample in zip(self._drawing.stages, self._drawing.varies, strict=True):
            many = stage
            if by_sample:
                many = jax.vmap(stage, in_axes=(None, None, list(axes), None, None, None, 0), out_axes=-1)
            many = jax.vmap(many, in_axes=(0, 0, 0, 0, 0, 0, None))
            axes.append(-1 if by_sample else None)
            words = (keys, groups.astype(jnp.uint32), elements.astype(jnp.uint32))
            arguments = (prepared.params, prepared.drawing, list(found), *words, samples)
            found.append(materialise(on, many, *arguments))
        return found[-1]

    def density(self, on: Array, prepared: Prepared, coordinates: Array) -> tuple[Array, Params]:
        """log q_i and its score for many factors and samples."""
        found: list[Any] = []
        for stage in self._density.stages:
            many = jax.vmap(jax.vmap(stage, in_axes=(None, None, -1, -1), out_axes=-1))
            found.append(materialise(on, many, prepared.params, prepared.density, list(found), coordinates))
        return found[-1]


def drawers(draws: AbstractDraws, latents: Mapping[str, Latent]) -> dict[str, Drawer]:
    """A drawer for each latent."""
    return {name: Drawer(draws, name, latent) for name, latent in latents.items()}


def latent_values(latent: Latent, coordinates: Array) -> Float[Array, "*values samples"]:
    """The z that the model sees."""
    many = jax.vmap(latent.family.value, in_axes=-1, out_axes=-1)
    for _ in latent.shape:
        many = jax.vmap(many)
    return many(coordinates)


def log_q(latent: Latent, params: Params, coordinates: Array) -> Float[Array, "*factors samples"]:
    """log q_i for every factor and sample."""
    return _over_factors(latent, latent.family.log_prob)(params, coordinates)


def _over_factors(latent: Latent, function):
    many = jax.vmap(function, in_axes=(None, -1), out_axes=-1)
    for _ in latent.shape:
        many = jax.vmap(many)
    return many
