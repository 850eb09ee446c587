"""Section 4.2: evaluate the groups of a batch in blocks that stay small in memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bbvi.blankets.scope import Scope, Sums
from bbvi.draws.layout import Layout
from bbvi.draws.rows import Arrays, zero_padding
from bbvi.model.groups import cut_rows
from bbvi.model.problem import Terms
from bbvi.numerics.address import fold
from bbvi.numerics.loops import accumulate
from bbvi.numerics.xla import materialise

_FLOATS_PER_BLOCK = 1 << 17


class GroupBlocks:
    """The draws of a batch's locals, of which blocks of groups are evaluated one after the other.

    A block is a function `(scope, (numbers, rows, real, draws)) -> (sums, arrays)` of some groups, where draws and arrays
    are those of tables, with groups first, or with positions between these and the columns if they are packed. Sums are over
    groups that are `real`; None if all are.
    """

    def __init__(self, layout: Layout, u: dict[str, Array]):
        assert layout.batch is not None
        self.layout, self.batch, self.problem, self.analysis = layout, layout.batch, layout.problem, layout.analysis
        #: draws by places: packed ones by position, others by group
        self.draws = {name: table.places(u[name]) for name, table in layout.locals.items()}

    def join(self, arrays: Arrays) -> Arrays:
        """Put arrays of the locals, with groups first, side by side in those of tables."""
        tables = {name: table.columns for name, table in self.layout.locals.items() if name in arrays}
        return {name: columns.join(arrays, 1 + columns.num_axes) for name, columns in tables.items()}

    def sweep(self, block: Callable[..., tuple[Any, Any]], num_samples: int, out: Any) -> tuple[Any, Any]:
        """Evaluate all groups: add up the sums, of all devices, and put the arrays into `out`."""
        num, counts, filled = len(self.batch.groups), self.batch.counts, self.batch.filled
        # groups of a bucket one by one, since how many there are is known at run time only
        size = 1 if counts is not None else _block_size(self.analysis.floats_per_draw, num, num_samples)
        scopes = [self.analysis.blankets.of_group] if counts is None else self.analysis.buckets
        first, sums = jnp.int32(0), None
        for number, scope in enumerate(scopes):
            num_blocks = (num // size if filled is None else -(-filled // size)) if counts is None else counts[number]

            def one(number: Array, out: Any, scope: Scope = scope, first: Array = first) -> tuple[Any, Any]:
                at = first + number * size
                shares, arrays = block(scope, self._take(scope, at, size))
                return shares, self._put(out, arrays, at)

            more, out = accumulate(one, num_blocks, out)
            sums = more if sums is None else jax.tree.map(jnp.add, sums, more)
            first = first + num_blocks
        return self.batch.peers.total(sums), out

    def _take(self, scope: Scope, at: Any, size: int) -> tuple[Any, Any, Any, dict[str, Array]]:
        """Take the numbers, rows, reality and draws of some groups, at the lengths of their bucket."""
        # those of a bucket are counted one by one
        real = self.batch.is_group if self.batch.counts is None else None
        of_all = (self.batch.groups, self.batch.rows, real)
        groups, rows, real = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, at, size), of_all)
        if self.batch.counts is not None:
            rows = cut_rows(rows, self.analysis.axes, scope.problem.lengths)
        u = {}
        for name, drawn in self.draws.items():
            packing = self.layout.tables[name].columns.packing
            # what stands behind a short group are draws of others: values like any, that no term may read
            begin, num = (at, size) if packing is None else (packing.first[at], scope.problem.lengths[packing.axis])
            some = jax.lax.dynamic_slice_in_dim(drawn, begin, num)
            u[name] = some if packing is None else some[None]
        return groups, rows, real, u

    def _put(self, out: Any, arrays: Any, at: Any) -> Any:
        new = {}
        for name, leaf in arrays.items():
            packing = self.layout.tables[name].columns.packing
            begin, value = (at, leaf) if packing is None else (packing.first[at], leaf[0])
            new[name] = jax.lax.dynamic_update_slice_in_dim(out[name], value, begin, 0)
        return new


def group_terms(
    group_blocks: GroupBlocks, beta: Arrays, logs: Arrays, samples: Array, into: Arrays
) -> tuple[Arrays, Float[Array, " samples"], Arrays, dict[str, Float[Array, "rows samples"]]]:
    """Evaluate the groups of a batch at one chunk of samples.

    Return what they add to each global's log p_i and to the ELBO, log p_i of the locals' tables by places, and the same as
    rows.
    """
    layout, problem, width = group_blocks.layout, group_blocks.problem, len(samples)

    def block(scope: Scope, taken: Any) -> tuple[Any, Arrays]:
        groups, rows, real, u = taken

        def one(group, row, u):
            z, own_logs = layout.model_values(u, scope.problem, layout.on)
            z |= problem.call_site(fold(layout.key, group), samples, group)

            def terms_at(beta: Any, z: Any, logs: Any) -> Terms:
                return scope.at_samples({**beta, **z}, row, width, logs)

            terms = materialise(layout.on, terms_at, beta, z, {**logs, **own_logs})
            return terms, materialise(layout.on, scope.sums, terms)

        terms, sums = jax.tree.map(lambda leaf: zero_padding(real, leaf), jax.vmap(one)(groups, rows, u))
        indices = jax.vmap(scope.indices)(rows)

        def weigh(terms: Terms, sums: Sums) -> Arrays:
            out = {}
            for name in problem.locals:
                found = jax.vmap(lambda t, s, i, n=name: scope.of_one_group(n, t, i, s))(terms, sums, indices)
                out[name] = jnp.broadcast_to(found, (len(groups), *scope.problem.shape(name), width))
            return group_blocks.join(out)

        log_p = materialise(layout.on, weigh, terms, sums)
        looked_up = {name: scope.looked_up(name, terms, indices) for name in problem.globals}
        terms, sums = jax.tree.map(lambda leaf: leaf.sum(0), (terms, sums))
        of_globals = {name: scope.log_p_i(name, terms, sums) for name in problem.globals}
        return (of_globals, looked_up, sum_of_all(sums)), log_p

    sizes = {name: (len(group_blocks.batch.groups), table.columns.num, width) for name, table in layout.locals.items()}
    out = {name: into[name] if name in into else jnp.zeros(shape) for name, shape in sizes.items()}
    (of_globals, looked_up, elbo), out = group_blocks.sweep(block, width, out)
    scope = group_blocks.analysis.blankets.of_group
    of_globals = {name: own + scope.spread(name, looked_up[name]) for name, own in of_globals.items()}
    rows = {name: layout.tables[name].as_rows(leaf) for name, leaf in out.items()}
    return of_globals, elbo, out, rows


def _block_size(floats_per_draw: int, num: int, num_samples: int) -> int:
    """Choose how many groups are evaluated at once, a divisor of their number."""
    most = max(1, _FLOATS_PER_BLOCK // max(1, floats_per_draw * num_samples))
    return max(d for d in range(1, num + 1) if num % d == 0 and d <= most)


def sum_of_all(sums: Sums) -> Any:
    """Sum all terms, for each sample."""
    return sum((max(made.items(), key=lambda item: len(item[0]))[1] for made in sums.values()), 0.0)
