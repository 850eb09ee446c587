"""A table in long form gives the same groups as lists written by hand, whatever library the table is of."""

import warnings

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import bbvi

COLUMNS = {
    "patient": ["b", "a", "b", "c", "b"],
    "day": [3, 1, 1, 1, 2],
    "labs": [3.0, 7.0, 1.0, np.nan, 2.0],
    "age": [61, 48, 61, 50, 61],
    "smokes": [1.0, np.nan, 1.0, 0.0, 1.0],
}


def by_hand():
    return bbvi.ragged(
        day={"day": [[1], [1, 2, 3], [1]], "labs": [[7.0], [1.0, 2.0, 3.0], [0.0]], "labs_observed": [[True], [True] * 3, [False]]},
        group={"age": [48, 61, 50], "smokes": [0.0, 1.0, 0.0], "smokes_observed": [False, True, True]},
    )  # fmt: skip


def tables():
    yield "pandas", pd.DataFrame(COLUMNS)
    yield "xarray", xr.Dataset({name: ("row", x) for name, x in COLUMNS.items()})
    try:
        import polars
    except ImportError:
        return
    missing = {name: [None if x != x else x for x in column] for name, column in COLUMNS.items()}
    yield "polars", polars.DataFrame(missing)


@pytest.mark.parametrize(("library", "table"), list(tables()))
def test_a_table_gives_the_groups_written_by_hand(library, table):
    found, expected = (
        cohort.take(np.arange(3)) for cohort in (bbvi.ragged(table, by="patient", order="day"), by_hand())
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_groups_keep_their_keys_as_names():
    table = pd.DataFrame(COLUMNS).drop(columns="smokes")
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["w"] ** 2),
        log_local=lambda beta, z, row: -(z["u"] ** 2),
        log_likelihood=lambda beta, z, row: -((z["u"] - beta["w"] - row["age"] / 50) ** 2),
        globals={"w": bbvi.real()},
        locals={"u": bbvi.real()},
    )
    posterior = bbvi.fit(model, bbvi.ragged(table, by="patient", order="day"), stop=bbvi.Budget(steps=0))
    u = posterior.to_arviz(3)["posterior"]["u"]
    assert u.dims == ("chain", "draw", "patient") and list(u.coords["patient"].values) == ["a", "b", "c"]


def test_groups_keep_their_names_where_their_locals_share_a_factor():
    table = pd.DataFrame(COLUMNS).drop(columns="smokes")
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["w"] ** 2),
        log_local=lambda beta, z, row: -(z["u"] ** 2) - z["v"] ** 2,
        log_likelihood=lambda beta, z, row: -((z["u"] * z["v"] - beta["w"] - row["age"] / 50) ** 2),
        globals={"w": bbvi.real()},
        locals={"u": bbvi.real(), "v": bbvi.real()},
    )
    posterior = bbvi.fit(model, bbvi.ragged(table, by="patient", order="day"), stop=bbvi.Budget(steps=0))
    assert any({"u", "v"} <= set(block.names) for block in posterior.structure)
    u = posterior.to_arviz(3)["posterior"]["u"]
    assert u.dims == ("chain", "draw", "patient") and list(u.coords["patient"].values) == ["a", "b", "c"]


def test_group_columns_can_be_named_and_dates_put_in_order():
    table = pd.DataFrame(
        {"id": [1, 1, 2], "when": pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-01"]), "x": [1.0, 1.0, 2.0]}
    )
    cohort = bbvi.ragged(table, by="id", order="when", group=())
    assert list(cohort.axes) == ["x"] and cohort.axes["x"] == "when"
    with pytest.raises(ValueError, match="no column differs"):
        bbvi.ragged(table, by="id", order="when")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"by": "ward"}, "no column 'ward'"),
        ({"order": "hour"}, "no column 'hour'"),
        ({"group": ["labs"]}, "not the same in all rows"),
        ({"by": "labs"}, "rows without a key"),
        ({"by": None}, "with by="),
    ],
)
def test_tables_that_do_not_fit_are_refused(change, words):
    with pytest.raises((TypeError, ValueError), match=words):
        bbvi.ragged(pd.DataFrame(COLUMNS), **{"by": "patient", "order": "day", **change})


def test_words_are_no_numbers():
    with pytest.raises(TypeError, match="column 'name' holds"):
        bbvi.ragged(pd.DataFrame({"id": [1, 1], "name": ["x", "y"]}), by="id")


def test_columns_that_are_the_same_within_groups_by_chance_are_doubted():
    patient = np.repeat(np.arange(8), 5)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"patient": patient, "y": rng.normal(size=40), "age": 40.0 + patient, "dose": 1.0})
    with pytest.warns(UserWarning, match=r"takes \['dose'\] as columns of the groups"):
        assert bbvi.ragged(table, by="patient").axes == {"y": "row"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bbvi.ragged(table, by="patient", group=["age"]).axes == {"y": "row", "dose": "row"}
        assert bbvi.ragged(table.drop(columns="dose"), by="patient").axes == {"y": "row"}
