"""The command `bbvi`: a group to which other packages add their commands."""

import click

import bbvi
from bbvi.study.command import study


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bbvi.__version__, prog_name="bbvi")
def main() -> None:
    """Black Box Variational Inference (Ranganath, Gerrish and Blei, 2014)."""


main.add_command(study)
