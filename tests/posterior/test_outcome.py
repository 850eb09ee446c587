"""How a fit ended is a value: it is what happened, it is saved, and older files that lack it are understood."""

import pytest

import bbvi
from bbvi.posterior.storage import read

MODEL = bbvi.Model(lambda z, _: -0.5 * (z["x"] - 1.0) ** 2, x=bbvi.real())
ENDS = {
    bbvi.Outcome.BUDGET: bbvi.Budget(steps=3),
    bbvi.Outcome.CONVERGED: bbvi.Converged(tolerance=1e3, gain=1e3, min_steps=1),
}


@pytest.mark.parametrize("outcome", ENDS)
def test_an_outcome_is_saved_with_the_posterior_and_in_the_checkpoint(outcome, tmp_path):
    path, state = tmp_path / "posterior.npz", tmp_path / "state.npz"
    posterior = bbvi.fit(MODEL, stop=ENDS[outcome], draws=bbvi.MonteCarlo(5), checkpoint=state)
    assert posterior.outcome is outcome
    assert posterior.converged == (outcome is bbvi.Outcome.CONVERGED)
    posterior.save(path)
    loaded = bbvi.load(path, MODEL)
    assert (loaded.outcome, loaded.stopped) == (outcome, posterior.stopped)
    assert read(state, "checkpoint")[0]["outcome"] == outcome.value
    assert posterior.replace(posterior.params).outcome is outcome


@pytest.mark.parametrize("outcome", bbvi.Outcome)
def test_every_outcome_has_a_sentence_and_a_value_to_find_it_by(outcome):
    assert outcome.sentence.endswith(".") and bbvi.Outcome(outcome.value) is outcome
