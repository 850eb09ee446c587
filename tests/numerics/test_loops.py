"""Sums in one loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bbvi.numerics.loops import accumulate


def powers(i, carry):
    return {"one": jnp.ones(3) * i, "more": (jnp.float32(i) ** 2, jnp.int32(1))}, carry


@pytest.mark.parametrize("num", [0, 1, 2, 7])
def test_a_loop_adds_every_leaf(num):
    found, _ = jax.jit(lambda: accumulate(powers, num))()
    np.testing.assert_array_equal(found["one"], np.full(3, sum(range(num))))
    np.testing.assert_array_equal(found["more"], [sum(i**2 for i in range(num)), num])


def test_the_number_may_be_known_at_run_time_only():
    found, _ = jax.jit(lambda num: accumulate(powers, num))(5)
    np.testing.assert_array_equal(found["more"], [30, 5])


@pytest.mark.parametrize("num", [1, 6, jnp.int32(6), jnp.uint32(6)])
def test_the_function_is_traced_once(num):
    calls = []

    def fn(i, carry):
        calls.append(i)
        return jnp.float32(i), carry

    jax.jit(lambda: accumulate(fn, num))()
    assert len(calls) == 1


@pytest.mark.parametrize("num", [1, 5])
def test_the_carry_goes_from_one_term_to_the_next(num):
    sums, last = jax.jit(lambda: accumulate(lambda i, carry: (carry, carry + i), num, jnp.int32(2)))()
    carries = np.cumsum([2, *range(num)])
    assert (int(sums), int(last)) == (carries[:-1].sum(), carries[-1])


def test_a_single_term_is_called_without_a_loop():
    assert "while" not in str(jax.make_jaxpr(lambda: accumulate(powers, 1))())
