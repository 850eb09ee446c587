"""Which log joints may follow a path: those that are shown to be continuous, and no other."""

import jax
import jax.numpy as jnp
import pytest

from bbvi.blankets.jaxpr.intervals import Interval
from bbvi.blankets.jaxpr.jumps import find_jump
from tests.gradients.continuity_cases import CONTINUOUS, JUMPING, POSITIVE

pytestmark = pytest.mark.compat
#: continuous functions that are not shown to be: these take the score, which is right but noisier
NOT_SHOWN = {"logarithm of a real, which is nan below 0"}


def jump_of(function, inside=Interval()):  # noqa: B008
    closed = jax.make_jaxpr(function)(jnp.ones(3, jnp.float32))
    return find_jump(closed, ["z"], {"z": inside})


@pytest.mark.parametrize("name", JUMPING)
def test_no_function_that_jumps_is_taken_to_be_continuous(name):
    assert jump_of(JUMPING[name]) is not None


@pytest.mark.parametrize("name", [name for name in CONTINUOUS if name not in NOT_SHOWN])
def test_continuity_is_shown(name):
    assert jump_of(CONTINUOUS[name]) is None


@pytest.mark.parametrize("name", POSITIVE)
def test_continuity_is_shown_where_the_latent_is_positive(name):
    assert jump_of(POSITIVE[name], Interval(0.0, low_open=True)) is None


def test_the_suite_is_as_large_as_it_says():
    assert len(JUMPING) >= 60 and len(CONTINUOUS) >= 30 and len(NOT_SHOWN) <= len(CONTINUOUS) // 10
