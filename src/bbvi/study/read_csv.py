"""Bring your own labs: a CSV file in long or wide form as `Patients`, with errors that name the line or the column."""

import csv
import difflib
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bbvi.study.patients import Patients

NOT_MEASURED = ("", "na", "nan", "null", "none", ".")


class BadFile(ValueError):
    """A file of labs that cannot be used as it is; the message says where and why."""


class Cell(NamedTuple):
    """One value of the file: a lab of a patient at a time, NaN where not measured."""

    line: int
    patient: str
    time: float
    lab: str
    value: float


class Table(NamedTuple):
    """The file as text: its name, its header and its rows with their line numbers."""

    name: str
    header: list[str]
    rows: list[tuple[int, list[str]]]

    def bad(self, message: str, line: int | None = None) -> BadFile:
        """Make an error that names the file, and the line if there is one."""
        return BadFile(f"{self.name}, {message}" if line is None else f"{self.name}, line {line}: {message}")

    def column(self, name: str, option: str) -> int:
        """Return the place of a column that the user named."""
        if name in self.header:
            return self.header.index(name)
        lowered = {column.lower(): column for column in self.header}
        close = [lowered[c] for c in difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)]
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the columns are {self.header}"
        raise self.bad(f"line 1: there is no column {name!r} ({option}); {hint}")


def read_csv(
    path: str,
    *,
    patient: str = "patient",
    time: str = "time",
    lab: str | None = None,
    value: str | None = None,
    positive_for: Sequence[str] = (),
    min_patients: int = 2,
    source: str | None = None,
) -> Patients:
    """Read patients' labs from a CSV file whose first line names the columns.

    In wide form a line is a visit: a patient, a time, and one column for each lab, empty where not measured. In long form
    a line is a measurement: patient, time, the lab's name and its value. The file is long if `lab` and `value` are given
    or if it has columns with just these names. Times are numbers, or dates as 2024-05-31 which become days since the
    first. A patient's lines must be in order of time.

    Args:
        positive_for: models that need positive labs; if there are any, a lab at or below 0 is an error.
        source: where the data come from, in a sentence; default the file's name.

    Examples:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "labs.csv")
        >>> text = "id,day,Na,K\\nann,0,139,4.1\\nann,7,141,\\nbob,0,137,3.9\\n"
        >>> with open(path, "w") as file:
        ...     _ = file.write(text)
        >>> read_csv(path, patient="id", time="day").labs[0]
        array([[139. ,   4.1],
               [141. ,   nan]])
        >>> read_csv(path, patient="id", time="days")
        Traceback (most recent call last):
        ...
        bbvi.study.read_csv.BadFile: labs.csv, line 1: there is no column 'days' (--time); did you mean 'day'?
    """
    table = _read(Path(path))
    is_long = (lab is not None or value is not None) or {"lab", "value"} <= set(table.header)
    at = {"patient": table.column(patient, "--patient"), "time": table.column(time, "--time")}
    if is_long:
        at |= {"lab": table.column(lab or "lab", "--lab"), "value": table.column(value or "value", "--value")}
    cells = list(_cells(table, at, is_long))
    _check_order(table, cells, is_long)
    _check_values(table, cells, positive_for)
    _check_coverage(table, cells, min_patients)
    return _collect(cells, table.name, source or f"{table.name}, {'long' if is_long else 'wide'} form")


def _read(path: Path) -> Table:
    if not path.is_file():
        raise BadFile(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, [field.strip() for field in row]) for row in reader]
    except UnicodeDecodeError as error:
        raise BadFile(f"{path.name} is not text in UTF-8 (byte {error.start}); export it as a CSV in UTF-8") from error
    except csv.Error as error:
        raise BadFile(f"{path.name}, line {reader.line_num}: not readable as CSV ({error})") from error
    lines = [(number, row) for number, row in lines if any(row)]
    if not lines:
        raise BadFile(f"{path.name} is empty; its first line should name the columns")
    table = Table(path.name, lines[0][1], lines[1:])
    _check_header(table)
    for number, row in table.rows:
        if len(row) != len(table.header):
            raise table.bad(f"{len(row)} fields, but line 1 names {len(table.header)} columns", number)
    return table


def _check_header(table: Table) -> None:
    header = table.header
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|"):
        raise table.bad(f"line 1: {header[0]!r} is one column; fields must be separated by commas")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        places = [i + 1 for i, name in enumerate(header) if name == twice[0]]
        raise table.bad(f"line 1: column {twice[0]!r} is there {len(places)} times, as columns {places}")
    if not table.rows:
        raise table.bad("line 1: there are no lines after the names of the columns")


def _cells(table: Table, at: dict[str, int], is_long: bool) -> Iterator[Cell]:
    """Yield the values of the file, one after the other; a wide line gives one for each lab."""
    labs = {i: name for i, name in enumerate(table.header) if i not in at.values()}
    if not is_long and not labs:
        raise table.bad(f"line 1: no columns of labs beside {table.header}")
    if not is_long and "" in labs.values():
        raise table.bad(f"line 1: column {table.header.index('') + 1} has no name")
    clock = _Clock(table, at["time"])
    for line, row in table.rows:
        patient, time = row[at["patient"]], clock.read(line, row[at["time"]])
        if patient.lower() in NOT_MEASURED:
            raise table.bad(f"no patient in column {table.header[at['patient']]!r}", line)
        if is_long:
            lab = row[at["lab"]]
            if not lab:
                raise table.bad(f"no lab in column {table.header[at['lab']]!r}", line)
            yield Cell(line, patient, time, lab, _number(table, line, table.header[at["value"]], row[at["value"]]))
        else:
            for i, lab in labs.items():
                yield Cell(line, patient, time, lab, _number(table, line, lab, row[i]))


def _number(table: Table, line: int, column: str, text: str) -> float:
    if text.lower() in NOT_MEASURED:
        return math.nan
    try:
        number = float(text)
    except ValueError:
        raise table.bad(
            f"column {column!r}: {text!r} is not a number; leave the field empty where nothing was measured", line
        ) from None
    if math.isinf(number):
        raise table.bad(f"column {column!r}: {text!r} is not finite", line)
    return number


class _Clock:
    """Reads times, all of one kind: numbers, or dates that become days since the earliest."""

    def __init__(self, table: Table, column: int):
        self.table, self.name = table, table.header[column]
        first = next((row[column] for _, row in table.rows if row[column]), "")
        self.dated = _date(first) is not None and not _is_number(first)
        days = [d for _, row in table.rows if (d := _date(row[column])) is not None] if self.dated else []
        self.start = min(days, default=0.0)

    def read(self, line: int, text: str) -> float:
        if text.lower() in NOT_MEASURED:
            raise self.table.bad(f"no time in column {self.name!r}", line)
        if self.dated:
            day = _date(text)
            if day is None:
                raise self.table.bad(f"column {self.name!r}: {text!r} is not a date like the first line's", line)
            return day - self.start
        if not _is_number(text) or not math.isfinite(float(text)):
            raise self.table.bad(
                f"column {self.name!r}: {text!r} is not a time; write a number or a date such as 2024-05-31", line
            )
        return float(text)


def _date(text: str) -> float | None:
    """Return days since 1970, or None if the text is no date."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() / 86400


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_order(table: Table, cells: list[Cell], is_long: bool) -> None:
    """Refuse a measurement that is there twice, and times of a patient that are not in order."""
    seen: dict[tuple[str, float, str], int] = {}
    last: dict[str, Cell] = {}
    for cell in cells:
        key = (cell.patient, cell.time, cell.lab)
        if key in seen:
            what = f"lab {cell.lab!r} of " if is_long else ""
            raise table.bad(
                f"{what}patient {cell.patient!r} at time {cell.time:g} is there already, in line {seen[key]}", cell.line
            )
        seen[key] = cell.line
        before = last.setdefault(cell.patient, cell)
        if cell.time < before.time:
            raise table.bad(
                f"time {cell.time:g} of patient {cell.patient!r} comes after time {before.time:g} in line "
                f"{before.line}; sort each patient's lines by time",
                cell.line,
            )
        last[cell.patient] = cell


def _check_values(table: Table, cells: list[Cell], positive_for: Sequence[str]) -> None:
    for cell in cells:
        if positive_for and cell.value <= 0:
            raise table.bad(
                f"lab {cell.lab!r} is {cell.value:g}, but {', '.join(positive_for)} need labs above 0; leave it empty "
                "if it was not measured, or choose other --models",
                cell.line,
            )


def _check_coverage(table: Table, cells: list[Cell], min_patients: int) -> None:
    """Refuse labs and patients without a measurement, and too few patients."""
    measured = [cell for cell in cells if not math.isnan(cell.value)]
    for lab in dict.fromkeys(cell.lab for cell in cells):
        if not any(cell.lab == lab for cell in measured):
            raise table.bad(f"column {lab!r}: this lab was never measured; leave it out")
    first: dict[str, int] = {}
    for cell in cells:
        first.setdefault(cell.patient, cell.line)
    with_labs = {cell.patient for cell in measured}
    for patient, line in first.items():
        if patient not in with_labs:
            raise table.bad(f"patient {patient!r} has no measurement at all; leave the patient out", line)
    if len(first) < min_patients:
        raise table.bad(f"{len(first)} patients (column of ids); the study needs {min_patients} or more")


def _collect(cells: list[Cell], name: str, source: str) -> Patients:
    lab_number = {lab: i for i, lab in enumerate(dict.fromkeys(cell.lab for cell in cells))}
    patients: dict[str, dict[float, np.ndarray]] = {}
    for cell in cells:
        visits = patients.setdefault(cell.patient, {})
        visit = visits.setdefault(cell.time, np.full(len(lab_number), np.nan))
        visit[lab_number[cell.lab]] = cell.value
    labs = [np.stack(list(visits.values())) for visits in patients.values()]
    times = [np.array(list(visits)) for visits in patients.values()]
    return Patients(labs, times, list(lab_number), list(patients), name=name, source=source)
