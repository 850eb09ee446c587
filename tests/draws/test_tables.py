"""Factors of q of one family stand in one table, whatever latent they belong to."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.draws.batch import Batch, by_bucket
from bbvi.draws.draws import AbstractDraws, cut_samples
from bbvi.draws.layout import lay_out
from bbvi.model.problem import bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import seed_key
from bbvi.numerics.xla import for_one_run

LENGTHS = (1, 7, 3, 4, 2, 6)


class OneByOne(AbstractDraws):
    """The draws of `MonteCarlo`, but a table for each latent."""

    num: int
    chunk: int | None = None
    reads_names: ClassVar[bool] = True

    def sample(self, name, family, params, address):
        return family.sample(params, address)


def visits():
    rng = np.random.default_rng(0)
    return bbvi.ragged(visit={"y": [rng.normal(1, 1, n).astype(np.float32) for n in LENGTHS]})


def continuous():
    """Scalars and arrays of two families; locals in groups, packed along visits, and padded."""

    def log_local(beta, z, row):
        on = row["mask"]["visit"]
        states = z["x"] + z["pairs"].sum(-1) * z["size"] + beta["slope"] * z["wide"].sum(0)
        own = dist.Normal(beta["mu"], 1).log_prob(z["level"]) + dist.Normal(beta["nu"], 1).log_prob(z["other"])
        return own + dist.Gamma(2.0, 1.0).log_prob(z["size"]) + jnp.where(on, -(states**2), 0).sum()

    def log_likelihood(beta, z, row):
        mean = z["x"] * z["level"] + z["other"] + z["pairs"] @ beta["weights"]
        return jnp.where(row["mask"]["visit"], dist.Normal(mean, beta["slope"]).log_prob(row["y"]), 0)

    def log_prior(beta):
        real = dist.Normal(0, 1).log_prob(beta["mu"] - beta["nu"]) + dist.Normal(0, 1).log_prob(beta["weights"]).sum()
        return real + dist.Normal(0, 2).log_prob(beta["nu"]) + dist.Gamma(2.0, 2.0).log_prob(beta["slope"])

    model = bbvi.HierarchicalModel(
        log_prior=log_prior,
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"mu": bbvi.real(), "slope": bbvi.positive(), "nu": bbvi.real(), "weights": bbvi.real(2)},
        locals={
            "level": bbvi.real(), "size": bbvi.positive(), "x": bbvi.real("visit"), "pairs": bbvi.real("visit", 2),
            "other": bbvi.real(), "wide": bbvi.real(2, "visit"),
        },
    )  # fmt: skip
    return model, visits()


def discrete():
    """Bits of the globals, of the groups and of their visits."""

    def log_local(beta, z, row):
        on = row["mask"]["visit"]
        return (
            z["one"] * (beta["a"] - 0.4)
            + 0.3 * z["two"]
            + jnp.where(on, z["bit"] * z["one"] - 0.2 * z["more"], 0).sum()
        )

    def log_likelihood(beta, z, row):
        mean = z["bit"] + beta["b"] * z["more"] + z["two"]
        return jnp.where(row["mask"]["visit"], dist.Normal(mean, 1.0).log_prob(row["y"]), 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: 0.3 * beta["a"] - 0.2 * beta["b"],
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"a": bbvi.binary(), "b": bbvi.binary()},
        locals={
            "one": bbvi.binary(), "two": bbvi.binary(), "bit": bbvi.binary("visit"), "more": bbvi.binary("visit"),
        },
    )  # fmt: skip
    return model, visits()


def many_groups():
    """More rows than are processed at a time, and not a multiple of a tile."""
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["mu"]),
        log_local=lambda beta, z, row: dist.Normal(beta["mu"], 1).log_prob(z["x"]) - z["y"] ** 2,
        log_likelihood=lambda beta, z, row: dist.Normal(z["x"] + z["y"], 1).log_prob(row),
        globals={"mu": bbvi.real()},
        locals={"x": bbvi.real(), "y": bbvi.real()},
    )
    return model, np.random.default_rng(0).normal(size=301).astype(np.float32)


def at_start(case, numbers):
    """The analysis of a model, its lambda and a batch of these groups."""
    problem, data, groups = bind(*case())
    analysis, params, counts = analyse(problem, data, groups), starting_params(problem, seed_key(3)), None
    if analysis.buckets:
        numbers, counts = by_bucket(numbers, groups.bucket, len(analysis.buckets))
    rows = jax.tree.map(lambda leaf: leaf[numbers], params["locals"])
    batch = Batch(numbers, groups.take(numbers), groups.lengths(numbers), rows, counts, num_groups=len(groups))
    return analysis, params["globals"], batch


SOME = jnp.array([1, 2, 3, 5])
CASES = {
    "score": (continuous, SOME, bbvi.Score(), (20,)),
    "Eq. 3 in chunks": (continuous, SOME, bbvi.Score(False, None), (20, 7)),
    "path": (continuous, SOME, bbvi.Pathwise(), (20,)),
    "values": (discrete, SOME, bbvi.LocalExpectation(), (20,)),
    "values one by one": (discrete, SOME, bbvi.LocalExpectation(joint=False), (20, 7)),
    "score in tiles": (many_groups, jnp.arange(300), bbvi.Score(), (100,)),
    "path in tiles": (many_groups, jnp.arange(300), bbvi.Pathwise(), (100,)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_table_of_many_latents_changes_rounding_only(case):
    model, numbers, gradient, (num, *chunk) = CASES[case]
    analysis, params, batch = at_start(model, numbers)
    problem = analysis.problem

    def estimate(draws):
        return gradient.estimate(analysis, params, None, batch, draws=draws, key=seed_key(1))._replace(buffers=None)

    chunk = chunk[0] if chunk else None
    together, apart = jax.jit(
        lambda: (estimate(bbvi.MonteCarlo(num, chunk=chunk)), estimate(OneByOne(num, chunk))), **for_one_run()
    )()
    for name in problem.latents:
        shape = problem.shape(name) if name in problem.globals else (len(batch.groups), *problem.shape(name))
        for leaf in jax.tree.leaves((together.globals | together.rows)[name]):
            assert leaf.shape == shape
            assert np.any(np.asarray(leaf) != 0)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), together, apart)


def test_factors_of_one_family_are_drawn_together():
    analysis, params, batch = at_start(continuous, SOME)
    draws = bbvi.MonteCarlo(20)
    tables = set()

    def prepared(params):  # traced alone: who stands in which table is known then
        layout = lay_out(analysis, draws, params, batch, seed_key(1), cut_samples(draws, 1), paths=False)
        tables.update(tuple(table.columns.shapes) for table in layout.tables.values())
        return 0.0

    jax.eval_shape(prepared, params)
    assert tables == {
        ("mu", "nu", "weights"), ("slope",), ("level", "other"), ("size",), ("x", "pairs"), ("wide",),
    }  # fmt: skip


def drifting():
    """Visits whose noise a masked term reads: its derivative is not finite where a draw behind the last group is not."""
    lengths = (*10 * [33], 31, 3)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Gamma(2.0, 2.0).log_prob(beta["scale"]),
        log_local=lambda beta, z, row: jnp.where(row["mask"]["visit"], dist.Gamma(2.0, 2.0).log_prob(z["x"]), 0),
        log_likelihood=lambda beta, z, row: jnp.where(
            row["mask"]["visit"], dist.Normal(0, beta["scale"] * z["x"]).log_prob(row["y"]), 0
        ),
        globals={"scale": bbvi.positive()},
        locals={"x": bbvi.positive("visit")},
    )
    return model, bbvi.ragged(visit={"y": [np.ones(n, np.float32) for n in lengths]})


def test_behind_the_last_packed_group_stand_draws_like_any():
    # 64 places are prepared at a time, and these groups fill them; the last one is padded beyond
    analysis, params, batch = at_start(drifting, jnp.array([0, 10]))
    estimate = jax.jit(
        lambda: bbvi.Pathwise().estimate(analysis, params, None, batch, draws=bbvi.MonteCarlo(4), key=seed_key(1)),
        **for_one_run(),
    )()
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((estimate.globals, estimate.rows)))
