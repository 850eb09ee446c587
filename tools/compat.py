"""Run the tests marked `compat` with the newest dependencies on each Python found, and with the oldest declared.

    python tools/compat.py [--only newest|oldest] [--pythons "python3.11 /opt/python3.13/bin/python3.13"]

The oldest dependencies are the floors in pyproject.toml, on the oldest Python found. One more run, on the newest, is of the bridges with the newest
PyMC.
"""

import argparse
import os
import re
import shutil
import subprocess
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENVS = ROOT / ".venv-compat"
MINORS = (11, 12, 13, 14)
TEST_TOOLS = "pytest hypothesis".split()


def project() -> dict:
    """The project's table of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def floors(requirements: list[str]) -> list[str]:
    """Each requirement at the oldest version it allows.

    Examples:
        >>> floors(["jax>=0.6", "mkdocs>=1.6,<2"])
        ['jax==0.6', 'mkdocs==1.6']
    """
    found = []
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[[\w,]+\])?\s*>=\s*([\w.]+)", requirement)
        if match is None:
            raise ValueError(f"{requirement!r} has no floor: write it as name>=version")
        found.append("==".join(match.groups()))
    return found


def version_of(python: str) -> tuple[int, int] | None:
    """Its version; None if it does not run, as a version manager's stand-in for one that is not chosen."""
    if shutil.which(python) is None:
        return None
    asked = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    return tuple(map(int, asked.stdout.split())) if asked.returncode == 0 else None


def pythons(named: str) -> dict[tuple[int, int], str]:
    """Interpreters by version, oldest first: those named, or those on the path and in pyenv's folder."""
    names = named.split()
    if not names:
        pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
        for minor in MINORS:
            names += [f"python3.{minor}", *map(str, sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}")))]
    found: dict[tuple[int, int], str] = {}
    for name in names:
        version = version_of(name)
        if version is not None:
            found.setdefault(version, name)
        elif named:
            raise SystemExit(f"{name} does not run")
    if not found:
        raise SystemExit('no Python from 3.11 on was found; name some with PYTHONS="..."')
    return dict(sorted(found.items()))


def test(label: str, python: str, requirements: list[str], tests: str = "tests") -> bool:
    """Make the environment, install, run the tests; whether they passed."""
    folder = VENVS / label
    own = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "venv", "--clear", str(folder)], check=True)
    install = [own, "-m", "pip", "install", "--quiet"]
    # all at once: what they allow each other is found together
    subprocess.run([*install, "--editable", str(ROOT), *requirements, *TEST_TOOLS], check=True)
    began = time.monotonic()
    command = [own, "-m", "pytest", "-m", "compat", "-p", "no:cacheprovider", tests]
    passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    print(f"{label}: {'passed' if passed else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return passed


def main() -> None:
    """Run them all, and fail if one did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pythons", default="", help="interpreters, instead of those found")
    parser.add_argument("--only", default="", choices=["", "newest", "oldest"], help="one environment alone")
    options = parser.parse_args()
    found = pythons(options.pythons)
    oldest, newest = next(iter(found)), next(reversed(found))
    runs = []
    if options.only != "oldest":
        chosen = [newest] if options.only == "newest" else list(found)
        runs += [(f"{major}.{minor}-newest", found[major, minor], []) for major, minor in chosen]
        runs += [(f"{newest[0]}.{newest[1]}-pymc", found[newest], ["pymc"], "tests/bridges")]
    if options.only != "newest":
        runs += [(f"{oldest[0]}.{oldest[1]}-oldest", found[oldest], floors(project()["dependencies"]))]
    failed = [run[0] for run in runs if not test(*run)]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
