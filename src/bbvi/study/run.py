"""Section 5, end to end: what `bbvi study` does with a plan."""

from rich.console import Console
from rich.table import Table

from bbvi.study.data_sets import DataSet, data_sets
from bbvi.study.plan import Plan


def run(plan: Plan, console: Console | None = None) -> list[DataSet]:
    """Load the data of a plan and show what they are."""
    console = Console() if console is None else console
    loaded = data_sets(plan)
    for data in loaded:
        console.print(facts_table(data))
    return loaded


def facts_table(data: DataSet) -> Table:
    """A data set in a few lines."""
    table = Table(title=data.patients.name, show_header=False, title_justify="left")
    split = {"split": f"{len(data.train)} patients for training, {len(data.test)} for the test"}
    for label, value in (data.patients.facts() | split).items():
        if label != "data":
            table.add_row(label, value)
    return table
