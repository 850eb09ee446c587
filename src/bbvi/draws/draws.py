"""Algorithms 1 and 2, "draw S samples from q": how z[s] are drawn, how many, and in what chunks."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets.blankets import Blankets
from bbvi.families import AbstractFamily, Conditional, Params, alike, by_factors
from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import Address, Key, fold_names
from bbvi.numerics.xla import run_time_true, stored

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
    #: whether `sample` makes use of the name; if not, all latents of one family are drawn at once, which compiles faster
    reads_names: ClassVar[bool] = True

    def num_folds(self, wanted: int) -> int:
        """Tell into how many folds the samples can be cut where so many are wanted."""
        return wanted

    def arranged(self, problem: Problem, blankets: Blankets, folds: int) -> "AbstractDraws":
        """Prepare these draws for the latents of a problem, to be cut into this many folds."""
        return self

    def init(self) -> Any:
        """Make the state from which the number of draws of the next step is decided; None if that number is fixed."""
        return None

    def buffers(self, buffers_of: Callable[["AbstractDraws"], Any]) -> Any:
        """Make memory for the estimates of a step; `buffers_of(draws)` is what an estimate by these draws takes."""
        return buffers_of(self)

    def estimate(self, by: EstimateBy, state: Any, step: Array, *, key: Key, buffers: Any) -> tuple[Any, Any, Array]:
        """Estimate the gradient of a step; return the next state, the estimate, and how many draws it took."""
        return state, by(self, key, buffers), jnp.int32(self.num)

    @abstractmethod
    def sample(self, name: str, family: AbstractFamily, params: Params, address: Address) -> Array:
        """Draw one sample of one factor of the latent `name`, as coordinates."""


class MonteCarlo(AbstractDraws):
    """Draw `n` independent samples; many are evaluated in chunks, so that memory does not grow with n.

    Examples:
        >>> import bbvi
        >>> bbvi.MonteCarlo(1000).num
        1000
    """

    num: int
    chunk: int | None = None
    reads_names: ClassVar[bool] = False

    def __init__(self, n: int, *, chunk: int | None = None):
        check_numbers("MonteCarlo", n, chunk)
        self.num, self.chunk = int(n), chunk

    def sample(self, name, family, params, address):
        return family.sample(params, address)


def check_numbers(what: str, n: Any, chunk: Any) -> None:
    """Refuse a number of draws or a chunk size that is not a positive integer."""
    for name, value in (("the number of draws", n), ("chunk", 1 if chunk is None else chunk)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(f"{what}: {name} must be an integer of 1 or more, got {value!r}")


class Cut(NamedTuple):
    """How the samples of a step are cut into folds by their numbers, and into chunks that are evaluated one at a time.

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

    def samples(self, chunk: int | Array) -> tuple[Array, Array | None]:
        """Number a chunk's samples and tell which of them count; None if all do."""
        within = jnp.arange(self.chunk, dtype=jnp.uint32)
        if self.num_chunks == 1:
            return within, None if self.chunk == self.num else within < self.num
        per_fold = self.num_chunks // self.folds
        fold, part = jnp.divmod(jnp.asarray(chunk, jnp.uint32), per_fold)
        inside = part * self.chunk + within
        samples = fold * self.fold_size + inside
        full = self.fold_size * self.folds == self.num and self.chunk * per_fold == self.fold_size
        return samples, None if full else (inside < self.fold_size) & (samples < self.num)


def only_counted(counts: Array | None, values: Array) -> Array:
    """Put zeros at samples that do not count; None if all do."""
    return values if counts is None else jnp.where(counts, values, 0)


def cut_samples(draws: AbstractDraws, floats_per_draw: int, folds: int = 1) -> Cut:
    """Cut the samples so that a chunk's arrays stay small."""
    most = draws.chunk or max(64, _FLOATS_PER_CHUNK // max(1, floats_per_draw))
    if not draws.chunk and draws.num * floats_per_draw > _FEW_FLOATS:
        most = min(most, _SAMPLES_PER_CHUNK)
    fold_size = -(-draws.num // draws.num_folds(folds))
    folds = -(-draws.num // fold_size)
    if fold_size * folds <= most:
        return Cut(draws.num, folds, fold_size, fold_size * folds, 1)
    per_fold = -(-fold_size // most)
    return Cut(draws.num, folds, fold_size, -(-fold_size // per_fold), folds * per_fold)


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
    """Draw a whole latent array, as coordinates, for the samples with these numbers."""
    elements, number = jnp.asarray(latent.elements(lengths)), jnp.asarray(group, jnp.uint32)

    def one(p, element, sample):
        return draws.sample(name, latent.family, p, Address(key, number, element, sample))

    return over_factors(latent, one, (None, None, 0), (0, 0, None))(params, elements, samples)


def latent_values(latent: Latent, coordinates: Array) -> Float[Array, "*values samples"]:
    """Turn coordinates into the z that the model sees."""
    return over_factors(latent, latent.family.chart.value, -1, 0)(coordinates)


def log_q(latent: Latent, params: Params, coordinates: Array) -> Float[Array, "*factors samples"]:
    """Evaluate log q_i for every factor and sample."""
    return over_factors(latent, latent.family.log_prob, (None, -1), 0)(params, coordinates)


def over_factors(latent: Latent, function: Callable[..., Any], samples: Any, factors: Any) -> Callable[..., Any]:
    """Apply a function of one factor and one sample to all of them; given are the arguments' axes of each."""
    many = jax.vmap(function, in_axes=samples, out_axes=-1)
    for _ in latent.shape:
        many = jax.vmap(many, in_axes=factors)
    return many


class OfGroup(NamedTuple):
    """What draws of a group's locals depend on: its number, its lengths of ragged axes, and what q takes from the globals."""

    number: Array | int = 0
    lengths: dict[str, Array] | None = None
    features: Float[Array, "features samples"] | None = None


_NO_GROUP = OfGroup()


def draw_values(
    problem: Problem,
    latents: dict[str, Latent],
    params: Lambda,
    *,
    key: Key,
    samples: Array,
    of: OfGroup = _NO_GROUP,
    draws: AbstractDraws | None = None,
) -> tuple[dict[str, Array], Float[Array, " samples"] | float]:
    """Draw these latents, independently by default, and sum log q over them, without scores; each family at once."""
    draws, keys = draws or MonteCarlo(samples.shape[0]), dict(zip(latents, fold_names(key, list(latents)), strict=True))
    values: dict[str, Array] = {}
    log_q_total: Any = 0.0
    number, on = jnp.asarray(of.number, jnp.uint32), run_time_true(key)
    kinds = {name: draws.reads_names and name for name in latents}
    for names in alike({name: latent.family for name, latent in latents.items()}, kinds):
        family, elements = latents[names[0]].family, [latents[name].elements(problem.lengths) for name in names]
        rows = [by_factors(family, params[name]) for name in names]
        all_rows = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *rows)
        owners = np.repeat(np.arange(len(names)), [own.size for own in elements])
        at = jnp.stack([keys[name] for name in names])[owners], np.concatenate([own.ravel() for own in elements])

        def one(p, key, element, sample, name=names[0], family=family):
            return draws.sample(name, family, p, Address(key, number, element, sample))

        u = stored(on, _over_rows(one, (None, None, None, 0), (0, 0, 0, None))(all_rows, *at, samples))
        given = jax.tree.map(lambda _: None, all_rows)
        if isinstance(family, Conditional) and of.features is not None:
            shifts = family.shifts(all_rows, of.features)
            u = family.moved(all_rows, shifts, u)
            all_rows |= {p: all_rows[p][..., None] + shift for p, shift in shifts.items()}
            given |= dict.fromkeys(shifts, -1)
        seen, density = (
            _over_rows(family.chart.value, -1, 0)(u),
            _over_rows(family.log_prob, (given, -1), 0)(all_rows, u),
        )
        ends = np.cumsum([own.size for own in elements])[:-1]
        for name, value, part in zip(names, jnp.split(seen, ends), jnp.split(density, ends), strict=True):
            values[name] = value.reshape(*problem.shape(name), *value.shape[1:])
            if of.lengths is not None and latents[name].ragged_axes:
                part = jnp.where(latents[name].mask(problem.lengths, of.lengths).ravel()[:, None], part, 0)
            log_q_total = log_q_total + part.sum(0)
    return values | problem.call_site(key, samples, of.number), log_q_total


def _over_rows(function: Callable[..., Any], samples: Any, rows: Any) -> Callable[..., Any]:
    return jax.vmap(jax.vmap(function, in_axes=samples, out_axes=-1), in_axes=rows)
