"""Programs that factorise small matrices run LAPACK on one thread, and others are left alone."""

import concurrent.futures

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import threadpoolctl

from bbvi.numerics.blas import factorises_small_matrices, one_thread
from bbvi.numerics.xla import for_one_run, program

pytestmark = pytest.mark.compat


def num_threads() -> int:
    assert scipy.linalg
    return max(library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas")


def seen_inside(function):
    """Run a program, and return how many threads there are when it is at work."""

    def counted(x):
        return jax.pure_callback(lambda y: np.int32(num_threads()), jax.ShapeDtypeStruct((), jnp.int32), function(x))

    return int(program(counted, **for_one_run())(jnp.eye(5)))


@pytest.fixture
def two_threads():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        if num_threads() != 2:
            pytest.skip("this BLAS cannot have two threads here")
        yield


@pytest.mark.parametrize("function", [jnp.linalg.cholesky, jnp.linalg.eigvalsh, lambda x: jnp.linalg.solve(x, x)])
def test_small_matrices_are_factorised_on_one_thread(function, two_threads):
    assert seen_inside(function) == 1
    assert num_threads() == 2


def test_programs_without_lapack_keep_their_threads(two_threads):
    assert seen_inside(lambda x: x @ x) == 2


def test_large_matrices_keep_the_threads():
    def jaxpr_of(num):
        step = lambda c, x: (jnp.linalg.cholesky(c), x)  # noqa: E731
        return jax.make_jaxpr(lambda x: jax.lax.scan(step, x, jnp.zeros(3)))(jnp.eye(num)).jaxpr

    assert factorises_small_matrices(jaxpr_of(512)) and not factorises_small_matrices(jaxpr_of(513))


def test_threads_come_back_when_the_last_is_done(two_threads):
    def brief(_):
        with one_thread:
            pass

    with one_thread:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(brief, range(50)))
        assert num_threads() == 1
    assert num_threads() == 2


def test_threads_come_back_after_an_error(two_threads):
    with pytest.raises(ZeroDivisionError), one_thread:
        _ = 1 / 0
    assert num_threads() == 2
