"""What `import bbvi` brings along."""

import subprocess
import sys

import pytest

import bbvi

pytestmark = pytest.mark.compat
SLOW = "scipy.stats pandas matplotlib arviz xarray rich".split()


def imported_with(name):
    code = f"import {name}, sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_brings_no_slow_library_that_numpyro_does_not():
    assert not imported_with("bbvi") & set(SLOW) - imported_with("numpyro")


def test_import_brings_what_models_are_written_with_and_no_more():
    packages = {name.split(".")[1] for name in imported_with("bbvi") if name.startswith("bbvi.")}
    assert packages == {"numerics", "families", "model"}


def test_every_public_name_is_there_when_it_is_asked_for():
    code = "import bbvi; print(*(n for n in bbvi.__all__ if not hasattr(bbvi, n) or n not in dir(bbvi)))"
    assert not subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(AttributeError, match="module 'bbvi' has no attribute 'fitt'"):
        _ = bbvi.fitt
