"""One chunk of samples: draws, factors, log p_i, log q_i and scores, for the globals and a batch of groups.

Arrays have samples on the last axis. Draws and sums over samples go row by row (`rows.py`); in between, the factors
of log p are evaluated in blocks of groups that stay small in memory, bucket by bucket.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Bucket, Target
from bbvi.blankets.blankets import Blankets, Sums
from bbvi.draws.draws import AbstractDraws, Drawer, MonteCarlo, draw_latent, latent_values, log_q
from bbvi.draws.rows import Packing, Rows, global_rows, is_packed, key_rows, local_rows, over_rows, pack, tile_size
from bbvi.families import Params
from bbvi.gradients.control_variates import sum_over_samples
from bbvi.model.groups import cut_rows
from bbvi.model.latents import Latent
from bbvi.model.model import Problem, Terms
from bbvi.numerics.address import Key, fold, fold_names
from bbvi.numerics.stages import materialise, run_time_true, stored

Lambda = dict[str, Params]
Consume = Callable[[Any, Array, Params], Any]

_FLOATS_PER_BLOCK = 1 << 17


class Batch(NamedTuple):
    """The groups of one step: their numbers, rows of data, own lengths and rows of lambda.

    With `counts` the groups stand in the order of their buckets, that many in each.
    """

    groups: Int[Array, " batch"]
    rows: Any
    lengths: dict[str, Array]
    params: Lambda
    counts: Int[Array, " buckets"] | None = None


class Scene(NamedTuple):
    """What all chunks of samples of a step share: the factors of q as rows, how many go at a time, how they are packed."""

    latents: dict[str, Drawer]
    rows: dict[str, Rows]
    tiles: dict[str, int]
    packings: dict[str, Packing]


class Scratch(NamedTuple):
    """Room for the draws of a chunk and their log p_i, where these are too many to be held at once."""

    draws: dict[str, Array]
    log_p: dict[str, Array]


class Chunk(NamedTuple):
    """What a chunk leaves: a state for each latent, room for the next chunk, the ELBO's samples, draws floored."""

    states: dict[str, Any]
    scratch: Scratch
    elbo: Float[Array, " samples"]
    floored: Int[Array, ""]


class Shares(NamedTuple):
    """What some groups add to the whole: to each global's log p_i, in two parts, and to the ELBO."""

    log_p: dict[str, Array | float]
    looked_up: dict[str, list[Array]]
    elbo: Float[Array, " samples"]


def set_up(
    target: Target, latents: dict[str, Drawer], params: Lambda, batch: Batch | None, key: Key, num_samples: int
) -> Scene:
    """Lay out the factors of q of a step, for chunks of this many samples."""
    problem = target.problem
    keys = dict(zip(problem.globals, stored(run_time_true(key), fold_names(key, list(problem.globals))), strict=True))
    rows = {name: global_rows(latents[name], params[name], keys[name], num_samples) for name in problem.globals}
    packings: dict[str, Packing] = {}
    if batch is not None:
        for name, latent in problem.locals.items():
            axis = latent.shape[0] if batch.counts is not None and is_packed(latent) else None
            if isinstance(axis, str) and axis not in packings:
                packings[axis] = pack(batch.lengths[axis], problem.lengths[axis])
            rows[name] = local_rows(
                latents[name], batch.params[name], key_rows(key, batch.groups, name), batch.groups, problem.lengths,
                batch.lengths, packings.get(axis) if isinstance(axis, str) else None, num_samples,
            )  # fmt: skip
    tiles = {}
    for name, of_latent in rows.items():
        latent = problem.latents[name]
        packed = name in problem.locals and bool(packings) and is_packed(latent)
        inner = int(np.prod(problem.shape(name)[1:])) if packed else None
        tiles[name] = tile_size(len(of_latent.elements), num_samples, inner)
    return Scene(latents, rows, tiles, packings)


def packing_of(scene: Scene, latent: Latent) -> Packing | None:
    """How a latent's groups are packed, if they are."""
    return scene.packings.get(str(latent.shape[0])) if is_packed(latent) else None


def evaluate(
    target: Target,
    scene: Scene,
    data: Any,
    batch: Batch | None,
    *,
    rao_blackwell: bool,
    key: Key,
    samples: Array,
    counts: Array | None,
    states: dict[str, Any],
    scratch: Scratch,
    consume: Consume,
) -> Chunk:
    """Hand `consume(state, log p_i - log q_i, score)` of each latent its share of these samples, row by row.

    `counts` tells which samples count, where the last chunk is not full.
    """
    problem, blankets, on = target.problem, target.blankets, run_time_true(key)
    u = {name: drawn(scene, name, on, samples, scratch.draws.get(name)) for name in scene.rows}
    beta, logs = model_values(problem.globals, {n: shaped(problem, n, u[n]) for n in problem.globals}, on)
    beta |= problem.place(key, samples)

    def prior_at(beta: dict[str, Array], logs: dict[str, Array]) -> Terms:
        return blankets.prior_factors(beta, data, len(samples), logs)

    prior = materialise(on, prior_at, beta, logs)
    sums = materialise(on, lambda terms: blankets.sums(blankets.prior, terms), prior)
    elbo, scale = _everything(sums), 1.0
    log_p: dict[str, Any] = {}
    shares: Shares | None = None
    places: dict[str, Array] = {}
    if batch is not None:
        scale = problem.num_groups / len(batch.groups)
        here = _Groups(target, beta, logs, key, samples)
        shares, places, log_p = here.sweep(Places(target, scene, batch, u), scratch.log_p)
    for name in problem.globals:
        # N/B is applied here, once: to the groups' part of a global's log p_i
        of_globals = blankets.log_p(blankets.prior, name, prior, sums)
        if shares is not None:
            chosen = blankets.log_p_looked_up(name, shares.looked_up[name])
            of_globals = of_globals + scale * (shares.log_p[name] + chosen)
        log_p[name] = _as_rows(of_globals, problem.shape(name), scene.rows[name], len(samples))
    local_elbo = 0.0 if shares is None else shares.elbo
    fitted = target.fitted(batch is not None)
    if not rao_blackwell:
        # Eq. 3 needs the ELBO before any weight
        log_qs = {name: total_log_q(scene, name, u[name], on) for name in scene.rows}
        elbo = elbo - sum(log_qs[name] for name in problem.globals)
        local_elbo = local_elbo - sum((log_qs[name] for name in problem.locals if name in log_qs), 0.0)
        whole = {name: elbo + (scale if name in problem.globals else 1.0) * local_elbo for name in scene.rows}
        log_p = {name: jnp.broadcast_to(whole[name], (len(scene.rows[name].elements), len(samples))) for name in fitted}

    def sum_up(name: str) -> Callable[..., Any]:
        def tile(rows: Rows, u: Array, log_p: Array, state: Any) -> Any:
            log_q_i, score = scene.latents[name].density(on, rows.prepared, u)

            def weigh(log_p: Array, log_q_i: Array) -> Array:
                weight = log_p - log_q_i if rao_blackwell else log_p
                return weight if counts is None else jnp.where(counts, weight, 0)

            weight = materialise(on, weigh, log_p, log_q_i)
            score = score if counts is None else jax.tree.map(lambda leaf: jnp.where(counts, leaf, 0), score)
            # padding is taken out of the sums, which are small
            sums = jax.tree.map(lambda leaf: _mask(rows.real, leaf), consume(state, weight, score))
            moved = num_floored(scene.latents[name].latent, rows, u, counts)
            return (_mask(rows.real, log_q_i).sum(0), moved), sums

        return tile

    new_states, floored = {}, jnp.int32(0)
    for name in scene.rows:
        rows = scene.rows[name]
        if name in fitted:
            (log_q_total, moved), new_states[name] = over_rows(
                sum_up(name), rows, scene.tiles[name], u[name], log_p[name], states[name]
            )
            floored = floored + moved
        else:
            log_q_total = total_log_q(scene, name, u[name], on)
        if rao_blackwell:
            share = scale if name in problem.locals else 1.0
            elbo = elbo - share * log_q_total
    elbo = elbo + scale * local_elbo
    used = Scratch({name: u[name] for name in scratch.draws}, {name: places[name] for name in scratch.log_p})
    return Chunk(new_states, used, elbo if counts is None else jnp.where(counts, elbo, 0), floored)


def new_scratch(target: Target, scene: Scene, num_samples: int) -> Scratch:
    """Room for chunks of this many samples."""
    draws, log_p = {}, {}
    for name, rows in scene.rows.items():
        latent, num = target.problem.latents[name], len(rows.elements)
        if scene.tiles[name] < num:
            shape = scene.latents[name].coordinates_shape
            draws[name] = jnp.zeros((num, *shape.shape, num_samples), shape.dtype)
        packing = packing_of(scene, latent)
        if packing is not None:
            # a group's padding is written beyond the last place, or over places of groups that come later
            log_p[name] = jnp.zeros((len(packing.slots), *target.problem.shape(name)[1:], num_samples))
    return Scratch(draws, log_p)


def drawn(scene: Scene, name: str, on: Array, samples: Array, into: Array | None) -> Any:
    """Draws of a latent, `(rows, *event, samples)`, with their paths where its drawer keeps them."""
    rows = scene.rows[name]

    def tile(rows: Rows) -> tuple[tuple[()], Any]:
        where = (rows.keys, rows.groups, rows.elements)
        return (), scene.latents[name].coordinates(on, rows.prepared, *where, samples)

    return over_rows(tile, rows, scene.tiles[name], into=into)[1]


def total_log_q(scene: Scene, name: str, u: Array, on: Array) -> Float[Array, " samples"]:
    """The sum of log q_i over the factors of a latent."""
    rows = scene.rows[name]

    def tile(rows: Rows, u: Array) -> tuple[Array, tuple[()]]:
        return _mask(rows.real, scene.latents[name].density(on, rows.prepared, u)[0]).sum(0), ()

    return over_rows(tile, rows, scene.tiles[name], u)[0]


def model_values(
    latents: Mapping[str, Latent], u: dict[str, Array], on: Array
) -> tuple[dict[str, Array], dict[str, Array]]:
    """What the model sees of these draws, and the logarithms that q has."""
    values = {n: materialise(on, lambda x, latent=latents[n]: latent_values(latent, x), x) for n, x in u.items()}
    logs = {name: latents[name].family.log_value(x) for name, x in u.items()}
    return values, {name: log for name, log in logs.items() if log is not None}


def shaped(problem: Problem, name: str, u: Array) -> Array:
    """A global's rows in the shape of its factors."""
    shape = problem.shape(name)
    return u[: int(np.prod(shape))].reshape(*shape, *u.shape[1:])


def _as_rows(log_p: Any, shape: tuple[int, ...], rows: Rows, num: int) -> Float[Array, "rows samples"]:
    return _filled(jnp.broadcast_to(log_p, (*shape, num)).reshape(-1, num), len(rows.elements))


def _filled(flat: Array, num: int) -> Array:
    """At least this many rows."""
    return flat if len(flat) >= num else jnp.pad(flat, ((0, num - len(flat)), (0, 0)))


def num_floored(latent: Latent, rows: Rows, u: Array, counts: Array | None) -> Int[Array, ""]:
    """How many draws had to be moved to stay inside the support."""
    moved = jax.vmap(jax.vmap(latent.family.floored, in_axes=-1, out_axes=-1))

    def summand(u: Array, counts: Array | None) -> Array:
        found = moved(u) if counts is None else moved(u) & counts
        return found.astype(jnp.float32)

    per_row = sum_over_samples(summand, u, counts)
    return _mask(rows.real, per_row).sum().astype(jnp.int32)


class Places:
    """Where draws of the locals of a batch stand, so that blocks of groups can be evaluated one after the other.

    A block is a function `(bucket, (numbers, rows, lengths, draws)) -> (sums, arrays)` of some groups, where arrays
    have groups first, and stand like the draws.
    """

    def __init__(self, target: Target, scene: Scene, batch: Batch, u: dict[str, Array]):
        self.target, self.scene, self.batch, self.problem = target, scene, batch, target.problem
        #: draws by places: packed ones by position, others by group
        self.draws = {name: self._by_place(name, u[name]) for name in self.problem.locals}

    def _packing(self, name: str) -> Packing | None:
        return packing_of(self.scene, self.problem.locals[name])

    def _by_place(self, name: str, u: Array) -> Array:
        shape = self.problem.shape(name)
        inner = shape[1:] if self._packing(name) is not None else shape
        size = int(np.prod(inner))
        num = len(u) // size
        return u[: num * size].reshape(num, *inner, *u.shape[1:])

    def sweep(self, block: Callable[..., tuple[Any, Any]], num_samples: int, out: Any) -> tuple[Any, Any]:
        """All groups: the sums summed, and `out` with the arrays in their places."""
        if self.batch.counts is None:
            num = len(self.batch.groups)
            size = _block_size(self.target.whole, num, num_samples)
            return self._loop(block, self.target.whole, 0, num // size, size, out)
        first, sums = jnp.int32(0), None
        for number, bucket in enumerate(self.target.buckets):
            more, out = self._loop(block, bucket, first, self.batch.counts[number], 1, out)
            sums = more if sums is None else jax.tree.map(jnp.add, sums, more)
            first = first + self.batch.counts[number]
        return sums, out

    def _loop(
        self, block: Callable[..., tuple[Any, Any]], bucket: Bucket, first: Any, num_blocks: Any, size: int, out: Any
    ) -> tuple[Any, Any]:
        """The groups of one bucket, from the position `first` on, in blocks."""
        if isinstance(num_blocks, int) and num_blocks == 1:
            return block(bucket, self._take(bucket, 0, size))
        traced = jax.jit(lambda taken: block(bucket, taken))
        shapes, _ = jax.eval_shape(traced, self._take(bucket, 0, size))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def body(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            sums, out = carry
            at = first + number * size
            shares, arrays = traced(self._take(bucket, at, size))
            return jax.tree.map(jnp.add, sums, shares), self._put(out, arrays, at, size)

        return jax.lax.fori_loop(0, num_blocks, body, (zero, out))

    def _take(self, bucket: Bucket, at: Any, size: int) -> tuple[Any, Any, Any, dict[str, Array]]:
        """Numbers, rows, lengths and draws of some groups, at the lengths of their bucket."""
        part = jax.tree.map(
            lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, size),
            (self.batch.groups, self.batch.rows, self.batch.lengths),
        )
        groups, rows, own = part
        if self.batch.counts is not None:
            rows = cut_rows(rows, self.target.axes, bucket.problem.lengths)
        u = {}
        for name in self.problem.locals:
            packing, shape = self._packing(name), bucket.problem.shape(name)
            if packing is None:
                u[name] = jax.lax.dynamic_slice_in_dim(self.draws[name], at, size)
                for axis, length in enumerate(shape, start=1):
                    u[name] = jax.lax.slice_in_dim(u[name], 0, length, axis=axis)
            else:
                # what stands behind a short group are draws of others: values like any, that no term may read
                u[name] = jax.lax.dynamic_slice_in_dim(self.draws[name], packing.first[at], shape[0])[None]
        return groups, rows, own, u

    def _put(self, out: Any, arrays: Any, at: Any, size: int) -> Any:
        new = {}
        for name, leaf in arrays.items():
            packing = self._packing(name)
            begin = at if packing is None else packing.first[at]
            value = leaf if packing is None else leaf[0]
            new[name] = jax.lax.dynamic_update_slice(out[name], value, (begin, *[0] * (value.ndim - 1)))
        return new


class _Groups:
    """The groups of a batch at one chunk of samples: from draws to log p_i of the locals, and shares of the rest."""

    def __init__(self, target: Target, beta: Any, logs: Any, key: Key, samples: Any):
        self.beta, self.logs, self.key, self.samples = beta, logs, key, samples
        self.problem, self.on = target.problem, run_time_true(key)

    def sweep(
        self, places: Places, into: dict[str, Array]
    ) -> tuple[Shares, dict[str, Array], dict[str, Float[Array, "rows samples"]]]:
        """All groups: the shares summed, log p_i of the locals by places, and the same as rows."""
        num, width = len(places.batch.groups), len(self.samples)
        out = {name: into.get(name, jnp.zeros((num, *self.problem.shape(name), width))) for name in self.problem.locals}
        shares, out = places.sweep(self._block, width, out)
        rows = {}
        for name, leaf in out.items():
            flat = leaf.reshape(-1, width)
            need = len(places.scene.rows[name].elements)
            rows[name] = _filled(flat, need)[:need]
        return shares, out, rows

    def _block(self, bucket: Bucket, taken: Any) -> tuple[Shares, dict[str, Array]]:
        """Evaluate some groups; arrays have groups first."""
        groups, rows, _, u = taken
        patterns, num = bucket.blankets, len(self.samples)

        def one(group, row, u):
            z, logs = model_values(self.problem.locals, u, self.on)
            z |= self.problem.place(fold(self.key, group), self.samples, group)

            def terms_at(beta: Any, z: Any, logs: Any) -> Terms:
                return patterns.group_factors(beta, z, row, num, logs)

            terms = materialise(self.on, terms_at, self.beta, z, {**self.logs, **logs})
            return terms, materialise(self.on, lambda t: patterns.sums(patterns.group, t), terms)

        terms, sums = jax.vmap(one)(groups, rows, u)
        indices = jax.vmap(patterns.indices)(rows)

        def weigh(terms: Terms, sums: Sums) -> dict[str, Array]:
            out = {}
            for name in self.problem.locals:
                found = jax.vmap(lambda *a, n=name: _local_log_p(patterns, n, *a))(terms, sums, indices)
                out[name] = jnp.broadcast_to(found, (len(groups), *bucket.problem.shape(name), num))
            return out

        log_p = materialise(self.on, weigh, terms, sums)
        looked_up = {name: patterns.looked_up(name, terms, indices) for name in self.problem.globals}
        elbo = _everything(jax.tree.map(lambda leaf: leaf.sum(0), sums))
        terms, sums = jax.tree.map(lambda leaf: leaf.sum(0), (terms, sums))
        of_globals = {name: patterns.log_p(patterns.group, name, terms, sums) for name in self.problem.globals}
        return Shares(of_globals, looked_up, elbo), log_p


def _block_size(bucket: Bucket, num: int, num_samples: int) -> int:
    """How many groups go through at once, a divisor of their number."""
    room = max(1, _FLOATS_PER_BLOCK // max(1, bucket.floats_per_draw * num_samples))
    return max(d for d in range(1, num + 1) if num % d == 0 and d <= room)


def _local_log_p(blankets: Blankets, latent: str, terms: Terms, sums: Sums, indices: list[Array]) -> Array | float:
    """log p_i of one group's locals."""
    one = jax.tree.map(lambda leaf: leaf[None], (terms, indices))
    chosen = blankets.log_p_looked_up(latent, blankets.looked_up(latent, *one))
    return blankets.log_p(blankets.group, latent, terms, sums) + chosen


def _everything(sums: Sums) -> Any:
    """The sum of all factors, for each sample."""
    return sum((max(made.items(), key=lambda item: len(item[0]))[1] for made in sums.values()), 0.0)


def _mask(keep: Array | None, leaf: Array) -> Array:
    """Zero where not kept; `keep` has the first axes of the array."""
    return leaf if keep is None else jnp.where(keep.reshape(keep.shape + (1,) * (leaf.ndim - keep.ndim)), leaf, 0)


def draw_values(
    problem: Problem,
    latents: dict[str, Latent],
    params: Lambda,
    *,
    key: Key,
    samples: Array,
    group: Array | int = 0,
    own: dict[str, Array] | None = None,
    draws: AbstractDraws | None = None,
) -> tuple[dict[str, Array], Float[Array, " samples"] | float]:
    """Draws of these latents, independent ones by default, and the total of log q, without scores."""
    draws, keys = draws or MonteCarlo(samples.shape[0]), dict(zip(latents, fold_names(key, list(latents)), strict=True))
    values: dict[str, Array] = {}
    log_q_total: Any = 0.0
    for name, latent in latents.items():
        u = draw_latent(
            draws, name, latent, params[name], key=keys[name], group=group, samples=samples, lengths=problem.lengths
        )
        values[name], density = latent_values(latent, u), log_q(latent, params[name], u)
        if own is not None and latent.ragged_axes:
            density = jnp.where(latent.mask(problem.lengths, own)[..., None], density, 0)
        log_q_total = log_q_total + total({name: density})
    return values | problem.place(key, samples, group), log_q_total


def prior_terms(problem: Problem, beta: dict[str, Array], data: Any, num: int) -> Terms:
    """The terms that no group owns, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b: problem.prior_terms(b, data), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta)


def group_terms(problem: Problem, beta: dict[str, Array], z: dict[str, Array], row: Any, num: int) -> Terms:
    """The terms of one group, for `num` samples on the last axis."""
    at_sample = jax.vmap(lambda b, z: problem.group_terms(b, z, row), in_axes=-1, out_axes=-1, axis_size=num)
    return at_sample(beta, z)


def group_log_ratios(
    problem: Problem, beta: dict[str, Array], batch: Batch, *, key: Key, samples: Array
) -> Float[Array, "batch samples"]:
    """log p(x_i, z_i | beta) - log q(z_i) of each group, at its draws and the given samples of the globals."""

    def one(group, row, own, params):
        z, log_q_total = draw_values(
            problem, problem.locals, params, key=fold(key, group), samples=samples, group=group, own=own
        )
        return total(group_terms(problem, beta, z, row, len(samples))) - log_q_total

    return jax.vmap(one)(batch.groups, batch.rows, batch.lengths, batch.params)


def total(arrays: Terms) -> Any:
    """Sum of everything, for each sample."""
    return sum((leaf.reshape(-1, leaf.shape[-1]).sum(0) for leaf in arrays.values()), 0.0)
