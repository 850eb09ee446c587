"""The elements of a dimension as groups: the same log joint, each group counted once; what does not split is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi

pm = pytest.importorskip("pymc", reason="PyMC is not installed: pip install pymc")
pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(0)
X, Y, TABLE = RNG.normal(size=(6, 2)), RNG.normal(size=6), RNG.normal(size=(4, 6))
COORDS = {"row": np.arange(6), "field": ["a", "b"], "time": np.arange(4)}


def regression():
    x = pm.Data("x", X, dims=("row", "field"))
    w = pm.Normal("w", dims="field")
    pm.Normal("y", x @ w, 1, observed=Y, dims="row")


def levels():
    which = pm.Data("which", np.array([0, 1, 1, 0, 1, 0]), dims="row")
    a, spread = pm.Normal("a", dims="field"), pm.HalfNormal("spread")
    rate = pm.Gamma("rate", 2, spread, dims="row")
    low = pm.Normal("low")
    inside = pm.Uniform("inside", low, low + 2, dims="row")
    pm.Potential("penalty", -(a[which] ** 2) * rate, dims="row")
    pm.Normal("y", a[which] + inside, rate, observed=Y, dims="row")


def second_axis():
    mu = pm.Normal("mu", dims="time")
    t = pm.Normal("t", mu[:, None], 1, dims=("time", "row"))
    pm.Normal("y", t, 1, observed=TABLE, dims=("time", "row"))


def brought(write, **how):
    with pm.Model(coords=COORDS) as written:
        write()
    return bbvi.from_pymc(written, **how)


def total(terms):
    return sum(float(jnp.sum(term)) for term in jax.tree.leaves(terms))


@pytest.mark.parametrize("write, axes", [(regression, {}), (levels, {}), (second_axis, {"t": 1})])
def test_groups_add_up_to_the_whole(write, axes):
    (model, data), (whole, _) = brought(write, groups="row"), brought(write)
    rng = np.random.default_rng(1)
    beta = {name: jnp.asarray(latent.some_values({}, 1, rng)[0]) for name, latent in model.globals.items()}
    local = [{n: jnp.asarray(own.some_values({}, 1, rng)[0]) for n, own in model.locals.items()} for _ in range(6)]
    found = total(model.log_prior(beta))
    for number, z in enumerate(local):
        row = {name: x[number] for name, x in data.items()}
        found += total(model.log_likelihood(beta, z, row)) + (total(model.log_local(beta, z, row)) if z else 0)
    together = {name: jnp.stack([z[name] for z in local], axes.get(name, 0)) for name in model.locals}
    np.testing.assert_allclose(found, total(whole.log_joint(beta | together, None)), rtol=1e-4)


def test_a_fit_in_batches_speaks_of_the_whole_to_arviz():
    posterior = bbvi.fit(*brought(second_axis, groups="row"), batch_size=2, stop=bbvi.Budget(steps=2))
    found = posterior.to_arviz(3)
    assert found["posterior"]["t"].shape == (1, 3, 4, 6) and found["log_likelihood"]["y"].shape == (1, 3, 4, 6)


def plain_data():
    pm.Normal("y", X @ pm.Normal("w", dims="field"), 1, observed=Y, dims="row")


def coupled():
    t = pm.Normal("t", dims="row")
    pm.Normal("y", t - t.mean(), 1, observed=Y, dims="row")


def tied():
    t = pm.Normal("t", dims="row")
    pm.Normal("y", t, 1, observed=Y, dims="row")
    pm.Potential("sum", -(t.sum() ** 2))


def walk():
    t = pm.GaussianRandomWalk("t", sigma=1, init_dist=pm.Normal.dist(), dims="row")
    pm.Normal("y", t, 1, observed=Y, dims="row")


def prior_by_length():
    x = pm.Data("x", X, dims=("row", "field"))
    w = pm.Normal("w", 0, 1 / x.shape[0], dims="field")
    pm.Normal("y", x @ w, 1, observed=Y, dims="row")


@pytest.mark.parametrize("write", [plain_data, coupled, tied, walk, prior_by_length])
def test_what_does_not_split_along_the_dimension_is_refused(write):
    with pytest.raises(ValueError, match="'row': name the dimension in the dims="):
        brought(write, groups="row")


def test_a_dimension_must_be_one_of_the_model():
    with pytest.raises(
        ValueError, match=r"groups='patient', but the dimensions of the model are \['field', 'row', 'time'\]"
    ):
        brought(regression, groups="patient")


def test_random_rows_are_refused():
    def batches():
        x, y = pm.Minibatch(X, Y, batch_size=2)
        pm.Normal("y", x @ pm.Normal("w", shape=2), 1, observed=y, total_size=6)

    with pytest.raises(ValueError, match=r"as that of pm.Minibatch does: give the model all data"):
        brought(batches)
