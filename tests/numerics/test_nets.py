"""Sobol' nets: points that are each uniform and together even."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.stats import qmc

from bbvi.numerics.address import Address, fold, seed_key
from bbvi.numerics.nets import MOST_DIMENSIONS, SobolNet, directions

BITS, DIMENSIONS = 5, 12


def at_key(key, samples, pilot=0, num_dimensions=DIMENSIONS):
    """(dimensions, samples) uniforms, an element for each pair of dimensions."""
    numbers = jnp.asarray(directions(num_dimensions, BITS))

    def one(element, sample):
        net = SobolNet(numbers, (2 * element.astype(int) + jnp.arange(2))[None], pilot)
        return jnp.stack(Address(key, jnp.uint32(0), element, sample, net).uniforms())

    many = jax.vmap(jax.vmap(one, (None, 0), -1), (0, None))
    elements = jnp.arange(num_dimensions // 2, dtype=jnp.uint32)
    return many(elements, jnp.asarray(samples, jnp.uint32)).reshape(num_dimensions, -1)


def points(seed, pilot=0):
    return np.asarray(at_key(seed_key(seed), np.arange(pilot + 2**BITS), pilot))


def over_seeds(samples, pilot=0, num=20_000):
    """(seeds, 4 dimensions, samples): the same points of many scrambles."""
    keys = jax.vmap(lambda i: fold(seed_key(7), i))(jnp.arange(num))
    return np.asarray(jax.jit(jax.vmap(lambda key: at_key(key, samples, pilot, 4)))(keys), np.float64)


def test_as_many_dimensions_as_scipy_has():
    assert MOST_DIMENSIONS == qmc.Sobol.MAXDIM


def test_direction_numbers_are_those_of_scipy():
    numbers, expected = directions(30, 6), qmc.Sobol(30, scramble=False).random(64)
    sets = [np.bitwise_xor.reduce(numbers[:, [j for j in range(6) if s >> j & 1]], axis=1) for s in range(64)]
    found = np.array(sets) / 2.0**32
    for one, other in zip(found.T, expected.T, strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
    gray = np.arange(64) ^ (np.arange(64) >> 1)
    np.testing.assert_array_equal(found[gray], expected)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("pilot", [0, 4])
def test_every_interval_of_a_net_has_one_point_in_every_coordinate(pilot, x64):
    with jax.enable_x64(x64):
        for seed in range(5):
            for net in np.split(points(seed, pilot), [pilot], axis=1):
                cells = np.sort(np.floor(net * net.shape[1]), axis=1)
                np.testing.assert_array_equal(cells, np.broadcast_to(np.arange(net.shape[1]), cells.shape))


def test_every_box_of_the_first_two_coordinates_has_one_point():
    for seed, split in itertools.product(range(5), range(BITS + 1)):
        first, second = points(seed)[:2]
        boxes = np.floor(first * 2**split) * 2 ** (BITS - split) + np.floor(second * 2 ** (BITS - split))
        np.testing.assert_array_equal(np.sort(boxes), np.arange(2**BITS))


def test_projections_on_pairs_are_as_even_as_before_the_scramble():
    """The fullest of all boxes of a size, over all pairs of coordinates: a scramble moves boxes to boxes."""

    def fullest(u):
        found = []
        for (i, j), split in itertools.product(itertools.combinations(range(DIMENSIONS), 2), range(BITS + 1)):
            boxes = np.floor(u[i] * 2**split) * 2 ** (BITS - split) + np.floor(u[j] * 2 ** (BITS - split))
            found.append(np.bincount(boxes.astype(int)).max())
        return found

    plain = qmc.Sobol(DIMENSIONS, scramble=False).random(2**BITS).T
    for seed in range(3):
        assert fullest(points(seed).astype(float)) == fullest(plain)


@pytest.mark.parametrize("sample", [0, 13, 31])
def test_every_point_is_uniform_in_all_coordinates_jointly(sample):
    u = over_seeds([sample])[..., 0]
    cells = (np.floor(u * 4) * 4 ** np.arange(4)).sum(1).astype(int)
    assert scipy.stats.chisquare(np.bincount(cells, minlength=256)).pvalue > 1e-3
    for coordinate in u.T:
        assert scipy.stats.kstest(coordinate, "uniform").pvalue > 1e-3


def test_the_small_net_is_independent_of_the_large_one():
    u = over_seeds([3, 3 + 4, 10 + 4], pilot=4)[:, 0]
    for one, other in ((u[:, 0], u[:, 1]), (u[:, 0], u[:, 2])):
        table = np.histogram2d(one, other, bins=16, range=[[0, 1], [0, 1]])[0]
        assert scipy.stats.chisquare(table.ravel()).pvalue > 1e-3


def test_points_of_one_net_are_not():
    u = over_seeds([0, 1])[:, 0]
    assert not np.any(np.floor(u[:, 0] * 2**BITS) == np.floor(u[:, 1] * 2**BITS))


def test_doubles_have_random_low_bits():
    with jax.enable_x64(True):
        u = points(3)
        assert u.dtype == np.float64
        rest = (u * 2.0**26) % 1
        assert scipy.stats.kstest(rest.ravel(), "uniform").pvalue > 1e-3
