"""What `import bbvi` brings along."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.compat
SLOW = "scipy.stats pandas matplotlib arviz xarray rich".split()


def imported_with(name):
    code = f"import {name}, sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_import_brings_no_slow_library_that_numpyro_does_not():
    assert not imported_with("bbvi") & set(SLOW) - imported_with("numpyro")
