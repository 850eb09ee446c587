"""Algorithms 1 and 2: the factors of q of one step laid out as rows of tables, one for each family, and drawn."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.drawer import Drawer, Rows
from bbvi.draws.draws import AbstractDraws, Cut, only_counted
from bbvi.draws.rows import (
    Arrays,
    Columns,
    Packing,
    Table,
    is_packed,
    line_up,
    over_rows,
    pack,
    prepared,
    tile_size,
    zero_padding,
)
from bbvi.families import Params, alike
from bbvi.families.abstract import Lambda
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import Key, fold, fold_names
from bbvi.numerics.xla import materialise, run_time_true, stored, sum_over_samples


class Buffers(NamedTuple):
    """Memory for the draws of a chunk and their log p_i, where these are too many to be held at once."""

    draws: Arrays
    log_p: Arrays


class Layout(NamedTuple):
    """What all chunks of samples of a step share: the factors of q as tables of rows, each known by its first latent."""

    analysis: Analysis
    batch: Batch | None
    key: Key
    #: always true, which XLA cannot know
    on: Array
    tables: dict[str, Table]

    @property
    def problem(self) -> Problem:
        """The model bound to its data."""
        return self.analysis.problem

    @property
    def fitted(self) -> dict[str, Table]:
        """The tables of the latents whose gradient this step estimates."""
        return {name: table for name, table in self.tables.items() if table.is_fitted}

    @property
    def globals(self) -> dict[str, Table]:
        """The tables of the globals."""
        return {name: table for name, table in self.tables.items() if not table.is_local}

    @property
    def locals(self) -> dict[str, Table]:
        """The tables of the locals."""
        return {name: table for name, table in self.tables.items() if table.is_local}

    @property
    def scale(self) -> float:
        """N/B, or 1 without groups."""
        return 1.0 if self.batch is None else self.batch.scale

    def share(self, name: str) -> float:
        """How often a table's factors count in the ELBO of all groups: N/B times for locals, once for globals."""
        return self.scale if self.tables[name].is_local else 1.0

    def buffers(self, num_samples: int) -> Buffers:
        """Make the memory that chunks of this many samples hand on."""
        draws, log_p = {}, {}
        for name, table in self.tables.items():
            num, packing = len(table.rows.elements), table.columns.packing
            if table.tile < num:
                shape = table.drawer.coordinates_shape
                draws[name] = jnp.zeros((num, *shape.shape, num_samples), shape.dtype)
            if packing is not None:
                # a group's padding is written beyond the last place, or over places of groups that come later
                log_p[name] = jnp.zeros((len(packing.slots), table.columns.num, num_samples))
        return Buffers(draws, log_p)

    def drawn(self, name: str, samples: Array, into: Array | None = None) -> Any:
        """Draw a table, `(rows, *event, samples)`, with the paths of its draws where its drawer keeps them."""
        table = self.tables[name]

        def tile(rows: Rows) -> tuple[tuple[()], Any]:
            return (), table.drawer.coordinates(self.on, rows, samples)

        return over_rows(tile, table.rows, table.tile, into=into)[1]

    def global_values(self, u: Arrays, samples: Array) -> tuple[Arrays, Arrays]:
        """Give what the model sees of the globals' draws, and the logarithms that q has."""
        beta, logs = self.model_values(self.global_draws(u), on=self.on)
        return beta | self.problem.call_site(self.key, samples), logs

    def global_draws(self, rows: Arrays) -> Arrays:
        """Turn rows of the globals' tables into columns."""
        return {name: table.places(rows[name])[0] for name, table in self.globals.items() if name in rows}

    def model_values(self, u: Arrays, problem: Problem | None = None, on: Array | None = None) -> tuple[Arrays, Arrays]:
        """Give what the model sees of draws by columns, stored once where there is an `on`, and the logarithms that q has.

        With a `problem` they are the locals of one group, cut to the lengths of its ragged axes there.
        """
        values, logs = {}, {}
        for name, x in u.items():
            drawer = self.tables[name].drawer
            values[name] = drawer.values(x) if on is None else materialise(on, drawer.values, x)
            if (log := drawer.latent.family.chart.log_value(x)) is not None:
                logs[name] = log
        return self.by_latent(values, problem), self.by_latent(logs, problem)

    def by_latent(self, tables: Arrays, problem: Problem | None = None) -> Arrays:
        """Cut columns of tables into arrays of the latents, and these to the lengths that ragged axes have in a problem."""
        found: Arrays = {}
        for name, whole in tables.items():
            columns = self.tables[name].columns
            found |= columns.split(whole, columns.num_axes)
        if problem is None:
            return found
        return {name: _cut(leaf, problem.shape(name)) for name, leaf in found.items()}

    def total_log_q(self, name: str, u: Array) -> Float[Array, " samples"]:
        """Sum log q_i over the factors of a table."""
        table = self.tables[name]

        def tile(rows: Rows, u: Array) -> tuple[Array, tuple[()]]:
            return zero_padding(rows.real, table.drawer.density(self.on, rows.prepared, u)[0]).sum(0), ()

        return over_rows(tile, table.rows, table.tile, u)[0]

    def less_log_q(self, log_p: Array, log_q: Arrays) -> Float[Array, " samples"]:
        """Take log q off log p: the ELBO's samples."""
        for name, of_table in log_q.items():
            log_p = log_p - self.share(name) * self.of_all(name, of_table)
        return log_p

    def of_all(self, name: str, sums: Array) -> Array:
        """Add up sums over a table's rows on all devices that share the batch."""
        return self.batch.peers.total(sums) if self.batch is not None and self.tables[name].is_local else sums

    def num_floored(self, name: str, rows: Rows, u: Array, counts: Array | None) -> Int[Array, ""]:
        """Count the draws that had to be moved to stay inside the support."""
        moved = jax.vmap(jax.vmap(self.tables[name].drawer.latent.family.chart.floored, in_axes=-1, out_axes=-1))
        per_row = sum_over_samples(lambda u, c: only_counted(c, moved(u)).astype(jnp.float32), u, counts)
        return zero_padding(rows.real, per_row).sum().astype(jnp.int32)

    def in_shape(self, rows: Mapping[str, Params]) -> dict[str, Lambda]:
        """Turn rows into the shapes of lambda, of the globals and of the batch's groups."""
        found: dict[str, Lambda] = {"globals": {}, "rows": {}}
        for key, flat in rows.items():
            part = found["rows" if self.tables[key].is_local else "globals"]
            for p, leaf in flat.items():
                for name, own in self.tables[key].in_shape(leaf).items():
                    part.setdefault(name, {})[p] = own
        return found


def lay_out(
    analysis: Analysis, draws: AbstractDraws, params: Lambda, batch: Batch | None, key: Key, cut: Cut, *, paths: bool
) -> Layout:
    """Lay out the factors of q of a step, for the chunks of a cut; with `paths`, those of the draws are kept."""
    problem, on = analysis.problem, run_time_true(key)
    if problem.leading is not None and not paths:
        raise ValueError(
            "q of locals depends on globals here, and only the gradient along paths, gradient=bbvi.Pathwise(), follows it; "
            "joint=() gives every number a factor of its own"
        )
    fitted = analysis.fitted(batch is not None)
    packings: dict[str, Packing] = {}
    if batch is not None and batch.counts is not None:
        packings = {axis: pack(axis, own, problem.lengths[axis]) for axis, own in batch.lengths.items()}

    def tables(latents: Mapping[str, Latent], params: Lambda, keys: Array, batch: Batch | None) -> Iterator[Table]:
        kinds = {n: (x.ragged_axes, is_packed(x), n in fitted, draws.reads_names and n) for n, x in latents.items()}
        for names in alike({name: latent.family for name, latent in latents.items()}, kinds):
            first, is_fitted = latents[names[0]], names[0] in fitted
            packing = packings.get(first.ragged_axes[0]) if is_packed(first) else None
            num_places = len(keys) if packing is None else len(packing.slots)
            columns = Columns({n: problem.shape(n)[packing is not None :] for n in names}, num_places, packing)
            owners = np.repeat([list(latents).index(name) for name in names], columns.sizes)
            own = {name: latents[name] for name in names}
            rows = line_up(own, columns, params, keys[:, owners], problem.lengths, batch)
            drawer = Drawer(draws, names[0], first, paths=paths and is_fitted)
            inner = None if packing is None else columns.num
            tile = tile_size(len(rows.elements), cut.chunk, inner)
            yield Table(columns, drawer, prepared(rows, drawer, tile, columns), tile, batch is not None, is_fitted)

    found = list(tables(problem.globals, params, stored(on, fold_names(key, list(problem.globals)))[None], None))
    if batch is not None:
        keys = jax.vmap(lambda group: fold_names(fold(key, group), list(problem.locals)))(batch.groups)
        found += tables(problem.locals, batch.params, keys, batch)
    return Layout(analysis, batch, key, on, {next(iter(table.columns.shapes)): table for table in found})


def _cut(leaf: Array, shape: tuple[int, ...]) -> Array:
    return leaf if leaf.shape[: len(shape)] == shape else leaf[tuple(map(slice, shape))]
