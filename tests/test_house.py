"""The package keeps the shape it was given: few doors at the root, short files, short functions, one direction."""

import ast
import tomllib
from pathlib import Path

import pytest

import bbvi

SOURCE = Path(bbvi.__file__).parent
FILES = sorted(path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts)
MOST_LINES, MOST_LINES_OF_FUNCTION, MOST_ARGUMENTS, MOST_LAYERS = 330, 60, 8, 12


def functions(path):
    """The functions of a file but for public ones and the constructors of public classes."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    public = [node for node in tree.body if getattr(node, "name", None) in bbvi.__all__]
    aside = {*public, *(part for node in public for part in node.body if getattr(part, "name", None) == "__init__")}
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node not in aside]


def num_arguments(function):
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_only_packages_and_two_commands_stand_at_the_root():
    assert {path.name for path in SOURCE.glob("*.py")} == {"__init__.py", "__main__.py", "command.py"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    for function in functions(path):
        assert function.end_lineno - function.lineno + 1 <= MOST_LINES_OF_FUNCTION, function.name
        assert num_arguments(function) <= MOST_ARGUMENTS, function.name


def test_the_contract_is_short():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    layers, traces = project["tool"]["importlinter"]["contracts"]
    assert layers["type"] == "layers" and len(layers["layers"]) <= MOST_LAYERS
    assert traces["type"] == "forbidden" and traces["source_modules"] == ["bbvi.blankets.jaxpr"]
