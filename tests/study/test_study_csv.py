"""Bring your own labs: what can be read, and what each bad file is told."""

import numpy as np
import pytest

from bbvi.study.read_csv import BadFile, read_csv

WIDE = "id,day,Na,K\nann,0,139,4.1\nann,7,141,\nbob,3,137,3.9\n"
LONG = "id,day,lab,value\nann,0,Na,139\nann,0,K,4.1\nann,7,Na,141\nbob,3,Na,137\nbob,3,K,3.9\n"


@pytest.fixture
def read(tmp_path):
    def read_text(text, **options):
        path = tmp_path / "labs.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_csv(str(path), **{"patient": "id", "time": "day", **options})

    return read_text


def same(one, other):
    return (
        one.names == other.names
        and one.ids == other.ids
        and all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one.labs, other.labs, strict=True))
        and all(np.array_equal(a, b) for a, b in zip(one.times, other.times, strict=True))
    )


def test_wide_and_long_form_give_the_same_patients(read):
    wide = read(WIDE)
    assert wide.names == ["Na", "K"] and wide.ids == ["ann", "bob"]
    np.testing.assert_array_equal(wide.labs[0], [[139, 4.1], [141, np.nan]])
    np.testing.assert_array_equal(wide.times[0], [0, 7])
    assert same(wide, read(LONG))


def test_long_form_may_name_its_columns_otherwise(read):
    renamed = LONG.replace("lab,value", "test,result")
    assert same(read(LONG), read(renamed, lab="test", value="result"))


def test_columns_may_stand_in_any_order_and_lines_of_patients_alternate(read):
    assert same(read(WIDE), read("Na,day,id,K\n139,0,ann,4.1\n137,3,bob,3.9\n141,7,ann,NA\n"))


def test_dates_become_days_since_the_first(read):
    dated = WIDE.replace(",0,", ",2024-02-28,").replace(",7,", ",2024-03-06,").replace(",3,", ",2024-03-02,")
    times = read(dated).times
    np.testing.assert_array_equal(times[0], [0, 7])
    np.testing.assert_array_equal(times[1], [3])


def test_a_byte_order_mark_blank_lines_and_spaces_do_no_harm(read):
    assert same(read(WIDE), read("\ufeff" + WIDE.replace(",", ", ").replace("\nbob", "\n\nbob")))


def test_labs_at_or_below_zero_are_read_where_no_model_minds(read):
    assert read(WIDE.replace("4.1", "-4.1")).labs[0][0, 1] == -4.1


BAD = {
    "empty file": ("", {}, "labs.csv is empty"),
    "names only": ("id,day,Na\n", {}, "line 1: there are no lines"),
    "semicolons": (WIDE.replace(",", ";"), {}, "line 1: 'id;day;Na;K' is one column; fields must be separated by comma"),
    "not UTF-8": (b"id,day,Na\n\xff,0,1\n", {}, r"not text in UTF-8 \(byte 10\)"),
    "open quote": (WIDE + 'eve,0,"1', {}, "not readable as CSV"),
    "column twice": (WIDE.replace("K", "Na"), {}, r"line 1: column 'Na' is there 2 times, as columns \[3, 4\]"),
    "column without a name": (WIDE.replace("K", ""), {}, "line 1: column 4 has no name"),
    "unknown patient column": (WIDE, {"patient": "idd"}, r"no column 'idd' \(--patient\); did you mean 'id'?"),
    "unknown time column": (WIDE, {"time": "Days"}, r"no column 'Days' \(--time\); did you mean 'day'?"),
    "unknown value column": (LONG, {"lab": "lab", "value": "vlaue"}, r"'vlaue' \(--value\); did you mean 'value'?"),
    "nothing alike": (WIDE, {"time": "xyzzy"}, r"the columns are \['id', 'day', 'Na', 'K'\]"),
    "no labs": ("id,day\nann,0\n", {}, "line 1: no columns of labs"),
    "short row": (WIDE + "eve,4,138\n", {}, "line 5: 3 fields, but line 1 names 4"),
    "long row": (WIDE + "eve,4,138,4,9\n", {}, "line 5: 5 fields, but line 1 names 4"),
    "no patient": (WIDE + ",4,138,4\n", {}, "line 5: no patient in column 'id'"),
    "no time": (WIDE + "eve,,138,4\n", {}, "line 5: no time in column 'day'"),
    "time is a word": (WIDE + "eve,soon,138,4\n", {}, "line 5: column 'day': 'soon' is not a time"),
    "time is infinite": (WIDE + "eve,inf,138,4\n", {}, "line 5: column 'day': 'inf' is not a time"),
    "dates and numbers": ("id,day,Na\na,2024-01-01,1\nb,7,2\n", {}, "line 3: column 'day': '7' is not a date"),
    "lab is a word": (WIDE + "eve,4,high,4\n", {}, "line 5: column 'Na': 'high' is not a number"),
    "lab is infinite": (WIDE + "eve,4,inf,4\n", {}, "line 5: column 'Na': 'inf' is not finite"),
    "lab is zero": (WIDE + "eve,4,0,4\n", {"positive_for": ["Gamma"]}, "line 5: lab 'Na' is 0, but Gamma need labs above 0"),
    "lab is negative": (LONG + "eve,4,K,-1\n", {"positive_for": ["Gamma"]}, "line 7: lab 'K' is -1"),
    "visit twice": (WIDE + "bob,3,138,4\n", {}, "line 5: patient 'bob' at time 3 is there already, in line 4"),
    "measurement twice": (LONG + "bob,3,K,4\n", {}, "line 7: lab 'K' of patient 'bob' at time 3 is there already, in line 6"),
    "times not in order": (WIDE + "bob,1,138,4\n", {}, "line 5: time 1 of patient 'bob' comes after time 3 in line 4"),
    "lab never measured": ("id,day,Na,K\na,0,1,\nb,0,2,\n", {}, "column 'K': this lab was never measured"),
    "patient never measured": (WIDE + "eve,4,,\n", {}, "line 5: patient 'eve' has no measurement"),
    "lab without a name": (LONG + "eve,4,,1\n", {}, "line 7: no lab in column 'lab'"),
    "one patient": ("id,day,Na\na,0,1\n", {}, r"1 patients .*; the study needs 2 or more"),
    "too few patients": (WIDE, {"min_patients": 10}, "the study needs 10 or more"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_told_its_line_or_column(read, kind):
    text, options, message = BAD[kind]
    with pytest.raises(BadFile, match=message):
        read(text, **options)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(BadFile, match="missing.csv does not exist"):
        read_csv(str(tmp_path / "missing.csv"))
    with pytest.raises(BadFile, match="is not a file"):
        read_csv(str(tmp_path))
