"""Section 4.1: step sizes."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import bbvi
from bbvi.families import Normal
from bbvi.fitting.optimizers import ascend, ascend_rows, check_optimizer, init_rows


def test_adagrad_is_equation_11():
    gradients = np.random.default_rng(0).normal(size=(20, 3)) * [1e-4, 1.0, 1e4]
    optimizer = bbvi.adagrad(0.7)
    x, expected = jnp.zeros(3), np.zeros(3)
    state, total = optimizer.init(x), np.zeros(3)
    for g in gradients:
        x, state = ascend(optimizer, jnp.asarray(g), state, x, {})
        total += g**2
        expected += 0.7 * g / np.sqrt(total)
    np.testing.assert_allclose(x, expected, rtol=1e-5)


def test_robbins_monro_follows_its_sequence():
    optimizer = bbvi.robbins_monro(0.5, power=0.6, delay=2.0)
    x = jnp.zeros(1)
    state = optimizer.init(x)
    for _ in range(5):
        x, state = ascend(optimizer, jnp.ones(1), state, x, {})
    np.testing.assert_allclose(x[0], sum(0.5 * (t + 2.0) ** -0.6 for t in range(5)), rtol=1e-5)


def test_rows_count_their_own_steps():
    optimizer = bbvi.robbins_monro(1.0, power=1.0)
    rows = {"z": {"loc": jnp.zeros((2, 1))}}
    state = init_rows(optimizer, rows)
    one = jax_tree_row(state, 0)
    new, one = ascend_rows(optimizer, {"z": {"loc": jnp.ones((1, 1))}}, one, {"z": {"loc": jnp.zeros((1, 1))}}, {})
    new, one = ascend_rows(optimizer, {"z": {"loc": jnp.ones((1, 1))}}, one, new, {})
    fresh, _ = ascend_rows(
        optimizer, {"z": {"loc": jnp.ones((1, 1))}}, jax_tree_row(state, 1), {"z": {"loc": jnp.zeros((1, 1))}}, {}
    )
    assert float(new["z"]["loc"][0, 0]) == pytest.approx(1.5)
    assert float(fresh["z"]["loc"][0, 0]) == pytest.approx(1.0)


def jax_tree_row(state, row):
    import jax

    return jax.tree.map(lambda leaf: leaf[row : row + 1], state)


def test_a_transformation_sees_the_families():
    seen = []

    def update(updates, state, params=None, *, families, **extra):
        seen.append(families)
        return updates, state

    natural = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
    params = {"z": {"loc": jnp.zeros(2)}}
    ascend(natural, params, natural.init(params), params, {"z": Normal()})
    assert isinstance(seen[0]["z"], Normal)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)),
        optax.lamb(0.1),
        optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1)),
    ],
    ids=["global norm", "trust ratio", "noise"],
)
def test_an_optimizer_that_couples_rows_is_refused_for_locals(optimizer):
    check_optimizer(optimizer, {})
    with pytest.raises(ValueError, match="depends on the other rows"):
        check_optimizer(optimizer, {"z": Normal()})


@pytest.mark.parametrize("optimizer", [bbvi.adagrad(), optax.adam(0.1), optax.rmsprop(0.1), bbvi.robbins_monro()])
def test_elementwise_optimizers_are_accepted_for_locals(optimizer):
    assert check_optimizer(optimizer, {"z": Normal()}) is None
