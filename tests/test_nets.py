"""Sobol' nets: points that are each uniform and together even."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.stats import qmc

from bbvi.counter import Address, seed_key
from bbvi.nets import SobolNet, directions

BITS, DIMENSIONS = 5, 12


def points(seed, num_nets=1, bits=BITS, num_dimensions=DIMENSIONS, samples=None):
    """(dimensions, samples) uniforms, an element for each pair of dimensions."""
    numbers = jnp.asarray(directions(num_dimensions, bits))
    samples = np.arange(num_nets << bits) if samples is None else np.asarray(samples)

    def one(element, sample):
        dimensions = (2 * element.astype(int) + jnp.arange(2))[None]
        net = SobolNet(numbers, dimensions, num_nets)
        return jnp.stack(Address(seed_key(seed), jnp.uint32(0), element, sample, net).uniforms())

    many = jax.vmap(jax.vmap(one, (None, 0), -1), (0, None))
    found = many(jnp.arange(num_dimensions // 2, dtype=jnp.uint32), jnp.asarray(samples, jnp.uint32))
    return found.reshape(num_dimensions, len(samples))


def over_seeds(num, samples, num_nets=1, num_dimensions=4):
    """(seeds, dimensions, samples): the same points of many scrambles."""
    keys = [int(k) for k in range(num)]

    def one(low):
        def at(element, sample):
            dimensions = (2 * element.astype(int) + jnp.arange(2))[None]
            net = SobolNet(jnp.asarray(directions(num_dimensions, BITS)), dimensions, num_nets)
            key = jnp.stack([jnp.uint32(7), low])
            return jnp.stack(Address(key, jnp.uint32(0), element, sample, net).uniforms())

        many = jax.vmap(jax.vmap(at, (None, 0), -1), (0, None))
        elements = jnp.arange(num_dimensions // 2, dtype=jnp.uint32)
        return many(elements, jnp.asarray(samples, jnp.uint32)).reshape(num_dimensions, -1)

    # parts are added to the low word of a key: keep the seeds apart
    return np.asarray(jax.jit(jax.vmap(one))(jnp.asarray(keys, jnp.uint32) * np.uint32(1000)), np.float64)


def test_direction_numbers_are_those_of_scipy():
    numbers, expected = directions(30, 6), qmc.Sobol(30, scramble=False).random(64)
    sets = [np.bitwise_xor.reduce(numbers[:, [j for j in range(6) if s >> j & 1]], axis=1) for s in range(64)]
    found = np.array(sets) / 2.0**32
    for one, other in zip(found.T, expected.T, strict=True):
        np.testing.assert_array_equal(np.sort(one), np.sort(other))
    gray = np.arange(64) ^ (np.arange(64) >> 1)
    np.testing.assert_array_equal(found[gray], expected)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("num_nets", [1, 2])
def test_every_interval_of_a_net_has_one_point_in_every_coordinate(num_nets, x64):
    with jax.enable_x64(x64):
        for seed in range(5):
            nets = np.asarray(points(seed, num_nets), np.float64).reshape(DIMENSIONS, num_nets, -1)
            cells = np.sort(np.floor(nets * 2**BITS), axis=-1)
            np.testing.assert_array_equal(cells, np.broadcast_to(np.arange(2**BITS), cells.shape))


def test_every_box_of_the_first_two_coordinates_has_one_point():
    for seed, split in itertools.product(range(5), range(BITS + 1)):
        first, second = np.asarray(points(seed))[:2]
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
        assert fullest(np.asarray(points(seed), np.float64)) == fullest(plain)


@pytest.mark.parametrize("sample", [0, 13, 31])
def test_every_point_is_uniform_in_all_coordinates_jointly(sample):
    u = over_seeds(20_000, [sample])[..., 0]
    cells = (np.floor(u * 4) * 4 ** np.arange(4)).sum(1).astype(int)
    assert scipy.stats.chisquare(np.bincount(cells, minlength=256)).pvalue > 1e-3
    for coordinate in u.T:
        assert scipy.stats.kstest(coordinate, "uniform").pvalue > 1e-3


def test_nets_are_independent_of_each_other():
    u = over_seeds(20_000, [3, 3 + 2**BITS, 10 + 2**BITS], num_nets=2)[:, 0]
    for one, other in ((u[:, 0], u[:, 1]), (u[:, 0], u[:, 2])):
        table = np.histogram2d(one, other, bins=16, range=[[0, 1], [0, 1]])[0]
        assert scipy.stats.chisquare(table.ravel()).pvalue > 1e-3


def test_points_of_one_net_are_not():
    u = over_seeds(20_000, [0, 1])[:, 0]
    assert not np.any(np.floor(u[:, 0] * 2**BITS) == np.floor(u[:, 1] * 2**BITS))


def test_doubles_have_random_low_bits():
    with jax.enable_x64(True):
        u = np.asarray(points(3, bits=8))
        assert u.dtype == np.float64
        rest = (u * 2.0**26) % 1
        assert scipy.stats.kstest(rest.ravel(), "uniform").pvalue > 1e-3
