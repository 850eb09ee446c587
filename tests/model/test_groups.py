"""Groups as arrays, ragged lists or a source give the same rows, and padding is always marked."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bbvi
from bbvi.model.groups import ArrayGroups, Cohort, Stream, as_groups, is_number_list


def test_missing_splits_values_from_what_was_observed():
    array = np.array([[1.5, np.nan], [np.nan, -2.0]])
    values, observed = bbvi.missing(array)
    np.testing.assert_array_equal(values, [[1.5, 0.0], [0.0, -2.0]])
    np.testing.assert_array_equal(observed, [[True, False], [False, True]])
    assert np.isnan(array[0, 1]), "the array given is not changed"


def test_missing_takes_integers_and_lists():
    values, observed = bbvi.missing([1, 2])
    assert values.dtype == float
    assert observed.all()


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_a_row_of_a_cohort_is_its_own_array_and_zeros_that_are_marked(lengths):
    arrays = [np.arange(1.0, 1.0 + 2 * n).reshape(n, 2) for n in lengths]
    cohort = bbvi.ragged(visit={"y": arrays}, group={"age": np.arange(len(lengths))})
    longest = max(1, *lengths)
    assert len(cohort) == len(lengths)
    assert cohort.padded() == {"visit": longest}
    rows = cohort.take(np.arange(len(lengths)))
    if not any(lengths):
        assert not np.asarray(rows["mask"]["visit"]).any()
        return
    assert rows["y"].shape == (len(lengths), longest, 2)
    for i, (array, length) in enumerate(zip(arrays, lengths, strict=True)):
        np.testing.assert_array_equal(rows["y"][i, :length], array)
        assert not np.asarray(rows["y"][i, length:]).any()
        np.testing.assert_array_equal(rows["mask"]["visit"][i], np.arange(longest) < length)
        assert rows["length"]["visit"][i] == length
        assert rows["age"][i] == i


def test_a_cohort_may_have_several_axes_of_their_own_lengths():
    cohort = bbvi.ragged(visit={"y": [[1.0, 2.0], [3.0]]}, drug={"dose": [[1, 2, 3], []]}, group={"age": [61.0, 48.0]})
    row = cohort.take(1)
    assert cohort.padded() == {"visit": 2, "drug": 3}
    np.testing.assert_array_equal(row["mask"]["visit"], [True, False])
    np.testing.assert_array_equal(row["mask"]["drug"], [False, False, False])
    assert (int(row["length"]["visit"]), int(row["length"]["drug"]), float(row["age"])) == (1, 0, 48.0)
    np.testing.assert_array_equal(cohort.take(0)["dose"], [1, 2, 3])


def test_group_fields_may_be_trees():
    cohort = bbvi.ragged(visit={"y": [[1.0], [2.0]]}, group={"person": {"age": [61.0, 48.0], "sex": [0, 1]}})
    assert float(cohort.take(1)["person"]["age"]) == 48.0
    assert int(cohort.take(1)["person"]["sex"]) == 1


def test_fields_keep_their_kind_of_number():
    cohort = bbvi.ragged(visit={"seen": [[True, False], [True]], "count": [[1, 2], [3]], "y": [[1.0, 2.0], [3.0]]})
    kinds = {name: value.dtype.kind for name, value in cohort.fields.items()}
    assert kinds == {"seen": "b", "count": "i", "y": "f"}


def test_as_groups_understands_arrays_trees_cohorts_and_sources():
    arrays = as_groups({"x": np.ones((4, 2)), "y": [1, 2, 3, 4]})
    assert isinstance(arrays, ArrayGroups)
    assert len(arrays) == 4
    np.testing.assert_array_equal(arrays.take(np.array([2, 0]))["y"], [3, 1])
    assert len(as_groups([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])) == 3
    assert len(as_groups((np.ones(3), np.zeros((3, 5))))) == 3
    cohort = bbvi.ragged(visit={"y": [[1.0], [2.0]]})
    assert as_groups(cohort) is cohort
    assert isinstance(cohort, Cohort)


class Source:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return 3

    def __getitem__(self, indices):
        return jax.tree.map(lambda leaf: leaf[indices], self.rows)


def test_a_source_is_asked_for_the_rows_of_a_batch_only():
    source = Source({"x": np.arange(6.0).reshape(3, 2), "y": np.array([1, 2, 3])})
    groups = as_groups(source)
    assert isinstance(groups, Stream)
    assert len(groups) == 3
    rows = groups.take(np.array([2, 0]))
    np.testing.assert_array_equal(rows["x"], [[4.0, 5.0], [0.0, 1.0]])
    np.testing.assert_array_equal(rows["y"], [3, 1])
    assert (groups.padded(), groups.lengths(np.array([0]))) == ({}, {})


def test_a_source_of_text_is_refused():
    with pytest.raises(TypeError, match="data must be numbers, got <U1"):
        as_groups(Source(np.array(["a", "b", "c"]))).take(np.array([0]))


@pytest.mark.parametrize(
    ("node", "is_one"),
    [([1, 2.5], True), ([[1], [2]], True), ([np.ones(2)], False), ((1, 2), False), ({"a": 1}, False), (["a"], False)],
)
def test_a_list_of_numbers_is_an_array_and_a_list_of_arrays_is_not(node, is_one):
    assert is_number_list(node) is is_one
