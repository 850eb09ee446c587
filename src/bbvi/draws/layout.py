"""Algorithms 1 and 2: the factors of q of one step laid out as rows, and drawn."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer, Rows
from bbvi.draws.draws import AbstractDraws, Cut, latent_values, only_counted
from bbvi.draws.rows import (
    Packing,
    in_shape,
    is_packed,
    line_up,
    over_rows,
    pack,
    prepared,
    tile_size,
    unpack,
    zero_padding,
)
from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold, fold_names
from bbvi.numerics.xla import materialise, run_time_true, stored, sum_over_samples

Arrays = dict[str, Array]


class Buffers(NamedTuple):
    """Memory for the draws of a chunk and their log p_i, where these are too many to be held at once."""

    draws: Arrays
    log_p: Arrays


class Layout(NamedTuple):
    """What all chunks of samples of a step share: the factors of q as rows, the size of a tile of rows, the packing."""

    analysis: Analysis
    batch: Batch | None
    key: Key
    #: always true, which XLA cannot know
    on: Array
    latents: dict[str, Drawer]
    rows: dict[str, Rows]
    tiles: dict[str, int]
    packings: dict[str, Packing]

    @property
    def problem(self) -> Problem:
        """The model bound to its data."""
        return self.analysis.problem

    @property
    def fitted(self) -> list[str]:
        """The latents whose gradient this step estimates."""
        return self.analysis.fitted(self.batch is not None)

    @property
    def scale(self) -> float:
        """N/B, or 1 without groups."""
        return 1.0 if self.batch is None else self.batch.scale

    def share(self, name: str) -> float:
        """How often a latent's factors count in the ELBO of all groups: N/B times for locals, once for globals."""
        return self.scale if name in self.problem.locals else 1.0

    def buffers(self, num_samples: int) -> Buffers:
        """Make the memory that chunks of this many samples hand on."""
        draws, log_p = {}, {}
        for name, rows in self.rows.items():
            num, packing = len(rows.elements), self.packings.get(name)
            if self.tiles[name] < num:
                shape = self.latents[name].coordinates_shape
                draws[name] = jnp.zeros((num, *shape.shape, num_samples), shape.dtype)
            if packing is not None:
                # a group's padding is written beyond the last place, or over places of groups that come later
                log_p[name] = jnp.zeros((len(packing.slots), *self.problem.shape(name)[1:], num_samples))
        return Buffers(draws, log_p)

    def drawn(self, name: str, samples: Array, into: Array | None = None) -> Any:
        """Draw a latent, `(rows, *event, samples)`, with the paths of its draws where its drawer keeps them."""

        def tile(rows: Rows) -> tuple[tuple[()], Any]:
            return (), self.latents[name].coordinates(self.on, rows, samples)

        return over_rows(tile, self.rows[name], self.tiles[name], into=into)[1]

    def global_values(self, u: Arrays, samples: Array) -> tuple[Arrays, Arrays]:
        """Give what the model sees of the globals' draws, and the logarithms that q has."""
        beta, logs = model_values(self.problem.globals, global_draws(self.problem, u), self.on)
        return beta | self.problem.call_site(self.key, samples), logs

    def total_log_q(self, name: str, u: Array) -> Float[Array, " samples"]:
        """Sum log q_i over the factors of a latent."""

        def tile(rows: Rows, u: Array) -> tuple[Array, tuple[()]]:
            return zero_padding(rows.real, self.latents[name].density(self.on, rows.prepared, u)[0]).sum(0), ()

        return over_rows(tile, self.rows[name], self.tiles[name], u)[0]

    def less_log_q(self, log_p: Array, log_q: Arrays) -> Float[Array, " samples"]:
        """Take log q off log p: the ELBO's samples."""
        for name, of_latent in log_q.items():
            log_p = log_p - self.share(name) * of_latent
        return log_p

    def num_floored(self, name: str, rows: Rows, u: Array, counts: Array | None) -> Int[Array, ""]:
        """Count the draws that had to be moved to stay inside the support."""
        moved = jax.vmap(jax.vmap(self.latents[name].latent.family.chart.floored, in_axes=-1, out_axes=-1))
        per_row = sum_over_samples(lambda u, c: only_counted(c, moved(u)).astype(jnp.float32), u, counts)
        return zero_padding(rows.real, per_row).sum().astype(jnp.int32)

    def in_shape(self, rows: Lambda) -> dict[str, Lambda]:
        """Turn rows into the shapes of lambda, of the globals and of the batch's groups."""
        found = {name: {p: self._shaped(name, leaf) for p, leaf in flat.items()} for name, flat in rows.items()}
        of_globals = {name: of_latent for name, of_latent in found.items() if name in self.problem.globals}
        return {"globals": of_globals, "rows": {name: found[name] for name in found if name not in of_globals}}

    def _shaped(self, name: str, flat: Array) -> Array:
        shape = self.problem.shape(name)
        if self.batch is None or name in self.problem.globals:
            return in_shape(flat, shape)
        if name not in self.packings:
            return in_shape(flat, (len(self.batch.groups), *shape))
        real = self.batch.real(self.problem.locals[name], self.problem.lengths)
        return unpack(flat, shape, self.packings[name], real)


def lay_out(
    analysis: Analysis, draws: AbstractDraws, params: Lambda, batch: Batch | None, key: Key, cut: Cut, *, paths: bool
) -> Layout:
    """Lay out the factors of q of a step, for the chunks of a cut; with `paths`, those of the draws are kept."""
    problem, on = analysis.problem, run_time_true(key)
    kept = analysis.fitted(batch is not None) if paths else ()
    latents = {name: Drawer(draws, name, latent, paths=name in kept) for name, latent in problem.latents.items()}
    keys = dict(zip(problem.globals, stored(on, fold_names(key, list(problem.globals))), strict=True))
    rows = {n: line_up(g, params[n], keys[n][None], problem.lengths, None, None) for n, g in problem.globals.items()}
    packings: dict[str, Packing] = {}
    if batch is not None:
        if batch.counts is not None:
            by_axis = {axis: pack(own, problem.lengths[axis]) for axis, own in batch.lengths.items()}
            packings = {n: by_axis[latent.ragged_axes[0]] for n, latent in problem.locals.items() if is_packed(latent)}
        for name, latent in problem.locals.items():
            own = jax.vmap(lambda group, name=name: fold(fold(key, group), name))(batch.groups)
            rows[name] = line_up(latent, batch.params[name], own, problem.lengths, batch, packings.get(name))
    tiles = {}
    for name, of_latent in rows.items():
        inner = int(np.prod(problem.shape(name)[1:])) if name in packings else None
        tiles[name] = tile_size(len(of_latent.elements), cut.chunk, inner)
        rows[name] = prepared(of_latent, latents[name], tiles[name], inner)
    return Layout(analysis, batch, key, on, latents, rows, tiles, packings)


def model_values(latents: Mapping[str, Latent], u: Arrays, on: Array | None = None) -> tuple[Arrays, Arrays]:
    """Give what the model sees of these draws, stored once where there is an `on`, and the logarithms that q has."""
    see = {name: functools.partial(latent_values, latents[name]) for name in u}
    values = {name: see[name](x) if on is None else materialise(on, see[name], x) for name, x in u.items()}
    logs = {name: latents[name].family.chart.log_value(x) for name, x in u.items()}
    return values, {name: log for name, log in logs.items() if log is not None}


def global_draws(problem: Problem, u: Arrays) -> Arrays:
    """Give the rows of globals the shape of their factors."""
    return {name: in_shape(u[name], problem.shape(name)) for name in problem.globals if name in u}
