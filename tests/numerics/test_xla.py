"""How much effort the compiler makes is decided by counted work, so that the same calls are made by the same code."""

import jax
import jax.numpy as jnp
import pytest

from bbvi.numerics import xla


def num_of(function, *arguments):
    return xla.to_compute(jax.make_jaxpr(function)(*arguments).jaxpr)[0]


def test_numbers_to_compute_are_counted_through_loops_and_branches():
    x = jnp.ones((3, 4))
    assert xla.to_compute(jax.make_jaxpr(jax.jit(lambda x: x + 1))(x).jaxpr) == (12, 2)
    assert num_of(lambda x: x + 1, x) == 12
    assert num_of(lambda x: (x + 1).sum(), x) == 13
    assert num_of(lambda x: jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(4), x)[0], x) == 3 * 4 + 4
    # of two branches the longer, and four numbers that the choice takes
    assert num_of(lambda x: jax.lax.cond(x[0, 0] > 0, lambda y: y, lambda y: (y + 1) * 2, x), x) == 2 * 12 + 4


def without_end(x):
    """Go round a loop whose length is known only when it runs."""
    return jax.lax.while_loop(lambda x: x[0] < 3, lambda x: x + 1, x)


@pytest.mark.parametrize(("runs", "long", "makes_effort"), [(1, False, False), (1, True, True), (10**9, False, True)])
def test_effort_is_made_where_there_is_much_to_compute(runs, long, makes_effort, monkeypatch):
    refused = {"compiler_options": {"xla_cpu_no_such_option": 1}}
    monkeypatch.setattr(xla, "for_one_run", lambda: refused)
    program = xla.program(without_end, runs=runs)
    if makes_effort:
        assert program(jnp.zeros(5), long=long)[0] == 3
    else:
        with pytest.raises(jax.errors.JaxRuntimeError):
            program(jnp.zeros(5), long=long)


def test_a_program_is_chosen_for_each_shape_whatever_came_before(monkeypatch):
    refused = {"compiler_options": {"xla_cpu_no_such_option": 1}}
    program = xla.program(without_end, runs=10**6)
    assert program(jnp.zeros(5))[0] == program(jnp.zeros(10**5))[0] == 3
    monkeypatch.setattr(xla, "for_one_run", lambda: refused)
    assert program(jnp.zeros(10**4))[0] == 3
    with pytest.raises(jax.errors.JaxRuntimeError):
        program(jnp.zeros(6))
