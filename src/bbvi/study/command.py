"""The command `bbvi study`: options in, a plan out."""

from typing import Any

import click

from bbvi.study.models import MODELS
from bbvi.study.plan import SIZES, Plan, model_named
from bbvi.study.read_csv import BadFile


@click.command()
@click.option("--quick", is_flag=True, help=f"A few minutes: {SIZES['quick']} simulated patients alone.")
@click.option("--full", is_flag=True, help=f"The paper's size: {SIZES['full']} simulated patients.")
@click.option("--patients", "num_patients", type=int, help="How many patients to simulate.")
@click.option("--factors", "num_factors", type=int, help="K, the number of factors.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the data, the splits and the fits.")
@click.option("--out", default="study", show_default=True, help="Folder for the results; a rerun continues there.")
@click.option("--models", help=f"Some of {', '.join(MODELS)}, separated by commas.")
@click.option("--paper-settings", is_flag=True, help="The paper's hyperparameters, whatever the data.")
@click.option("--data", type=click.Path(), help="A CSV file of labs to study instead of the embedded data.")
@click.option("--patient", default="patient", show_default=True, help="Its column of patients.")
@click.option("--time", default="time", show_default=True, help="Its column of times: numbers, or dates as 2024-05-31.")
@click.option("--lab", help="Long form: its column of lab names.")
@click.option("--value", help="Long form: its column of values.")
def study(quick: bool, full: bool, models: str | None, **options: Any) -> None:
    """Run the paper's empirical study (section 5) and write a report.

    Without --data it studies a simulated cohort of the paper's shape and the Mayo Clinic's PBC data, which come with bbvi.
    """
    from bbvi.study.run import run  # matplotlib is slow to import, and --help need not wait for it

    try:
        plan = make_plan(quick=quick, full=full, models=models, **options)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        run(plan)
    except BadFile as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise click.ClickException(
            "interrupted; finished stages are kept, and the same command goes on from there"
        ) from None


def make_plan(*, quick: bool = False, full: bool = False, models: str | None = None, **options: Any) -> Plan:
    """Make the plan of a command line, or say which options do not go together.

    Examples:
        >>> make_plan(quick=True, models="gamma, gamma-ts", seed=3).models
        ('Gamma', 'Gamma-TS')
        >>> make_plan(patient="id")
        Traceback (most recent call last):
        ...
        ValueError: --patient tells how to read a file: give the file by --data
    """
    if quick and full:
        raise ValueError("--quick and --full exclude each other")
    for name in ("patient", "time", "lab", "value"):
        if options.get("data") is None and options.get(name) not in (
            None,
            name if name in ("patient", "time") else None,
        ):
            raise ValueError(f"--{name} tells how to read a file: give the file by --data")
    if models is not None:
        options["models"] = tuple(dict.fromkeys(model_named(name.strip()) for name in models.split(",")))
    return Plan(size="quick" if quick else "full" if full else "default", **options)
