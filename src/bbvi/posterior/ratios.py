"""Eq. 1: the ELBO itself, and importance ratios log p - log q, at fresh draws from a fitted q."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets.analysis import row_shapes
from bbvi.blankets.trace import Trace, trace_group, trace_prior
from bbvi.draws.batch import Batch
from bbvi.draws.draws import MonteCarlo, cut_samples, draw_values
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups
from bbvi.model.problem import Problem, total
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_many_runs

_FLOATS_PER_BLOCK = 1 << 22


class Estimate(float):
    """A Monte Carlo estimate that is a float and also knows its standard error."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float) -> "Estimate":
        self = float.__new__(cls, value)
        self.standard_error = standard_error
        return self

    def __repr__(self) -> str:
        return f"{float(self):.6g} ± {self.standard_error:.2g}"


def from_samples(samples: np.ndarray) -> Estimate:
    """Mean and standard error of independent samples."""
    samples = np.asarray(samples, np.float64)
    error = samples.std(ddof=1) / np.sqrt(len(samples)) if len(samples) > 1 else float("nan")
    return Estimate(float(samples.mean()), float(error))


class Ratios:
    """log p - log q of a problem at draws of (seed, sample, group): the globals' part and each group's."""

    def __init__(self, problem: Problem, data: Any, groups: AbstractGroups | None):
        prior = trace_prior(problem, data)
        group = None if groups is None else trace_group(problem, row_shapes(groups))
        self.problem = problem
        self.floats_per_draw = max(trace.largest() for trace in (prior, group) if trace is not None)

        def at_globals(params: Lambda, data: Any, key: Key, samples: Array):
            beta, log_q_total = draw_values(problem, problem.globals, params, key=key, samples=samples)
            return beta, total(prior.at_samples((beta,), data, len(samples))) - log_q_total

        def at_groups(beta: dict[str, Array], batch: Batch, key: Key, samples: Array) -> Float[Array, "batch samples"]:
            assert group is not None
            return group_log_ratios(problem, group, beta, batch, key=key, samples=samples)

        self._at_globals = eqx.filter_jit(at_globals, **for_many_runs())
        self._at_groups = eqx.filter_jit(at_groups, **for_many_runs())

    def globals(self, params: Lambda, data: Any, key: Key, samples: Array) -> tuple[dict[str, Array], Array]:
        """Draws of the globals, and log p(beta) - log q(beta) (for a flat model all of log p - log q)."""
        out = self._at_globals(params, data, key, samples)
        if self.problem.opaque:
            jax.block_until_ready(out)
            self.problem.raise_failure()
        return out

    def groups(
        self,
        beta: dict[str, Array],
        rows: Lambda,
        groups: AbstractGroups,
        numbers: np.ndarray,
        key: Key,
        samples: Array,
    ) -> np.ndarray:
        """log p(x_i, z_i | beta) - log q(z_i) for these groups, in blocks that stay small in memory."""
        most = max(1, _FLOATS_PER_BLOCK // max(1, self.floats_per_draw * len(samples)))
        out = []
        for begin in range(0, len(numbers), most):
            block = numbers[begin : begin + most]
            padded = np.concatenate([block, np.repeat(block[-1:], min(most, len(numbers)) - len(block))])
            local = jax.tree.map(lambda leaf, p=padded: leaf[p], rows)
            batch = Batch(
                jnp.asarray(padded), groups.take(padded), groups.lengths(padded), local, num_groups=len(groups)
            )
            out.append(np.asarray(self._at_groups(beta, batch, key, samples))[: len(block)])
            self.problem.raise_failure()
        return np.concatenate(out)


def elbo_samples(
    ratios: Ratios,
    params: dict[str, Lambda],
    data: Any,
    groups: AbstractGroups | None,
    num: int,
    key: Key,
    *,
    numbers: np.ndarray | None = None,
) -> np.ndarray:
    """`num` samples of log p(x, z) - log q(z); with `numbers`, from these groups alone, scaled up to all."""
    size = cut_samples(MonteCarlo(num), ratios.floats_per_draw).chunk
    out = []
    for begin in range(0, num, size):
        samples = jnp.arange(begin, begin + size, dtype=jnp.uint32)
        beta, value = ratios.globals(params["globals"], data, fold(key, "elbo"), samples)
        total_ = np.asarray(value, np.float64)
        if groups is not None:
            chosen = np.arange(len(groups)) if numbers is None else numbers
            local = ratios.groups(beta, params["locals"], groups, chosen, fold(key, "elbo"), samples)
            total_ = total_ + local.astype(np.float64).sum(0) * (len(groups) / len(chosen))
        out.append(total_)
    return np.concatenate(out)[:num]


def group_log_ratios(
    problem: Problem, trace: Trace, beta: dict[str, Array], batch: Batch, *, key: Key, samples: Array
) -> Float[Array, "batch samples"]:
    """log p(x_i, z_i | beta) - log q(z_i) of each group, at its draws and the given samples of the globals."""

    def one(group, row, own, params):
        z, log_q_total = draw_values(
            problem, problem.locals, params, key=fold(key, group), samples=samples, group=group, own=own
        )
        return total(trace.at_samples((beta, z), row, len(samples))) - log_q_total

    return jax.vmap(one)(batch.groups, batch.rows, batch.lengths, batch.params)
