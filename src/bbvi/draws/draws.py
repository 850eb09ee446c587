"""Algorithms 1 and 2, "draw S samples from q": how z[s] are drawn, how many, and in what chunks."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets.blankets import Blankets
from bbvi.families import AbstractFamily, Params, score
from bbvi.model.latents import Latent
from bbvi.model.model import Problem
from bbvi.numerics.address import Address, Key
from bbvi.numerics.stages import Staged, materialise

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
    density: Float[Array, "rows _"] | None


class Drawer:
    """One latent's factors of q in stages: draws for many samples, and log q_i and its score.

    With `paths` a draw can be followed as lambda moves, instead: `coordinates` is (u, path) for `along_path`.
    """

    def __init__(self, draws: AbstractDraws, name: str, latent: Latent, *, paths: bool = False):
        self.latent, self.paths, float_ = latent, paths, jnp.result_type(float)
        #: whether the path is the draw's derivatives; otherwise it is what they can be computed from
        self._slopes = paths and _is_scalar(latent.family)
        self._drawing = _staged(_drawing, draws, name, latent.family, self._slopes, float_)
        self.coordinates_shape: Any = self._drawing.shape[0] if self._slopes else self._drawing.shape
        self._density = None if paths else _staged(_density, latent.family, self.coordinates_shape, float_)

    def prepare(self, params: Params) -> Prepared:
        """`params` of many factors, these on the first axis."""
        density = None if self._density is None else jax.vmap(self._density.before)(params)
        return Prepared(params, jax.vmap(self._drawing.before)(params), density)

    def coordinates(
        self, on: Array, prepared: Prepared, keys: Array, groups: Array, elements: Array, samples: Array
    ) -> Any:
        """Coordinates of many factors, `(rows, *event, samples)`, for the samples with these numbers."""
        found: list[Any] = []
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
        return (found[-1], found[:-1]) if self.paths and not self._slopes else found[-1]

    def along_path(
        self, params: Params, path: Any, key: Key, group: Array, element: Array, samples: Array, slope: Array
    ) -> Params:
        """The sum over samples of slope * du / dlambda_i, for one factor."""
        if self._slopes:
            return jax.tree.map(lambda of_draw: (slope * of_draw).sum(-1), path)
        words = key, group.astype(jnp.uint32), element.astype(jnp.uint32)
        axes = [-1 if by_sample else None for by_sample in self._drawing.varies[:-1]]

        def draw(p: Params) -> Array:
            return jax.vmap(
                lambda stored, sample: self._drawing.again(p, stored, *words, sample), in_axes=(axes, 0), out_axes=-1
            )(path, samples)

        return jax.vjp(draw, params)[1](slope)[0]

    def density(self, on: Array, prepared: Prepared, coordinates: Array) -> tuple[Array, Params]:
        """log q_i and its score for many factors and samples."""
        assert self._density is not None
        found: list[Any] = []
        for stage in self._density.stages:
            many = jax.vmap(jax.vmap(stage, in_axes=(None, None, -1, -1), out_axes=-1))
            found.append(materialise(on, many, prepared.params, prepared.density, list(found), coordinates))
        return found[-1]


def _staged(made: Callable[..., Staged], *of: Any) -> Staged:
    """What was taken apart once is kept: a family is in many models, and tracing it takes longer than many steps."""
    try:
        return _kept(made, *of)
    except TypeError:  # holds arrays, which cannot be compared
        return made(*of)


@functools.lru_cache(maxsize=64)
def _kept(made: Callable[..., Staged], *of: Any) -> Staged:
    return made(*of)


def _drawing(draws: AbstractDraws, name: str, family: AbstractFamily, slopes: bool, float_: Any) -> Staged:
    def one(p: Params, key: Key, group: Array, element: Array, sample: Array) -> Any:
        draw = lambda p: draws.sample(name, family, p, Address(key, group, element, sample))  # noqa: E731
        return jax.value_and_grad(draw)(p) if slopes else draw(p)

    word = jax.ShapeDtypeStruct((), jnp.uint32)
    return Staged(one, _shapes(family, float_), jax.ShapeDtypeStruct((2,), jnp.uint32), word, word, word)


def _density(family: AbstractFamily, coordinates: Any, float_: Any) -> Staged:
    return Staged(lambda p, u: score(family, p, u), _shapes(family, float_), coordinates)


def _is_scalar(family: AbstractFamily) -> bool:
    """Whether a draw is one number of few parameters, so that its derivatives are few."""
    return family.event_shape() == () and all(entry.raw_shape() == () for entry in family.parameters().values())


def _shapes(family: AbstractFamily, float_: Any) -> Any:
    return {p: jax.ShapeDtypeStruct(entry.raw_shape(), float_) for p, entry in family.parameters().items()}


def drawers(draws: AbstractDraws, latents: Mapping[str, Latent], paths: Collection[str] = ()) -> dict[str, Drawer]:
    """A drawer for each latent, for some of them with the paths of their draws."""
    return {name: Drawer(draws, name, latent, paths=name in paths) for name, latent in latents.items()}


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
