"""Evaluate log p_i at all values of latents that have few, in the prior and in a batch of groups."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.colouring import by_latent, colour, possible_reads
from bbvi.blankets.scope import Scope
from bbvi.draws.draws import latent_values
from bbvi.draws.layout import Layout, zero_padding
from bbvi.draws.rows import Table
from bbvi.families import PerValue
from bbvi.gradients.group_blocks import GroupBlocks
from bbvi.gradients.slopes import Smooth
from bbvi.gradients.value_sums import Choices, Draws, Part, Plan, Totals, jointly, of_values, one_by_one
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem, Terms
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import materialise, run_time_true

# all values together may take so many times the evaluations of one element at a time; so many where no draw enters
_MOST_TIMES, _MOST_ALONE = 2, 256


class Point(NamedTuple):
    """Where log p is evaluated: samples, which of them count, and the globals, as coordinates and as the model sees them."""

    key: Key
    samples: Array
    counts: Bool[Array, " samples"] | None
    u: Draws
    beta: Draws
    logs: Draws


class EveryValue:
    """Evaluate log p_i of some latents at all values of z_i.

    The sums of factors that have continuous numbers beside z_i have their slopes along paths, too, on a last axis.
    """

    def __init__(self, analysis: Analysis, data: Any, names: Iterable[str], *, joint: bool):
        self._analysis, self._data = analysis, data
        self.supports = {name: _support(name, analysis.problem.latents[name]) for name in names}
        families = {name: analysis.problem.latents[name].family for name in self.supports}
        self._paths = {name: family for name, family in families.items() if isinstance(family, PerValue)}
        self._smooth = {id(scope): Smooth(scope) for scope in analysis.scopes if self._paths}
        self._prior, *groups = [self._plan(scope, joint) for scope in analysis.scopes]
        # the longest groups come last, and decide
        groups = [plan._replace(joint=groups[-1].joint, alone=groups[-1].alone) for plan in groups]
        self._groups = {scope.problem: plan for scope, plan in zip(analysis.scopes[1:], groups, strict=True)}
        self._plans = (self._prior, *groups)

    def _plan(self, scope: Scope, joint: bool) -> Plan:
        read = {*scope.patterns, *scope.look_ups}
        own = scope.latents if scope.of_groups else ()
        sizes = {name: len(values) for name, values in self.supports.items() if name in read or name in own}
        # those with many values first, so that they share colours
        names = dict(sorted(sizes.items(), key=lambda item: -item[1]))
        reads = possible_reads(scope.problem, names, [scope])
        plan = Plan(by_latent(scope.problem, names, colour(reads)) if names else {}, names)
        alone = read <= set(self.supports)
        most = _MOST_ALONE if alone else _MOST_TIMES * plan.num_one_by_one
        return plan._replace(joint=joint and plan.num_jointly <= most, alone=alone)

    @property
    def is_joint(self) -> bool:
        """Whether no draw of these latents is used."""
        return all(plan.joint for plan in self._plans)

    @property
    def is_exact(self) -> bool:
        """Whether no draw at all is used."""
        return all(plan.exact for plan in self._plans)

    @property
    def num_evaluations(self) -> int:
        """The most evaluations of any term of log p for one draw."""
        return max(plan.num_jointly if plan.joint else plan.num_one_by_one for plan in self._plans)

    def __call__(
        self, layout: Layout, u: Draws, log_q: Totals, samples: Array, counts: Array | None
    ) -> tuple[Array, Array, Totals]:
        """Samples of the part of log p that no group owns and of that of the batch's groups; by rows, q_i(k) times the sum
        over samples of log p_i at the value k, up to a constant.

        The groups' part carries N/B in the sums of globals, but not in those of locals, nor in its samples. `u` and `log_q`
        are by rows of tables too; `counts` tells which samples count.
        """
        every = {name: self._with_paths(table, u[name]) for name, table in layout.tables.items()}
        of_globals, tables = (layout.by_latent(layout.global_draws(rows)) for rows in (every, log_q))
        point = Point(layout.key, samples, counts, of_globals, *layout.global_values(u, samples))
        now = _first(point) if self._prior.exact else point
        part = self._part(self._analysis.blankets.prior, now, (self._data, None), {}, {})
        prior, totals = self._summed(part, self._prior, point, of_globals, tables)
        groups, found = jnp.zeros(len(samples)), {}
        if layout.batch is not None:
            own, plan = {name: log_q[name] for name in layout.locals if name in log_q}, self._plans[-1]
            # together with all others, a latent's draws play no part, but its probabilities do
            group_blocks = GroupBlocks(layout, every | own if plan.joint else every)
            out = {n: self._zeros(n, group_blocks.draws[n].shape[:2], own[n].shape[-1]) for n in own}
            width = 1 if plan.exact else len(samples)
            block = functools.partial(self._block, group_blocks, point, tables)
            (groups, more), places = group_blocks.sweep(block, width, out)
            totals = {name: leaf + layout.scale * more[name] for name, leaf in totals.items()}
            for name, leaf in places.items():
                rows = layout.tables[name].as_rows(leaf)
                found[name] = rows if plan.joint else self._times_q(name, rows, log_q[name])
        for name, table in layout.globals.items():
            if name in log_q:
                found[name] = table.as_rows(table.columns.join(totals, 0)[None])
        return prior, groups, found

    def _block(
        self, group_blocks: GroupBlocks, at: Point, tables: Totals, scope: Scope, taken: Any
    ) -> tuple[tuple[Array, Totals], Totals]:
        """Evaluate some groups: their part of log p and the sums of globals, and the sums of their locals."""
        groups, rows, real, u = taken
        problem, plan, layout = self._analysis.problem, self._groups[scope.problem], group_blocks.layout
        now = _first(at) if plan.exact else at
        whole = {name: leaf for name, leaf in u.items() if name in layout.fitted}
        own = jax.vmap(lambda x: layout.by_latent(x, scope.problem))(whole) if whole else {}
        drawn = {name: leaf[..., : len(now.samples)] for name, leaf in u.items() if not (plan.joint and name in whole)}
        drawn |= {name: self._paths[name].drawn(drawn[name]) for name in drawn if name in self._paths}
        z: Draws = {}
        own_logs: Draws = {}
        if drawn:
            z, own_logs = jax.vmap(lambda x: layout.model_values(x, scope.problem, layout.on))(drawn)
        z |= jax.vmap(lambda group: problem.call_site(fold(at.key, group), now.samples, group))(groups)
        part, all_tables = self._part(scope, now, (rows, real), z, own_logs), tables | own if plan.joint else tables
        samples, totals = self._summed(part, plan, at, at.u | own, all_tables)
        arrays = {name: leaf for name, leaf in totals.items() if name in problem.locals}
        return (samples, {n: leaf for n, leaf in totals.items() if n not in arrays}), group_blocks.join(arrays)

    def _part(self, scope: Scope, now: Point, of: tuple[Any, Array | None], z: Draws, own_logs: Draws) -> Part:
        """Make the part of log p of one scope: with the data, or with rows, values and logarithms of some groups, if these are real."""
        problem, on, num = self._analysis.problem, run_time_true(now.key), len(now.samples)
        rows, real = of

        def terms(moved: Draws, wanted: Any) -> Terms:
            values, own_values = {}, {}
            for name, x in moved.items():
                see = functools.partial(materialise, on, functools.partial(latent_values, problem.latents[name]))
                if name in problem.globals:
                    values[name] = see(x)
                else:
                    own_values[name] = jax.vmap(see)(x)

            def some(beta: Draws, logs: Draws, z: Draws, own_logs: Draws) -> Terms:
                def one(row: Any, z: Draws, own: Draws) -> Terms:
                    return scope.at_samples({**beta, **z}, row, num, {**logs, **own})

                made = (jax.vmap(one) if scope.of_groups else one)(rows, z, own_logs)
                made = jax.tree.map(lambda leaf: zero_padding(real, leaf), made)
                return made if wanted is None else {term: made[term] for term in wanted}

            return materialise(on, some, now.beta | values, now.logs, z | own_values, own_logs)

        def log_p(names: Iterable[str], terms: Terms) -> dict[str, Array]:
            indices = jax.vmap(scope.indices)(rows) if scope.of_groups else []
            over_groups = {term: leaf.sum(0) for term, leaf in terms.items()} if scope.of_groups else terms
            found = {}
            for name in names:
                if name in problem.globals:
                    chosen = scope.spread(name, scope.looked_up(name, terms, indices))
                    found[name] = _none(problem, name) + scope.log_p_i(name, over_groups) + chosen
                else:
                    own = jax.vmap(lambda t, i, n=name: _none(problem, n) + scope.of_one_group(n, t, i))
                    found[name] = own(terms, indices)
            return found

        def slopes(moved: Draws) -> Draws:
            def whole(moved: Draws) -> Array:
                values = {
                    name: latent_values(problem.latents[name], x)
                    for name, x in moved.items()
                    if name in problem.globals
                }
                own = {name: x for name, x in moved.items() if name not in values}
                own_values = {
                    name: jax.vmap(functools.partial(latent_values, problem.latents[name]))(x)
                    for name, x in own.items()
                }

                def one(row: Any, z: Draws, own: Draws) -> Array:
                    return self._smooth[id(scope)](now.beta | values | z, now.logs | own, row, num)

                made = (jax.vmap(one) if scope.of_groups else one)(rows, z | own_values, own_logs)
                return zero_padding(real, made).sum(0) if scope.of_groups else made

            return jax.vjp(whole, moved)[1](jnp.ones(num))[0]

        return Part(terms, log_p, scope.reading, functools.partial(materialise, on, slopes))

    def _summed(self, part: Part, plan: Plan, at: Point, u: Draws, tables: Totals) -> tuple[Array, Totals]:
        """Sum a part of log p over the values of its latents; of locals one by one, without the factor q_i(k)."""
        supports = {name: jnp.asarray(self.supports[name]) for name in plan.sizes}
        if not plan.joint:
            choices = {name: self._choices(name, values, u[name]) for name, values in supports.items()}
            samples, totals = one_by_one(part, plan, choices, at.counts)
            totals = {n: self._times_q(n, leaf, tables[n]) if n in tables else leaf for n, leaf in totals.items()}
        else:
            num, counts = (1, None) if plan.exact else (len(at.samples), at.counts)
            samples, totals = jointly(part, plan, supports, {name: tables[name] for name in supports}, num, counts)
            if plan.exact:
                samples = jnp.broadcast_to(samples, at.samples.shape)
                all_samples = len(at.samples) if at.counts is None else at.counts.sum()
                totals = {name: all_samples * leaf for name, leaf in totals.items()}
        return samples, {n: self._zeros(n, leaf.shape[:-1], leaf.shape[-1]) for n, leaf in tables.items()} | totals

    def _zeros(self, name: str, shape: tuple[int, ...], num: int) -> Array:
        """Make the sums of a latent with so many values before anything is added."""
        last = (num, self._paths[name].num_sums) if name in self._paths else (num,)
        return jnp.zeros((*shape, *last))

    def _times_q(self, name: str, sums: Array, log_q: Array) -> Array:
        q = jnp.exp(log_q)[..., None] if name in self._paths else jnp.exp(log_q)
        return jnp.where(q > 0, q * sums, 0)  # what q leaves out may be impossible

    def _with_paths(self, table: Table, u: Array) -> Array:
        """Put behind the draws of a table what the paths of its continuous numbers are at each value, if it has such."""
        if (family := self._paths.get(next(iter(table.columns.shapes)))) is None:
            return u
        return jax.vmap(lambda p, u: jax.vmap(functools.partial(family.every_path, p), -1, -1)(u))(
            table.rows.prepared.params, u
        )

    def _choices(self, name: str, values: Array, u: Array) -> Choices:
        if (family := self._paths.get(name)) is None:
            return of_values(values, u)
        drawn, noise, paths = family.taken_apart(u)
        index = (drawn[..., 0, None, :] == values[:, None]).argmax(-2)

        def at(n: Array) -> Array:
            value = jnp.broadcast_to(values[n] * 1.0, (*drawn.shape[:-2], 1, drawn.shape[-1]))
            return jnp.concatenate([value, jnp.take(paths, n, axis=-3)], -2)

        return Choices(drawn, index, at, 1, noise)


def _first(at: Point) -> Point:
    """Keep the first sample alone."""
    u, beta, logs = jax.tree.map(lambda leaf: leaf[..., :1], (at.u, at.beta, at.logs))
    return Point(at.key, at.samples[:1], None, u, beta, logs)


def _support(name: str, latent: Latent) -> np.ndarray:
    family = latent.family
    values = family.values if isinstance(family, PerValue) else family.chart.values()
    if values is None:
        raise ValueError(
            f"LocalExpectation sums over the values of a latent, and those of {name!r} ~ {latent.family.name} "
            "cannot be listed; use gradient=bbvi.Score()"
        )
    return values


def _none(problem: Problem, name: str) -> Array:
    """Make zeros with as many axes as log p_i of a latent has."""
    return jnp.zeros((1,) * (len(problem.shape(name)) + 1))
