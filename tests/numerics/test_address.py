"""Random numbers by address."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import bbvi
from bbvi.numerics.address import Address, fold, fold_names, seed_key, threefry


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_published_known_answers(key, counter, expected):
    found = threefry(jnp.array(key, jnp.uint32), *[jnp.uint32(c) for c in counter])
    assert tuple(int(word) for word in found) == expected


def uniforms(key, elements, samples):
    element, sample = jnp.meshgrid(jnp.arange(elements), jnp.arange(samples), indexing="ij")
    return Address(key, jnp.uint32(0), element.astype(jnp.uint32), sample.astype(jnp.uint32)).uniforms()


def test_uniforms_are_uniform_open_and_uncorrelated():
    first, second = (np.asarray(u, np.float64) for u in uniforms(seed_key(0), 300, 1000))
    assert first.min() > 0 and first.max() < 1
    assert scipy.stats.kstest(first.ravel(), "uniform").pvalue > 1e-3
    pairs = {
        "words": (first, second), "samples": (first[:, 1:], first[:, :-1]), "elements": (first[1:], first[:-1]),
        "diagonal": (first[1:, 1:], first[:-1, :-1]),
    }  # fmt: skip
    for name, (a, b) in pairs.items():
        correlation = np.corrcoef(a.ravel(), b.ravel())[0, 1]
        assert abs(correlation) < 4 / np.sqrt(a.size), name


def test_extreme_words_stay_inside_the_open_interval():
    from bbvi.numerics.address import _open_unit

    ends = np.asarray(_open_unit(jnp.array([0, 0xFFFFFFFF], jnp.uint32)))
    assert ends[0] > 0 and ends[1] < 1


def test_a_number_depends_on_its_address_alone():
    key = seed_key(3)
    whole = uniforms(key, 7, 50)[0]
    part = Address(key, jnp.uint32(0), jnp.uint32(4), jnp.uint32(31)).uniforms()[0]
    assert whole[4, 31] == part


def test_every_level_of_the_address_counts():
    key = seed_key(0)
    keys = [key, fold(key, 1), fold(key, 2), fold(key, "a"), fold(key, "a", 1), fold(fold(key, 1), 1), seed_key(1)]
    assert len({tuple(np.asarray(k)) for k in keys}) == len(keys)
    np.testing.assert_array_equal(fold_names(key, ["a", "b"])[1], fold(key, "b"))


def test_seeds_may_be_ints_or_jax_keys():
    assert seed_key(5).shape == seed_key(jax.random.key(5)).shape == seed_key(jax.random.PRNGKey(5)).shape == (2,)
    with pytest.raises(TypeError, match="seed must be"):
        seed_key("five")


def test_element_numbers_do_not_depend_on_padding():
    latent = bbvi.real(3, "visit", 2, "lab")
    short, long = latent.elements({"visit": 4, "lab": 1}), latent.elements({"visit": 9, "lab": 5})
    np.testing.assert_array_equal(short, long[:, :4, :, :1])
    assert len(np.unique(long)) == long.size


def test_the_host_and_the_device_fold_to_the_same_key():
    key = seed_key(11)
    assert isinstance(key, np.ndarray)
    for words in [("mu",), (3, 5), ("mu", "loc"), (np.arange(4), 2)]:
        on_device = fold(jnp.asarray(key), *words)
        assert isinstance(fold(key, *words), np.ndarray)
        assert np.array_equal(fold(key, *words), on_device)
