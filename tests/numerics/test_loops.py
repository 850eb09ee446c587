"""Sums in one loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bbvi.numerics.loops import accumulate


def powers(i):
    return {"one": jnp.ones(3) * i, "more": (jnp.float32(i) ** 2, jnp.int32(1))}


@pytest.mark.parametrize("num", [0, 1, 2, 7])
def test_a_loop_adds_every_leaf(num):
    found = jax.jit(lambda: accumulate(powers, num))()
    np.testing.assert_array_equal(found["one"], np.full(3, sum(range(num))))
    np.testing.assert_array_equal(found["more"], [sum(i**2 for i in range(num)), num])


def test_the_number_may_be_known_at_run_time_only():
    found = jax.jit(lambda num: accumulate(powers, num))(5)
    np.testing.assert_array_equal(found["more"], [30, 5])


@pytest.mark.parametrize("num", [1, 6, jnp.int32(6), jnp.uint32(6)])
def test_the_function_is_traced_once(num):
    calls = []

    def fn(i):
        calls.append(i)
        return jnp.float32(i)

    jax.jit(lambda: accumulate(fn, num))()
    assert len(calls) == 1


def test_a_single_term_is_called_without_a_loop():
    assert "while" not in str(jax.make_jaxpr(lambda: accumulate(powers, 1))())
