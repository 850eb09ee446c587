"""Section 3.1: sums of integers are undone only where they cannot wrap around, and every number of them is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.model.problem import bind

pytestmark = pytest.mark.compat

BIG = jnp.int32(1_000_000_000)
WEIGHTS = jnp.array([3, 1_500_000_000, 1_500_000_000, 7], jnp.int32)
DATA = {
    "big": BIG,
    "w": WEIGHTS,
    "small": jnp.array([3, -1, 2, 5]),
    "byte": jnp.array([100, 90, -80, 7], jnp.int8),
}
COUNTS = {
    "few": [0, 1, 2, 3],
    "many": [900_000_000, 900_000_000, 900_000_000, 1],
    "next to": [2**24 + 1, 2**24, 3, 2**30],
}

# of four counts that may be any size, four bits and the data
WRAP = {
    "a sum of counts": lambda n, b, d: 0.5 * n.sum(),
    "a sum of counts less a number": lambda n, b, d: (n - 2**24).sum() * 1.0,
    "a sum of counts of either sign": lambda n, b, d: (n.sum() - 2 * n[0]) * 0.1,
    "a number of a count times a number": lambda n, b, d: (3 * n).sum() * 1e-3,
    "a product of counts": lambda n, b, d: (n * n).sum() * 1e-3,
    "a product of sums of counts": lambda n, b, d: n.sum() * b.sum() * 1e-3,
    "a dot product of counts": lambda n, b, d: (n @ jnp.arange(4)) * 1e-3,
    "bits times large numbers": lambda n, b, d: (b * d["w"]).sum() * 1e-3,
    "a dot product with large numbers": lambda n, b, d: (b @ d["w"]) * 1e-3,
    "a literal too large for two": lambda n, b, d: (b * 2_000_000_000).sum() * 1e-3,
    "a sum of bits times a large number": lambda n, b, d: (b.sum() * d["big"]) * 1e-3,
    "added to a large number": lambda n, b, d: ((b + d["big"]).sum() + n[0] * 0) * 1e-3,
    "a cumulative sum": lambda n, b, d: jnp.cumsum(n).sum() * 1e-3,
    "a negated sum": lambda n, b, d: -(n.sum()) * 1e-3,
    "masked by bits": lambda n, b, d: jnp.where(b == 1, n, 0).sum() * 1e-3,
    "bytes": lambda n, b, d: jnp.sum(b.astype(jnp.int8) * d["byte"], dtype=jnp.int8) * 1.0,
    "a dot product of bytes": lambda n, b, d: jnp.dot(b.astype(jnp.int8), d["byte"]) * 1.0,
    "unsigned bytes": lambda n, b, d: -jnp.sum(-b.astype(jnp.uint8), dtype=jnp.uint8) * 1.0,
    "short integers": lambda n, b, d: jnp.sum(b.astype(jnp.int16) * jnp.int16(20_000), dtype=jnp.int16) * 1.0,
    "unsigned integers": lambda n, b, d: (b.astype(jnp.uint32) - jnp.uint32(1)).sum().astype(float),
    "cut to bytes": lambda n, b, d: n.astype(jnp.int8).sum() * 1.0,
    "a square": lambda n, b, d: (n**2).sum() * 1e-3,
    "a loop": lambda n, b, d: jax.lax.scan(lambda c, v: (c + v, None), 0, n)[0] * 1e-3,
    "a loop over sums": lambda n, b, d: jax.lax.scan(lambda c, v: (c + (v * n).sum(), None), 0.0, b)[0] * 1e-3,
    "a sum that is returned as it is": lambda n, b, d: n.sum(),
    "a table of repeated counts": lambda n, b, d: jnp.broadcast_to(n, (3, 4)).sum() * 1e-3,
    "a large number of bits": lambda n, b, d: jnp.broadcast_to(b * 2**20, (1000, 4)).sum() * 1e-3,
    "a sum of look-ups": lambda n, b, d: n[jnp.array([0, 0, 1, 1])].sum() * 1e-3,
}  # fmt: skip

# these cannot wrap: each term reads one element
SPLIT = {
    "bits that are counted": lambda n, b, d: b.sum() * 0.3,
    "a value that is counted": lambda n, b, d: jnp.sum(n == 2) * 0.3,
    "a value of two that are counted": lambda n, b, d: ((n == 2) | (n > 5)).sum() * 0.3 - 0.2 * jnp.sum(b == 0),
    "bits times small numbers": lambda n, b, d: (b * d["small"]).sum() * 0.3,
    "a dot product with small numbers": lambda n, b, d: (b @ d["small"]) * 0.3,
    "bits, turned": lambda n, b, d: (1 - b).sum() * 0.3,
    "bits that choose": lambda n, b, d: jnp.where(d["small"] > 0, b, 0).sum() * 0.3,
    "counts up to a number": lambda n, b, d: jnp.minimum(n, 9).sum() * 0.3,
    "clipped counts": lambda n, b, d: jnp.clip(n, 0, 9).sum() * 0.3,
    "a byte of each": lambda n, b, d: jnp.sum(n.astype(jnp.int8), dtype=jnp.int32) * 0.3,
    "counts as real numbers": lambda n, b, d: n.astype(float).sum() * 0.3,
    "counts times real numbers": lambda n, b, d: (n * 0.3).sum(),
    "repeated bits": lambda n, b, d: jnp.broadcast_to(b, (3, 4)).sum() * 0.3,
}  # fmt: skip


def split(function):
    def log_joint(z, d):
        return function(z["n"], z["b"], d) + 1e-9 * jnp.sum(z["n"] * 1.0) + 1e-9 * jnp.sum(z["b"] * 1.0)

    model = bbvi.Model(log_joint, n=bbvi.count(4), b=bbvi.binary(4))
    problem, data, _ = bind(model, DATA)
    return problem, data, find_blankets(problem, data, None).prior


@pytest.mark.parametrize("name", [*WRAP, *SPLIT])
def test_terms_of_integers_add_up_to_what_the_function_returns(name):
    _, data, scope = split((WRAP | SPLIT)[name])
    for counts in COUNTS.values():
        n, b = jnp.array(counts, jnp.int32), jnp.array([1, 1, 1, 0], jnp.int32)
        (returned,) = jax.tree.leaves(scope.trace({"n": n, "b": b}, data))
        arrays = scope.split({"n": n, "b": b}, data).values()
        total = sum(np.asarray(v, np.float64).sum() for v in arrays)
        size = sum(np.abs(np.asarray(v, np.float64)).sum() for v in arrays)
        # what is rounded is single precision, of the user's sum and of each term
        np.testing.assert_allclose(total, float(returned), atol=3e-7 * size)


@pytest.mark.parametrize("name", SPLIT)
def test_sums_of_integers_that_cannot_wrap_are_undone(name):
    _, _, scope = split(SPLIT[name])
    rows = [sum(m.sum(1) for m in scope.pairs(term, ["n", "b"], []).values()) for term in scope.shapes]
    assert max(np.max(row) for row in rows if np.ndim(row)) == 1


def test_explain_says_where_a_sum_of_integers_stays_whole():
    model = bbvi.Model(lambda z, _: -0.5 * z["n"].sum() - 0.1 * (z["n"] * 1.0).sum(), n=bbvi.count(3))
    (lost,) = bbvi.explain(model).lost
    assert lost.line.startswith("test_integers.py:")
    assert "may wrap around" in lost.why
    assert "astype(float)" in lost.why
