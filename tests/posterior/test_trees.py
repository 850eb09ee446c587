"""Posteriors with a Markov tree answer, are saved and go on as all others do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.model.joint import Block

LOG_P = jnp.log(jnp.array([[0.9, 0.1], [0.2, 0.8]]))
Y = jnp.array([0.1, -0.4, 0.3, 2.2, 1.7, 2.4])


def log_joint(z, y):
    s = z["s"]
    prior = dist.Normal(0, 3).log_prob(z["mu"]).sum() + LOG_P[s[:-1], s[1:]].sum()
    return prior + dist.Normal(z["mu"][s], 0.7).log_prob(y).sum()


def model(**options):
    return bbvi.Model(log_joint, mu=bbvi.real(2, init=[0.0, 2.0]), s=bbvi.binary(6), **options)


@functools.cache
def fitted():
    return bbvi.fit(model(), Y)


def test_it_answers_by_latent():
    posterior = fitted()
    assert posterior.converged and Block(("s",), forest=(-1, 0, 1, 2, 3, 4)) in posterior.structure
    probs = posterior.probs()["s"]
    drawn = posterior.sample(4000, seed=1)["s"]
    assert probs.shape == (6, 2) and drawn.shape == (4000, 6)
    error = np.sqrt(probs[:, 1] * probs[:, 0] / 4000) + 1e-4
    assert np.all(np.abs(drawn.mean(0) - probs[:, 1]) < 5 * error)
    np.testing.assert_allclose(posterior.mean()["s"], probs[:, 1], atol=1e-6)
    np.testing.assert_array_equal(posterior.quantile(0.5)["s"], probs[:, 1] > 0.5)
    assert posterior.sd()["s"].shape == (6,)
    summary = posterior.summary()
    assert list(summary.index[-2:]) == ["s[4]", "s[5]"] and summary.loc["s[5]", "mode"] == 1
    assert posterior.to_arviz(50)["posterior"]["s"].shape == (1, 50, 6)
    assert "MarkovTree" in repr(bbvi.explain(model(), Y, posterior)) and "TreeExpectation()" in repr(
        bbvi.explain(model(), Y, posterior)
    )
    assert np.isfinite(float(posterior.khat(1000)))


def test_its_log_prob_is_that_of_the_chain():
    posterior = fitted()
    z = {name: leaf[0] for name, leaf in posterior.sample(1, seed=2).items()}
    logits, s = jax.nn.log_softmax(posterior.params["s"]["logits"]), z["s"]
    of_chain = sum(logits[t, s[t - 1] if t else 0, s[t]] for t in range(6))
    whole = posterior.log_prob(z)
    moved = posterior.log_prob(z | {"s": 1 - s})
    other = sum(logits[t, 1 - s[t - 1] if t else 0, 1 - s[t]] for t in range(6))
    np.testing.assert_allclose(whole - moved, of_chain - other, rtol=1e-4)


def test_it_is_saved_and_goes_on(tmp_path):
    posterior = fitted()
    posterior.save(tmp_path / "p.npz")
    loaded = bbvi.load(tmp_path / "p.npz", model(), Y)
    assert loaded.structure == posterior.structure
    np.testing.assert_array_equal(loaded.probs()["s"], posterior.probs()["s"])
    again = bbvi.fit(model(), Y, start=loaded, stop=bbvi.Budget(steps=0))
    assert again.structure == posterior.structure and abs(float(again.elbo(500)) - float(posterior.elbo(500))) < 1e-4


def test_an_interrupted_run_goes_on_bit_by_bit(tmp_path):
    whole = bbvi.fit(model(), Y, stop=bbvi.Budget(steps=20))
    resumed = None
    for resumed in bbvi.iterate(model(), Y, stop=bbvi.Budget(steps=20), checkpoint=tmp_path / "other.npz"):
        if resumed._num_steps() > 5:
            break
    resumed = bbvi.fit(model(), Y, stop=bbvi.Budget(steps=20), checkpoint=tmp_path / "other.npz")
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)


def test_by_hand_it_is_the_same_and_mean_field_is_left_alone():
    structure = fitted().structure
    by_hand = bbvi.fit(model(joint=structure), Y)
    np.testing.assert_allclose(by_hand.probs()["s"], fitted().probs()["s"], atol=1e-5)
    apart = bbvi.fit(model(joint=()), Y, stop=bbvi.Budget(steps=0))
    assert apart.structure == () and apart.params["s"]["logits"].shape == (6,)
    latents = {"mu": bbvi.real(2, init=[0.0, 2.0]), "s": bbvi.binary(6, q=bbvi.MarkovTree())}
    declared = bbvi.fit(bbvi.Model(log_joint, joint=(), **latents), Y)
    assert declared.estimators["s"] == "TreeExpectation()"
    np.testing.assert_allclose(declared.probs()["s"], fitted().probs()["s"], atol=0.02)
    wrong = Block(("mu",), forest=(-1, 0))
    with pytest.raises(ValueError, match="a forest of 2 numbers is not one over 'mu'"):
        model(joint=[wrong])


def test_nets_and_the_score_draw_it_too():
    net = bbvi.fit(model(), Y, draws=bbvi.QuasiMonteCarlo(64), stop=bbvi.Budget(steps=60))
    np.testing.assert_allclose(net.probs()["s"], fitted().probs()["s"], atol=0.03)
    declared = {"mu": bbvi.real(2), "s": bbvi.binary(6, q=bbvi.MarkovTree())}

    def second_order(z, y):
        return log_joint(z, y) + 0.3 * (z["s"][2:] == z["s"][:-2]).sum()

    hard = bbvi.Model(second_order, **declared)
    assert bbvi.fit(hard, Y, stop=bbvi.Budget(steps=2)).estimators["s"] == "Score()"
    only = bbvi.Model(lambda z, _: 0.3 * (z["s"][2:] == z["s"][:-2]).sum(), s=declared["s"])
    with pytest.raises(ValueError, match="not neighbours in its tree"):
        bbvi.fit(only, gradient=bbvi.TreeExpectation())


def test_cycles_loops_that_read_everything_and_other_kinds_stay_apart():
    def ring(z, _):
        return (0.5 * (z["s"] == jnp.roll(z["s"], 1))).sum()

    def all_at_once(z, _):
        return -0.1 * (z["s"].sum() - 2.0) ** 2

    for function in (ring, all_at_once):
        posterior = bbvi.fit(bbvi.Model(function, s=bbvi.binary(6)), stop=bbvi.Budget(steps=0))
        assert posterior.structure == ()
    with_start = bbvi.Model(log_joint, mu=bbvi.real(2), s=bbvi.binary(6, init={"logits": 0.0}))
    assert all(block.forest is None for block in bbvi.fit(with_start, Y, stop=bbvi.Budget(steps=0)).structure)


def test_doubles():
    with jax.enable_x64(True):
        posterior = bbvi.fit(model(), np.asarray(Y, float))
        assert posterior.params["s"]["logits"].dtype == np.float64
        np.testing.assert_allclose(posterior.probs()["s"], fitted().probs()["s"], atol=1e-2)
