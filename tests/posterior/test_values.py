"""Ragged values know their groups' lengths, and tables refuse nonsense with the reason."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bbvi.posterior.values import Ragged, Table


def visits(group_axis=0, draws=()):
    padded = np.arange(np.prod((*draws, 3, 4, 2))).reshape(*draws, 3, 4, 2)
    return Ragged(padded, ((0, (2, 4, 0)),), group_axis)


def test_a_group_comes_at_its_own_length():
    values = visits()
    assert [values[i].shape for i in range(3)] == [(2, 2), (4, 2), (0, 2)]
    np.testing.assert_array_equal(values[0], values.padded[0, :2])
    np.testing.assert_array_equal(values[-2], values.padded[1])
    assert len(values) == 3
    assert [one.shape for one in values] == [(2, 2), (4, 2), (0, 2)]


def test_draws_stay_in_front():
    values = visits(group_axis=1, draws=(5,))
    assert len(values) == 3
    assert [one.shape for one in values] == [(5, 2, 2), (5, 4, 2), (5, 0, 2)]
    np.testing.assert_array_equal(values[0], values.padded[:, 0, :2])


def test_two_ragged_axes_are_both_cut():
    padded = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    values = Ragged(padded, ((0, (1, 3)), (1, (4, 2))), 0)
    np.testing.assert_array_equal(values[0], padded[0, :1, :4])
    np.testing.assert_array_equal(values[1], padded[1, :3, :2])


@pytest.mark.parametrize("group", [3, -4])
def test_a_group_that_does_not_exist_is_an_index_error(group):
    with pytest.raises(IndexError, match=f"group {group} of 3"):
        visits()[group]


def test_a_ragged_value_rides_in_a_tree():
    values = visits()
    doubled = jax.tree.map(lambda leaf: 2 * leaf, {"x": values})["x"]
    np.testing.assert_array_equal(doubled[1], 2 * values[1])
    summed = jax.vmap(lambda v: jnp.sum(v.padded))(visits(group_axis=1, draws=(5,)))
    np.testing.assert_array_equal(summed, visits(group_axis=1, draws=(5,)).padded.sum((1, 2, 3)))


def test_repr_tells_groups_and_padding():
    assert repr(visits()) == "Ragged(3 groups, padded shape (3, 4, 2))"


def test_a_table_is_a_dict_that_refuses_some_names_with_the_reason():
    table = Table({"mu": 1.0}, {"k": "k has no mean; use probs()"})
    assert dict(table) == {"mu": 1.0}
    assert table["mu"] == 1.0
    with pytest.raises(TypeError, match=r"k has no mean; use probs\(\)"):
        table["k"]
    with pytest.raises(KeyError, match=r"no latent 'nu'; there are \['k', 'mu'\]"):
        table["nu"]
