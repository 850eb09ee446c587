"""The planted errors still apply to the source; `make mutants` runs the tests against each of them."""

import pytest

from tests.mutants import MUTANTS, mutate


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_still_applies(name, tmp_path):
    mutate(name, tmp_path)
    changed = (tmp_path / "bbvi" / MUTANTS[name].file).read_text()
    assert MUTANTS[name].new in changed
