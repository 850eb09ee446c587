"""Eq. 1: the ELBO itself, and importance ratios log p - log q, at fresh draws from a fitted q."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.blankets.analysis import row_shapes
from bbvi.blankets.trace import AtSamples, Trace, trace_group, trace_prior
from bbvi.draws.draws import MonteCarlo, OfGroup, cut_samples, draw_values
from bbvi.draws.tilts import features_at
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups
from bbvi.model.problem import Problem, bind, total
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import program

_FLOATS_PER_BLOCK = 1 << 22
_MOST_AT_ONCE = 1000
_RUNS = 100  # pieces of samples and blocks of groups that a posterior is likely to be asked for


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


class Densities:
    """Programs for log p - log q at draws of (key, sample, group), whatever lambda and the data, and what a draw costs."""

    def __init__(self, problem: Problem, prior: Trace, group: Trace | None):
        self.floats = [0 if trace is None else trace.largest() for trace in (prior, group)]

        def samples_last(trace: Trace) -> AtSamples:
            return AtSamples(trace.closed, trace.names, trace.outputs, fast_lgamma=False)

        def at_globals(params: Lambda, data: Any, key: Key, samples: Array) -> tuple[dict[str, Array], Array]:
            beta, log_q_total = draw_values(problem, problem.globals, params, key=key, samples=samples)
            return beta, total(samples_last(prior)(beta, {}, data, len(samples))) - log_q_total

        def at_groups(of_globals: Any, key: Key, samples: Array, of_groups: Any) -> Float[Array, "groups samples"]:
            beta, lambda_beta = of_globals
            features = features_at(problem, lambda_beta, beta)

            def at_group(of_group: Any) -> Float[Array, " samples"]:
                assert group is not None
                number, row, own, params = of_group
                at = {"key": fold(key, number), "samples": samples, "of": OfGroup(number, own, features)}
                z, log_q_total = draw_values(problem, problem.locals, params, **at)
                return total(samples_last(group)(beta | z, {}, row, len(samples))) - log_q_total

            return jax.vmap(at_group)(of_groups)

        self.at_globals = program(at_globals, runs=_RUNS)
        self.at_groups = program(at_groups, runs=_RUNS)


class Ratios:
    """log p - log q at draws of (key, sample, group) from a fitted q: the globals' part and each group's.

    `densities` are those of the fit; without, the model is traced here.
    """

    def __init__(
        self,
        problem: Problem,
        params: dict[str, Lambda],
        data: Any,
        groups: AbstractGroups | None,
        densities: Densities | None = None,
    ):
        self.problem, self.params, self.groups, self._data = problem, params, groups, data
        if densities is None:
            group = None if groups is None else trace_group(problem, row_shapes(groups))
            densities = Densities(problem, trace_prior(problem, data), group)
        self._floats, self._densities = densities.floats, densities
        #: the rows of all groups that are asked for, if these are few enough to be evaluated at once
        self._only_block: dict[bytes, Any] = {}
        self.most_at_once = cut_samples(MonteCarlo(_MOST_AT_ONCE), max(self._floats)).chunk

    def of_globals(self, key: Key, samples: Array) -> tuple[dict[str, Array], Array]:
        """Draws of the globals, and log p(beta) - log q(beta) (for a flat model all of log p - log q)."""
        out = jax.block_until_ready(self._densities.at_globals(self.params["globals"], self._data, key, samples))
        self.problem.raise_failure()
        return out

    def cost(self, num_groups: int) -> int:
        """How many numbers one draw of the globals and so many groups computes, about."""
        return self._floats[0] + self._floats[1] * num_groups

    def block(self, num: int) -> int:
        """How many groups are evaluated at once with so many samples."""
        assert self.groups is not None
        return max(1, min(len(self.groups), _FLOATS_PER_BLOCK // max(1, max(self._floats) * num)))

    def of_groups(
        self, beta: dict[str, Array], key: Key, samples: Array, chosen: np.ndarray | None = None
    ) -> Float[np.ndarray, "groups samples"]:
        """log p(x_i, z_i | beta) - log q(z_i | beta) of every group or those chosen, in blocks that stay small in memory."""
        assert self.groups is not None
        chosen = np.arange(len(self.groups)) if chosen is None else chosen
        size, out = self.block(len(samples)), []
        for begin in range(0, len(chosen), size):
            # the last block is filled up by the last group
            numbers = chosen[np.minimum(np.arange(begin, begin + size), len(chosen) - 1)]
            block = self._only_block.get(numbers.tobytes()) or self._rows(numbers)
            if len(chosen) <= size:
                self._only_block = {numbers.tobytes(): block}
            of_globals = beta, self.params["globals"]
            out.append(np.asarray(self._densities.at_groups(of_globals, key, samples, block)))
            self.problem.raise_failure()
        return np.concatenate(out)[: len(chosen)]

    def _rows(self, numbers: np.ndarray) -> tuple[Array, Any, dict[str, Array], Lambda]:
        assert self.groups is not None
        local = jax.tree.map(lambda leaf: leaf[numbers], self.params["locals"])
        return jnp.asarray(numbers), self.groups.take(numbers), self.groups.lengths(numbers), local

    def in_pieces(self, function: Callable[[Any], np.ndarray], first: int, num: int) -> np.ndarray:
        """Join `function(samples)` of pieces of so many samples, all of one size: it is compiled once."""
        size = -(-num // -(-num // self.most_at_once))
        starts = range(first, first + num, size)
        parts = [function(np.arange(at, at + size, dtype=np.uint32)) for at in starts]
        return np.concatenate(parts, axis=-1)[..., :num]

    def of_all(self, num: int, key: Key, first: int = 0) -> Float[np.ndarray, " samples"]:
        """`num` samples of log p(x, z) - log q(z), from this one on."""
        at = fold(key, "elbo")

        def piece(samples: Array) -> np.ndarray:
            beta, of_globals = self.of_globals(at, samples)
            value = np.asarray(of_globals, np.float64)
            if self.groups is not None:
                value = value + self.of_groups(beta, at, samples).astype(np.float64).sum(0)
            return value

        return self.in_pieces(piece, first, num)


def bind_again(whose: Any, fitted: Problem, data: Any) -> tuple[Problem, Any, AbstractGroups | None]:
    """Bind a fitted model to data that are given anew, which must have the same groups."""
    problem, flat, groups = bind(fitted.model, data)
    if (problem.num_groups, problem.lengths) != (fitted.num_groups, fitted.lengths):
        raise ValueError(
            f"{whose} was fitted to {fitted.num_groups} groups, the data have {problem.num_groups}"
            f" (padded to {fitted.lengths} and {problem.lengths})"
        )
    return problem, flat, groups
