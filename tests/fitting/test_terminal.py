"""The bar speaks on a terminal only."""

import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.fitting.terminal import progress_bar


@pytest.fixture
def terminal(monkeypatch):
    """A terminal that is one because we say so."""
    for name in ("NO_COLOR", "TERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def no_terminal(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("wanted", [None, True, False])
def test_off_a_terminal_the_bar_is_silent(no_terminal, wanted, capsys):
    with progress_bar(wanted, 10) as report:
        report(5, -12.5)
    assert capsys.readouterr() == ("", "")


def test_a_bar_that_is_not_wanted_is_silent_on_a_terminal(terminal, capsys):
    with progress_bar(False, 10) as report:
        report(5, -12.5)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("wanted", [None, True])
def test_on_a_terminal_the_bar_shows_step_and_elbo_on_standard_error(terminal, wanted, capsys):
    with progress_bar(wanted, 2000) as report:
        report(1500, -1234.567)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 1,500" in err
    assert "ELBO -1,234.57" in err


def test_without_a_budget_of_steps_the_bar_still_shows_the_step(terminal, capsys):
    with progress_bar(None, None) as report:
        report(7, 1.0)
    assert "step 7" in capsys.readouterr().err


def test_a_fit_reports_its_last_step(terminal, capsys):
    model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
    bbvi.fit(model, stop=bbvi.Budget(steps=13), draws=bbvi.MonteCarlo(5), progress=True)
    err = capsys.readouterr().err
    assert "step 13" in err
    assert "ELBO" in err


def test_a_fit_off_a_terminal_prints_nothing(no_terminal, capfd):
    model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
    bbvi.fit(model, stop=bbvi.Budget(steps=13), draws=bbvi.MonteCarlo(5))
    assert capfd.readouterr() == ("", "")
