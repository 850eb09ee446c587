"""The pages name what exists, all of it, and the code on the page about extensions runs."""

import re
import tomllib
from pathlib import Path

import pytest

import bbvi

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(text):
    """Rows of the tables of a page as dicts by column."""
    header = None
    for line in text.splitlines():
        if not line.startswith("|"):
            header = None
        elif header is None:
            header = cells(line)
        elif not set(line) <= set("|- "):
            yield dict(zip(header, cells(line), strict=True))


PAPER_TO_CODE = [row for row in tables(page("paper-to-code.md")) if "what" in row]


@pytest.mark.parametrize("row", PAPER_TO_CODE, ids=lambda row: row["what"][:40])
@pytest.mark.parametrize("column, folder", [("file", "src/bbvi"), ("test", "tests")])
def test_every_path_from_paper_to_code_exists(row, column, folder):
    paths = re.findall(r"`([\w/.]+)`", row[column])
    assert paths
    for path in paths:
        assert (
            (ROOT / path).exists() if path.startswith(("examples/", "tools/")) else (ROOT / folder / path).exists()
        ), path


def test_every_file_is_on_the_page_from_paper_to_code():
    source = ROOT / "src" / "bbvi"
    files = [path for path in source.rglob("*.py") if path.name != "__init__.py" and path.parent.name != "study"]
    listed = set(re.findall(r"`([\w/.]+\.py)`", page("paper-to-code.md")))
    # the families have a line in common, and a page of their own
    assert [p for p in files if p.parent.name != "families" and p.relative_to(source).as_posix() not in listed] == []


@pytest.mark.parametrize("name", bbvi.__all__)
def test_every_public_name_is_on_the_api_page(name):
    assert re.search(rf"^::: bbvi\.(\w+\.)*{name}$", page("api.md"), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in bbvi.__all__ if name.startswith("Abstract")])
def test_every_abstract_class_is_on_the_page_about_extensions(name):
    assert f"bbvi.{name}" in page("extending.md")


def test_the_dependencies_are_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    explained = {name for row in tables(page("dependencies.md")) for name in row["library"].split(", ")}
    assert explained == {re.match(r"[\w-]+", name).group() for name in wanted}


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    written = [*DOCS.glob("*.md"), *DOCS.glob("howto/*.py"), *DOCS.glob("gallery/*.py")]
    pages = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in written}
    assert pages <= set(re.findall(r"[\w/-]+\.md", config))


@pytest.mark.parametrize("script", sorted(DOCS.glob("gallery/*.py")), ids=lambda path: path.stem)
def test_every_example_is_in_the_gallery_with_its_picture(script):
    assert f"(gallery/{script.stem}.md)" in page("gallery.md")
    assert f"(gallery/generated/{script.stem}-1.png)" in page("gallery.md")


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda path: path.name)
def test_links_lead_to_files_and_headings(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        found = path.parent / name if name else path
        # made when the documentation is built, of a script or with the pictures that a script draws
        is_made = found.with_suffix(".py").exists() or found.parent.name == "generated"
        assert is_made or found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"\W+", "-", re.sub(r"[^\w\s-]", "", h)).strip("-").lower() for h in headings}, (
                target
            )


def test_the_code_on_the_page_about_extensions_runs_and_extends_every_class(monkeypatch):
    monkeypatch.chdir(ROOT)
    namespace, text = {}, page("extending.md")
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text[: block.start(1)].count("\n")
        exec(compile("\n" * line + block.group(1), DOCS / "extending.md", "exec"), namespace)
    written = [value for value in namespace.values() if isinstance(value, type) and value.__module__ == "builtins"]
    # families and laws have a page of their own, whose code is run by the tests of families
    classes = {n for n in bbvi.__all__ if n.startswith("Abstract")} - {"AbstractFamily", "AbstractLaw"}
    assert {name for name in classes if not any(issubclass(own, getattr(bbvi, name)) for own in written)} == set()
