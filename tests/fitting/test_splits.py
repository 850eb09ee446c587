"""Components put to other uses: which splits are tried first, and that a fit leaves an optimum where two components share a cluster."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi
from bbvi.fitting.splits import at_values, find_splits

_CLUSTERS = np.arange(120) % 3
_Y = np.array([-6.0, 0.0, 6.0])[_CLUSTERS] + 0.5 * np.random.default_rng(0).normal(size=120)
#: of which the first two share the first cluster, and the third has the other two
_SHARED = np.array([-6.2, -5.8, 3.0])


def _odds(means):
    p = np.exp(-0.5 * (_Y[:, None] - means) ** 2)
    return p / p.sum(1, keepdims=True)


def test_the_first_split_parts_what_has_two_clusters_and_empties_one_of_two_that_share_one():
    first = find_splits(_odds(_SHARED))[0]
    assert first.emptied in (0, 1)
    assert first.parted == 2
    counts = np.array([np.bincount(_CLUSTERS[first.values == k], minlength=3) for k in range(3)])
    assert counts.max(0).sum() >= 118  # a point far out may go with the other heap
    assert len(set(counts.argmax(0))) == 3


def test_every_pair_of_components_is_listed_once_and_each_keeps_all_rows():
    found = find_splits(_odds(np.array([-6.0, 0.0, 6.0])))
    assert len({(one.emptied, one.parted) for one in found}) == len(found) == 6
    assert all(one.values.shape == (120,) and set(one.values) <= {0, 1, 2} for one in found)


def test_few_rows_have_no_splits():
    assert find_splits(_odds(_SHARED)[:20]) == []


def test_a_split_keeps_the_shape_of_the_latent_and_q_is_nearly_sure_of_it():
    split = find_splits(_odds(_SHARED).reshape(12, 10, 3))[0]
    latent = bbvi.Model(lambda z, y: 0.0 * z["k"].sum(), k=bbvi.categorical(3, 12, 10)).globals["k"]
    logits = np.asarray(at_values(latent, split.values)["logits"])
    assert logits.shape == (12, 10, 3)
    assert np.array_equal(logits.argmax(-1), split.values)


def test_a_fit_leaves_an_optimum_in_which_two_components_share_a_cluster():
    """It starts there, and with an `init=` it has one start: only a split leads away."""

    def log_joint(z, y):
        of_chain = 0.1 * (z["k"][1:] == z["k"][:-1]).sum()
        return of_chain + dist.Normal(0, 10).log_prob(z["m"]).sum() + dist.Normal(z["m"][z["k"]], 0.5).log_prob(y).sum()

    model = bbvi.Model(
        log_joint, m=bbvi.real(3, init=_SHARED), k=bbvi.categorical(3, 120, init=_odds(_SHARED).argmax(1))
    )
    posterior = bbvi.fit(model, _Y)
    assert posterior.converged
    assert np.allclose(np.sort(posterior.mean()["m"]), [-6, 0, 6], atol=0.3)


def test_values_that_are_ruled_out_stay_ruled_out():
    """The first rows of one cluster are never of component 2, also when the rows around them are given to that one."""
    log_weights = np.zeros((120, 3))
    never = np.flatnonzero(_CLUSTERS == 0)[:20]
    log_weights[never, 2] = -np.inf

    def log_joint(z, data):
        y, log_weights = data
        of_rows = log_weights[jnp.arange(120), z["k"]].sum() + dist.Normal(z["m"][z["k"]], 0.5).log_prob(y).sum()
        return of_rows + dist.Normal(0, 10).log_prob(z["m"]).sum()

    latents = {"m": bbvi.real(3, init=_SHARED[[2, 1, 0]]), "k": bbvi.categorical(3, 120)}
    posterior = bbvi.fit(bbvi.Model(log_joint, **latents), (_Y, log_weights))
    assert np.all(posterior.probs()["k"][never, 2] == 0)
    assert np.allclose(np.sort(posterior.mean()["m"]), [-6, 0, 6], atol=0.3)
