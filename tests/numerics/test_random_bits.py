"""The bits of Threefry as we count: sample numbers and element numbers from 0, under the keys that `fold` makes.

Published batteries feed it one long counter. Ours is a small rectangle of counters under many keys, so the same
questions are asked of that. Seeds are fixed; a p-value fails below 1e-4.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from bbvi.numerics.address import Address, fold, seed_key, threefry

LEVEL = 1e-4
ELEMENTS, SAMPLES = 256, 1024
READINGS = ("samples first", "elements first", "second word", "groups", "steps", "parts")


def words(key, part=0, elements=ELEMENTS, samples=SAMPLES):
    element, sample = np.meshgrid(np.arange(elements), np.arange(samples), indexing="ij")
    address = Address(key, jnp.uint32(0), jnp.asarray(element, jnp.uint32), jnp.asarray(sample, jnp.uint32))
    return tuple(np.asarray(word) for word in address.bits(part))


def reading(name):
    """A stream of 2**18 words, in an order in which neighbours differ little in their address."""
    key = fold(seed_key(0), "z")
    if name == "samples first":
        return words(key)[0].ravel()
    if name == "elements first":
        return words(key)[0].T.ravel()
    if name == "second word":
        return words(key)[1].ravel()
    numbers = jnp.arange(512, dtype=jnp.uint32)
    if name == "parts":
        rows = [words(key, int(part), 16, 32)[0] for part in numbers]
    else:
        down = (lambda n: fold(fold(seed_key(0), n), "z")) if name == "steps" else (lambda n: fold(key, n))
        rows = [words(k, 0, 16, 32)[0] for k in jax.vmap(down)(numbers)]
    return np.stack(rows, axis=-1).ravel()


@pytest.fixture(params=READINGS, scope="module")
def stream(request):
    return reading(request.param)


def bits(stream):
    return np.unpackbits(stream.view(np.uint8))


def two_sided(z):
    return 2 * scipy.stats.norm.sf(np.abs(z))


def test_half_of_the_bits_are_ones(stream):
    ones = bits(stream)
    assert two_sided((2.0 * ones.sum() - ones.size) / np.sqrt(ones.size)) > LEVEL


def test_each_of_the_32_bits_is_fair(stream):
    position = (stream[:, None] >> np.arange(32, dtype=np.uint32)) & 1
    z = (2.0 * position.sum(0) - stream.size) / np.sqrt(stream.size)
    assert scipy.stats.chi2.sf((z**2).sum(), 32) > LEVEL


def test_runs_of_equal_bits_are_as_many_as_expected(stream):
    flips = np.diff(bits(stream).astype(np.int8)) != 0
    assert two_sided((2.0 * flips.sum() - flips.size) / np.sqrt(flips.size)) > LEVEL


def test_bytes_are_uniform(stream):
    counts = np.bincount(stream.view(np.uint8), minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > LEVEL


def test_neighbouring_bytes_are_uniform_in_pairs(stream):
    high = (stream >> np.uint32(24)).astype(np.int64)
    counts = np.bincount(16 * (high[1:] >> 4) + (high[:-1] >> 4), minlength=256)
    assert scipy.stats.chisquare(counts).pvalue > LEVEL


def test_words_are_serially_uncorrelated(stream):
    u = stream / 2.0**32 - 0.5
    lags = [1, 2, 3, 7, 32, ELEMENTS, SAMPLES]
    z = np.array([12 * (u[k:] * u[:-k]).sum() / np.sqrt(u.size - k) for k in lags])
    assert two_sided(np.abs(z).max()) * len(lags) > LEVEL


def test_neighbouring_words_differ_in_half_of_their_bits(stream):
    different = np.bitwise_count(stream[1:] ^ stream[:-1])
    expected = scipy.stats.binom(32, 0.5).pmf(np.arange(33))
    counts = np.bincount(different, minlength=33)
    middle = slice(6, 27)  # the rest pooled: expected counts there are below five
    found = np.append(counts[middle], counts[:6].sum() + counts[27:].sum())
    chance = np.append(expected[middle], expected[:6].sum() + expected[27:].sum())
    assert scipy.stats.chisquare(found, chance * different.size).pvalue > LEVEL


def test_spacings_of_birthdays_collide_as_often_as_chance_has_it(stream):
    """Marsaglia's test: m birthdays in a year of n days have about Poisson(m**3 / 4n) equal spacings."""
    birthdays = np.sort(stream.reshape(-1, 4096), axis=1)  # a year of 2**32 days
    spacings = np.sort(np.diff(birthdays.astype(np.int64), axis=1), axis=1)
    equal = (np.diff(spacings, axis=1) == 0).sum()
    chance = scipy.stats.poisson(len(birthdays) * 4096**3 / 2**34)
    assert min(chance.cdf(equal), chance.sf(equal - 1)) > LEVEL


def test_gaps_between_large_words_are_geometric(stream):
    gaps = np.diff(np.flatnonzero(stream < 2**29))  # one word in eight
    k = np.arange(1, 40)
    found = np.append(np.bincount(gaps, minlength=40)[1:40], (gaps >= 40).sum())
    chance = np.append(scipy.stats.geom(1 / 8).pmf(k), scipy.stats.geom(1 / 8).sf(39))
    assert scipy.stats.chisquare(found, chance * gaps.size).pvalue > LEVEL


@pytest.mark.parametrize("place", ["sample", "element", "key 0", "key 1"])
def test_flipping_any_one_bit_flips_half_of_the_output(place):
    """Avalanche: 32 input bits by 64 output bits, over counters as small as ours are.

    Only counters with a zero in that place are flipped: c and its flip make the same pair, which counts once.
    """
    key = fold(seed_key(0), "z")
    numbers = dict(zip(("sample", "element"), np.meshgrid(np.arange(64), np.arange(32)), strict=True))
    flips = []
    for bit in range(32):
        at = {
            name: (n >> bit << (bit + 1) | n & ((1 << bit) - 1)) if name == place else n for name, n in numbers.items()
        }
        counters = {name: jnp.asarray(n.ravel(), jnp.uint32) for name, n in at.items()}
        mask, changed = jnp.uint32(1 << bit), key
        before = threefry(key, counters["sample"], counters["element"])
        if place in counters:
            counters[place] = counters[place] ^ mask
        else:
            changed = jnp.asarray(key).at[int(place[-1])].set(key[int(place[-1])] ^ mask)
        after = threefry(changed, counters["sample"], counters["element"])
        delta = np.stack([np.asarray(a ^ b) for a, b in zip(after, before, strict=True)], axis=-1)
        flips.append(((delta[..., None] >> np.arange(32, dtype=np.uint32)) & 1).reshape(-1, 64).sum(0))
    flips = np.array(flips)
    z = (2.0 * flips - 64 * 32) / np.sqrt(64 * 32)
    assert two_sided(np.abs(z).max()) * z.size > LEVEL  # no output bit depends too much or too little on an input bit
    assert scipy.stats.chi2.sf((z**2).sum(), z.size) > LEVEL


def test_no_two_addresses_of_a_key_share_their_bits():
    """Threefry is a bijection of the counter: the pair of words never repeats under one key."""
    first, second = words(fold(seed_key(0), "z"))
    pairs = first.astype(np.uint64) << np.uint64(32) | second
    assert np.unique(pairs).size == pairs.size
