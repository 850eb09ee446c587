"""A forgotten sum is refused; a number that belongs to one density is not."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.model.problem import bind

Y = np.linspace(-1, 1, 5, dtype=np.float32)
X = np.ones((5, 3), np.float32)
FORGOTTEN = {
    "a likelihood": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]) + dist.Normal(X @ z["w"], 1.0).log_prob(y).sum(),
    "a prior": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.Normal(X @ z["w"], z["s"]).log_prob(y),
    "a density of one number": lambda z, y: dist.HalfCauchy(1.0).log_prob(z["s"]) + dist.Normal(0, z["s"]).log_prob(z["w"]),
    "a density of a vector": lambda z, y: dist.Dirichlet(jnp.ones(3)).log_prob(jax.nn.softmax(z["w"])) + dist.Normal(0, 1).log_prob(z["w"]),
    "in a term of a dict": lambda z, y: {"a": -z["s"], "b": dist.Normal(0, 1).log_prob(z["w"]) + dist.Normal(z["w"][0], 1.0).log_prob(y).sum()},
    "masked and weighed": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]) + (2 * jnp.where(y > 0, dist.Normal(z["s"], 1.0).log_prob(y), 0.0)).sum(),
    "subtracted, in a chain": lambda z, y: (jnp.sum(-z["w"] ** 2) - dist.Normal(0, 1).log_prob(z["w"]).sum()) - 0.5 * (y - z["w"][0]) ** 2,
    "along an axis": lambda z, y: dist.Normal(0, 1).log_prob(z["w"])[:, None] + dist.Normal(z["w"][:, None], 1.0).log_prob(y),
    "sums along an axis": lambda z, y: dist.Normal(z["w"], 1.0).log_prob(X).sum(1)[:, None] + dist.Normal(0, z["s"]).log_prob(X),
    "broadcast by hand": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]) + jnp.full(3, dist.Normal(z["w"][0], 1.0).log_prob(y).sum()),
}  # fmt: skip
MEANT = {
    "a determinant by hand": lambda z, y: -0.5 * ((X - z["w"]) ** 2).sum(1) / z["s"] - 3 * jnp.sum(jnp.log(z["s"] + z["w"] ** 2)),
    "a normaliser by hand": lambda z, y: (X * z["w"]).sum(1) - jnp.sum(jax.scipy.special.gammaln(1 + z["w"] ** 2)),
    "a rate by a dot product": lambda z, y: z["w"] @ X[0] - jnp.exp(z["w"] @ X[0]) * y**2,
    "by hand, which nobody can tell": lambda z, y: jnp.sum(-(z["w"] ** 2)) - 0.5 * (y - z["w"][0]) ** 2,
    "a normalising constant": lambda z, y: -0.5 * ((y - z["w"][0]) / z["s"]) ** 2 - jnp.log(z["s"]),
    "in a density": lambda z, y: dist.Normal(z["w"][0], z["s"]).log_prob(y),
    "a mean that is a sum": lambda z, y: dist.Normal(z["w"].sum(), 1.0).log_prob(y),
    "log determinants of rows": lambda z, y: dist.MultivariateNormal(z["w"], jnp.eye(3) * z["s"]).log_prob(X),
    "softmax": lambda z, y: jax.nn.log_softmax(z["w"]),
    "categories": lambda z, y: dist.Categorical(logits=z["w"]).log_prob(jnp.array([0, 1, 2, 2])),
    "summed": lambda z, y: (dist.Normal(0, 1).log_prob(z["w"]) + dist.Normal(z["s"], 1.0).log_prob(y).sum()).sum(),
    "single numbers": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.HalfCauchy(1.0).log_prob(z["s"]),
    "data": lambda z, y: dist.Normal(0, 1).log_prob(z["w"]) + jnp.sum(y**2),
    "along both axes": lambda z, y: dist.Normal(z["w"][:, None], z["s"]).log_prob(y) - jnp.log(z["s"]) * jnp.ones((3, 1)),
    "one element": lambda z, y: dist.Normal(0, 1).log_prob(z["w"][:1]) + dist.Normal(z["s"], 1.0).log_prob(y).sum(),
    "a mixture": lambda z, y: jax.scipy.special.logsumexp(dist.Normal(z["w"], z["s"]).log_prob(y[:, None]), axis=1),
}  # fmt: skip


def model_of(function):
    def log_joint(z, y):
        made = function(z, y)
        both = {"rest": dist.Normal(0, 1).log_prob(z["w"]).sum() + dist.Exponential(1.0).log_prob(z["s"])}
        return {**both, **made} if isinstance(made, dict) else {**both, "term": made}

    return bbvi.Model(log_joint, w=bbvi.real(3), s=bbvi.positive())


def analysed(function):
    problem, data, groups = bind(model_of(function), Y)
    return analyse(problem, data, groups)


@pytest.mark.parametrize("name", FORGOTTEN)
def test_a_forgotten_sum_is_refused(name):
    with pytest.raises(ValueError, match=r"log p would count it \d times. Sum the array before you add"):
        analysed(FORGOTTEN[name])


@pytest.mark.parametrize("name", MEANT)
def test_a_number_that_is_meant_is_taken(name):
    assert analysed(MEANT[name]).blankets.prior.shapes


def test_the_error_names_what_is_counted_and_where():
    with pytest.raises(ValueError, match=r"reads 'w' \(test_broadcast.py:\d+\) is added.*count it 3 times"):
        analysed(FORGOTTEN["a likelihood"])


def test_groups_are_looked_at_too():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_local=lambda beta, z, row: (
            dist.Normal(0, 1).log_prob(z["u"]) + dist.Normal(beta["w"], 1.0).log_prob(row).sum()
        ),
        log_likelihood=lambda beta, z, row: dist.Normal(z["u"].sum(), 1.0).log_prob(row),
        globals={"w": bbvi.real(2)},
        locals={"u": bbvi.real(2)},
    )
    with pytest.raises(ValueError, match="log_local is an array of shape"):
        bbvi.fit(model, np.ones((4, 2), np.float32))
