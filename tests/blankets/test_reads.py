"""Section 3.1: who reads whom, against perturbation and against blankets written down by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sparse

import bbvi
from bbvi.blankets.patterns import Reduction, Scattered, readers, recognise
from bbvi.blankets.read_sets import matrix
from bbvi.blankets.reads import reads

pytestmark = pytest.mark.compat

VECTOR = jax.ShapeDtypeStruct((6,), jnp.float32)
MATRIX = jax.ShapeDtypeStruct((3, 4), jnp.float32)

CASES = {
    "elementwise": (lambda x: jnp.exp(x) * 2 + 1, VECTOR),
    "pairs by slices": (lambda x: x[1:] * x[:-1], VECTOR),
    "chain by concatenate": (lambda x: x - jnp.concatenate([jnp.ones(1), x[:-1]]), VECTOR),
    "comparison": (lambda x: jnp.where(x > 0, 1.0, 0.0), VECTOR),
    "floor": (jnp.floor, VECTOR),
    "rank-one broadcast": (lambda x: x[:4] + jnp.ones((3, 4)), VECTOR),
    "outer": (lambda x: x[:, None] * x[None, :], VECTOR),
    "row sums": (lambda x: x.sum(1), MATRIX),
    "transpose": (lambda x: x.T * 1.0, MATRIX),
    "matrix product with a constant": (lambda x: jnp.ones((2, 3)) @ x, MATRIX),
    "product of two parts": (lambda x: x[:, :2] @ x[:2, 2:], MATRIX),
    "reverse": (lambda x: x[::-1], VECTOR),
    "padding": (lambda x: jnp.pad(x, (1, 2)), VECTOR),
    "maximum over an axis": (lambda x: x.max(0), MATRIX),
    "scalar against a vector": (lambda x: x[0] * x, VECTOR),
    "jit inside": (jax.jit(lambda x: jax.nn.softplus(x)), VECTOR),
    "roll": (lambda x: jnp.roll(x, 1), VECTOR),
    "clip": (lambda x: jnp.clip(x, 0.2, 0.5), VECTOR),
    "look-up by a constant": (lambda x: x[np.array([3, 3, 0, 5])], VECTOR),
    "rows by a constant": (lambda x: x[np.array([2, 0])] * 2, MATRIX),
    "element by a number": (lambda x: x[2] + x[-1], VECTOR),
    "out of bounds": (lambda x: x.at[np.array([1, 9])].get(mode="fill", fill_value=0.0), VECTOR),
    "dynamic slice": (lambda x: jax.lax.dynamic_slice(x, (2,), (3,)), VECTOR),
    "dynamic update": (lambda x: jax.lax.dynamic_update_slice(jnp.zeros(8), x[:2], (3,)), VECTOR),
    "cumulative sum": (jnp.cumsum, VECTOR),
    "cumulative sum of rows": (lambda x: jnp.cumsum(x, axis=1), MATRIX),
    "reversed cumulative sum": (lambda x: jax.lax.cumsum(x, reverse=True), VECTOR),
    "split": (lambda x: jnp.split(x, 3)[1] * 1.0, VECTOR),
    "choice of branches": (lambda x: jax.lax.cond(x[0] > 0, lambda v: v[1:3], lambda v: v[2:4] * 2, x), VECTOR),
    "an index by a custom derivative": (
        jax.checkpoint(lambda x: x[jax.nn.relu(jnp.array([1.0, 2.0])).astype(int)] * 1.0),
        VECTOR,
    ),
    "empty": (lambda x: jnp.concatenate([x, jnp.cumsum(x[:0]), x[:0].reshape(0, 2).sum(1)]), VECTOR),
    "applied in place": (lambda x: x.at[np.array([2, 3])].apply(jnp.exp), VECTOR),
    "multiplied in place": (lambda x: x.at[np.array([2, 3])].multiply(x[0]), VECTOR),
    "stack": (lambda x: jnp.stack([x[1:], x[:-1]], 1), VECTOR),
    "tile": (lambda x: jnp.tile(x, 2), VECTOR),
    "index found by a loop over constants": (
        lambda x: x[jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0)] * x[0],
        VECTOR,
    ),
    "delayed by five": (
        lambda x: jax.lax.scan(lambda c, v: ((v, *c[:4]), c[4] * v), (1.0,) * 5, jnp.concatenate([x, x]))[1],
        VECTOR,
    ),
    "a loop that carries nothing": (
        lambda x: jax.lax.scan(lambda carry, _: (carry, x * 2), (), None, length=2)[1],
        VECTOR,
    ),
    "finite only on the support": (
        lambda x: jnp.where(jnp.isfinite(jnp.diag(jnp.array([1.0, 0, 1, 1, 1, 1])) @ jnp.log(x**2)), x, 0.0),
        VECTOR,
    ),
    "index made from constants": (lambda x: x[jnp.arange(6) // 2], VECTOR),
}
CONSERVATIVE = {
    "sort": (jnp.sort, VECTOR),
    "reduction of one's own": (lambda x: jax.lax.reduce(x, -jnp.inf, jnp.logaddexp, (0,)), VECTOR),
    "window": (lambda x: jax.lax.reduce_window(x, -jnp.inf, jnp.logaddexp, (2,), (1,), "VALID"), VECTOR),
    "scan": (lambda x: jax.lax.scan(lambda c, v: (c + v, c), 0.0, x)[1], VECTOR),
    "while": (lambda x: jax.lax.while_loop(lambda c: c[0] < 3.0, lambda c: c + 1, x), VECTOR),
    "table by a latent": (lambda x: jnp.arange(6.0)[x.astype(int) % 6], VECTOR),
}


def pattern_of(function, like, data=(), **options):
    """Elements by latent elements, as a boolean array."""
    found = reads(function, like, data, **options)
    width = int(np.prod(like.shape)) + sum(look_up.size for look_up in found.look_ups)
    return matrix(found.outputs[0], int(np.prod(jax.tree.leaves(found.shapes)[0].shape)), width)


def by_perturbation(function, like, rounds=30):
    """Which outputs move when one input moves: all that is read, given enough random points."""
    rng = np.random.default_rng(0)
    size = int(np.prod(like.shape))
    moved = None
    function = jax.jit(jax.vmap(function))
    for _ in range(rounds):
        base = rng.normal(size=like.shape)
        points = np.repeat(base[None], size + 1, 0)
        flat = points.reshape(size + 1, size)
        flat[np.arange(1, size + 1), np.arange(size)] = rng.normal(size=size)
        out = np.asarray(function(jnp.asarray(points, jnp.float32))).reshape(size + 1, -1)
        change = (out[1:] != out[0]).T
        moved = change if moved is None else moved | change
    return moved


@pytest.mark.parametrize("name", CASES)
def test_reads_are_exact(name):
    function, like = CASES[name]
    found = pattern_of(lambda x, _: function(x), like)
    np.testing.assert_array_equal(found.toarray(), by_perturbation(function, like))


@pytest.mark.parametrize("name", CONSERVATIVE)
def test_what_has_no_rule_reads_no_less_than_it_does(name):
    function, like = CONSERVATIVE[name]
    found = pattern_of(lambda x, _: function(x), like)
    assert (found.toarray() >= by_perturbation(function, like)).all()


def test_an_index_in_the_data_is_followed_where_its_value_is_known():
    data = {"group": jnp.array([1, 0, 1, 3])}
    found = pattern_of(lambda x, d: x[d["group"]], VECTOR, data, known=True)
    np.testing.assert_array_equal(found.toarray().argmax(1), data["group"])
    assert found.nnz == 4
    unknown = pattern_of(lambda x, d: x[d["group"]], VECTOR, data, known=False)
    # one look-up for each element, left for the data to resolve
    np.testing.assert_array_equal(unknown.toarray(), np.eye(4, 10, 6, dtype=bool))


def test_readers_of_several_factors_are_all_that_read_one_of_them():
    rng = np.random.default_rng(0)
    dense = np.einsum("ij,ik->ijk", np.ones((4, 3), bool), np.ones((4, 5), bool))
    whole = np.zeros((4, 3, 4, 5), bool)
    whole[np.arange(4), :, np.arange(4)] = dense.transpose(0, 1, 2)
    patterns = [
        recognise(sparse.csr_array(whole.reshape(12, 20)), (4, 3), (4, 5)),
        recognise(sparse.csr_array(rng.random((7, 6)) < 0.3), (7,), (6,)),
        recognise(sparse.csr_array(rng.random((60, 6)) < 0.7), (60,), (6,)),
    ]
    assert [type(p) for p in patterns] == [Reduction, Scattered, Scattered]
    assert patterns[1].lists is not None and patterns[2].lists is None
    for pattern in patterns:
        size = int(np.prod(pattern.factor_shape))
        for _ in range(5):
            chosen = rng.random(size) < 0.3
            np.testing.assert_array_equal(readers(pattern, chosen), pattern.pairs().toarray()[:, chosen].any(1))


def test_constants_read_nothing():
    found = pattern_of(lambda x, _: jnp.arange(3.0) + 1, VECTOR)
    assert found.nnz == 0


@pytest.mark.parametrize(
    ("term", "factor", "matched"),
    [
        ((5, 3), (5,), (0,)),
        ((5, 3), (3,), (1,)),
        ((5, 3), (5, 2), (0, None)),
        ((4, 5, 3), (3, 4), (2, 0)),
        ((4,), (), ()),
    ],
)
def test_a_reduction_is_recognised_and_sums_right(term, factor, matched):
    pattern = Reduction(term, factor, matched)
    pairs = dense(pattern, term, factor)
    again = recognise(sparse.csr_array(pairs), term, factor)
    assert isinstance(again, Reduction)
    assert_sums(again, pairs, term, factor)


@pytest.mark.parametrize(("listed", "band"), [(True, 2), (False, 15)])
def test_irregular_patterns_sum_right(listed, band):
    index = np.arange(40)
    pairs = np.abs(index[:, None] - index[None, :]) < band
    pairs[3, 4] = False
    pattern = recognise(sparse.csr_array(pairs), (40,), (40,))
    assert isinstance(pattern, Scattered) and (pattern.lists is not None) == listed
    assert_sums(pattern, pairs, (40,), (40,))
    np.testing.assert_array_equal(dense(pattern, (40,), (40,)), pairs)


def test_a_factor_without_any_term_gets_zero():
    pairs = np.zeros((4, 3), bool)
    pairs[[0, 1], [0, 0]] = pairs[2, 2] = True
    pattern = recognise(sparse.csr_array(pairs), (4,), (3,))
    assert_sums(pattern, pairs, (4,), (3,))


def dense(pattern, term, factor):
    return np.stack([readers(pattern, np.arange(np.prod(factor)) == i) for i in range(int(np.prod(factor)))], axis=1)


def assert_sums(pattern, pairs, term, factor):
    values = np.random.default_rng(0).normal(size=(*term, 7)).astype(np.float32)
    expected = pairs.T.astype(float) @ values.reshape(-1, 7)
    found = np.broadcast_to(pattern.sum(jnp.asarray(values)), (*factor, 7))
    np.testing.assert_allclose(found.reshape(-1, 7), expected, atol=1e-5)


@pytest.mark.parametrize("new_key", [jax.random.key, jax.random.PRNGKey])
def test_keys_of_random_numbers_in_a_loop_are_constants(new_key):
    def noisy_walk(x, _):
        def step(carry, x):
            key, at = carry
            key, own = jax.random.split(key)
            at = at + x + jax.random.normal(own)
            return (key, at), at

        return jax.lax.scan(step, (new_key(0), 0.0), x)[1]

    found = matrix(reads(noisy_walk, VECTOR).outputs[0], 6, 6).toarray()
    np.testing.assert_array_equal(found, np.tri(6, dtype=bool))


@pytest.mark.parametrize("new_key", [jax.random.key, jax.random.PRNGKey])
def test_a_log_joint_with_random_numbers_of_a_key_is_fitted(new_key):
    def log_joint(z, y):
        def step(key, x):
            key, own = jax.random.split(key)
            return key, x + 0 * jax.random.normal(own)

        return {"z": -((jax.lax.scan(step, new_key(0), z["z"])[1] - y) ** 2)}

    for gradient in (bbvi.Score(), bbvi.Pathwise()):
        model = bbvi.Model(log_joint, z=bbvi.real(3))
        assert np.isfinite(
            bbvi.fit(model, jnp.arange(3.0), gradient=gradient, stop=bbvi.Budget(steps=2)).mean()["z"]
        ).all()
