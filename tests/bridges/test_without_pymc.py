"""Without the other library, its bridge says what to install."""

import sys

import pytest

import bbvi


def test_without_pymc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc", None)
    with pytest.raises(ImportError, match="pip install pymc"):
        bbvi.from_pymc(None)
