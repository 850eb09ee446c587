"""A forgotten sum is refused; a number that belongs to one density is not."""

import functools

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
MASK = np.array([True, True, False])
SEEN = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
LABELS = np.array([0, 1, 0, 1, 1])
STEP = np.arange(5)


def normal(x, mean=0.0, sd=1.0):
    return dist.Normal(mean, sd).log_prob(x)


def prior(z):
    return normal(z["w"])


def loglik(z, y):
    return normal(y, X @ z["w"])


def by_steps(z, y):
    """The log likelihood, by a loop."""
    return jax.lax.scan(lambda total, x: (total + normal(x, z["w"][0]), None), 0.0, y)[0]


HIDDEN = {
    "in where": lambda z, y: jnp.where(MASK, prior(z) + loglik(z, y).sum(), 0.0),
    "under a mask of data": lambda z, y: jnp.where(y > 0, normal(y, z["w"][0]) + prior(z).sum(), 0.0),
    "times a mask": lambda z, y: MASK * (prior(z) + loglik(z, y).sum()),
    "times weights": lambda z, y: (prior(z) + loglik(z, y).sum()) * jnp.array([0.5, 1.0, 2.0]),
    "in vmap": lambda z, y: jax.vmap(lambda w: normal(w) + loglik(z, y).sum())(z["w"]),
    "in map": lambda z, y: jax.lax.map(lambda w: normal(w) + loglik(z, y).sum(), z["w"]),
    "in scan": lambda z, y: jax.lax.scan(lambda c, w: (c, normal(w) + prior(z).sum()), None, y)[1],
    "in cond": lambda z, y: jax.lax.cond(y[0] > 0, lambda: prior(z) + loglik(z, y).sum(), lambda: prior(z)),
    "in a branch that a latent takes": lambda z, y: jax.lax.cond(y.sum() > 9, lambda w: -w**2, lambda w: normal(w) + loglik(z, y).sum(), z["w"]),
    "in select": lambda z, y: jnp.select([y > 0.5, y > -0.5], [normal(y) + prior(z).sum(), normal(y, z["s"]) + prior(z).sum()], 0.0),
    "in both cases": lambda z, y: (lambda p: jnp.where(y > 0, normal(y, z["s"]) + p, normal(y, -z["s"]) + p))(prior(z).sum()),
    "reshaped": lambda z, y: (prior(z) + loglik(z, y).sum()).reshape(3, 1),
    "flattened": lambda z, y: (normal(z["w"])[:, None] + normal(y, z["w"][:, None])).ravel(),
    "in concatenate": lambda z, y: jnp.concatenate([prior(z) + loglik(z, y).sum(), normal(y, z["s"])]),
    "in stack": lambda z, y: jnp.stack([prior(z), prior(z) + loglik(z, y).sum()]),
    "stacked": lambda z, y: (lambda lik: jnp.stack([normal(z["w"][k]) + lik for k in range(3)]))(loglik(z, y).sum()),
    "padded": lambda z, y: jnp.pad(prior(z) + loglik(z, y).sum(), 2),
    "a mean, scaled": lambda z, y: prior(z) + 5 * loglik(z, y).mean(),
    "a mean": lambda z, y: prior(z) + loglik(z, y).mean(),
    "in an entry of a dict": lambda z, y: {"a": {"b": [prior(z) + jnp.where(y > 0, loglik(z, y), 0.0).sum()]}},
    "in two entries": lambda z, y: (lambda lik: {"one": prior(z).sum() + lik, "other": -z["s"] + lik})(loglik(z, y).sum()),
    "the whole beside its parts": lambda z, y: (lambda p, lik: {"p": p, "lik": lik, "all": p.sum() + lik.sum()})(prior(z), loglik(z, y)),
    "of a mixture": lambda z, y: prior(z) + jax.nn.logsumexp(jnp.log(1 / 3) + normal(y[:, None], z["w"]), axis=1).sum(),
    "by a dot product": lambda z, y: prior(z) + jnp.ones(5) @ loglik(z, y),
    "by a loop": lambda z, y: prior(z) + by_steps(z, y),
    "added at": lambda z, y: prior(z).at[:].add(loglik(z, y).sum()),
    "a mask of what was seen": lambda z, y: jnp.where(SEEN, normal(X, z["w"]) + prior(z), 0.0),
    "of jax.scipy": lambda z, y: jax.scipy.stats.norm.logpdf(z["w"]) + jax.scipy.stats.norm.logpdf(y, z["w"][0]).sum(),
    "compiled": jax.jit(lambda z, y: jnp.where(MASK, prior(z) + loglik(z, y).sum(), 0.0)),
    "where impossible": lambda z, y: jnp.where(MASK, prior(z) + loglik(z, y).sum(), -jnp.inf),
    "in place of NaN": lambda z, y: jnp.nan_to_num(prior(z) + loglik(z, y).sum()), "clipped": lambda z, y: jnp.maximum(prior(z) + loglik(z, y).sum(), -1e9),
    "tiled": lambda z, y: prior(z) + jnp.tile(loglik(z, y).sum(), 3), "split": lambda z, y: jnp.split(prior(z) + loglik(z, y).sum(), 3), "in order": lambda z, y: (prior(z) + loglik(z, y).sum())[np.array([2, 0, 1])],
    "moved": lambda z, y: jnp.flip(jnp.transpose(prior(z)[None] + loglik(z, y).sum())),
}  # fmt: skip
ALIKE = {
    "a normaliser of the library": lambda z, y: normal(y, z["w"][0]) - dist.Normal(z["w"][0], 1.0).log_cdf(2.0),
    "cut off": lambda z, y: normal(y, z["w"][0]) - jnp.log(dist.Normal(z["w"][0], 1.0).cdf(2.0)),
    "zero truncated": lambda z, y: dist.Poisson(z["s"]).log_prob(jnp.abs(STEP) + 1) - jnp.log1p(-jnp.exp(dist.Poisson(z["s"]).log_prob(0))),
    "an unnormalised density": lambda z, y: z["w"] - jax.nn.logsumexp(z["w"]),
    "normalised": lambda z, y: normal(y, z["w"][0]) - jax.nn.logsumexp(normal(y, z["w"][0])),
    "a shared scale": lambda z, y: dist.StudentT(3.0, X @ z["w"], z["s"]).log_prob(y),
    "an hour glass": lambda z, y: -0.5 * ((y - X @ z["w"]) / z["s"]) ** 2 - jnp.log(z["s"]) - 0.5 * jnp.log(2 * jnp.pi),
    "a mixture by hand": lambda z, y: jax.nn.logsumexp(jax.nn.log_softmax(z["w"]) + normal(y[:, None], z["w"]), axis=1),
    "a mixture of the library's weights": lambda z, y: jax.nn.logsumexp(dist.Categorical(logits=z["w"]).log_prob(jnp.arange(3)) + normal(y[:, None], z["w"]), axis=1),
    "offsets of groups": lambda z, y: normal(y, z["w"][LABELS] + z["s"]),
    "the first step": lambda z, y: jnp.where(STEP == 0, normal(z["w"][0]), normal(y, z["w"][1])) + normal(y, z["s"]),
    "the first step, each whole": lambda z, y: jnp.where(STEP == 0, normal(z["w"][0]) + normal(y), normal(y, z["w"][1]) + normal(y, z["s"])),
    "added to one": lambda z, y: normal(y, z["w"][0]) + jnp.where(STEP == 0, prior(z).sum(), 0.0),
    "added to one by weights": lambda z, y: (STEP == 2) * (normal(y, z["w"][0]) + prior(z).sum()),
    "added at one": lambda z, y: normal(y, z["w"][0]).at[0].add(prior(z).sum()),
    "padded with it": lambda z, y: jnp.concatenate([prior(z), loglik(z, y).sum()[None]]),
    "stacked, each once": lambda z, y: jnp.stack([prior(z).sum(), loglik(z, y).sum()]),
    "shared out": lambda z, y: loglik(z, y) + prior(z).sum() / 5,
    "labels chosen": lambda z, y: jnp.where(LABELS == 1, dist.Bernoulli(logits=z["w"][0]).log_prob(1.0) + normal(y, 1.0, z["s"]), dist.Bernoulli(logits=z["w"][0]).log_prob(0.0) + normal(y, -1.0, z["s"])),
    "labels weighed": lambda z, y: LABELS * dist.Bernoulli(logits=z["w"][0]).log_prob(1.0) + (1 - LABELS) * dist.Bernoulli(logits=z["w"][0]).log_prob(0.0),
    "a hurdle": lambda z, y: jnp.where(y < 0, dist.Bernoulli(logits=z["w"][0]).log_prob(0.0), 0.0) + jnp.where(y >= 0, dist.Bernoulli(logits=z["w"][0]).log_prob(1.0) + normal(y, z["s"]), 0.0),
    "one of many": lambda z, y: jax.nn.one_hot(LABELS, 3) * (dist.Categorical(logits=z["w"]).log_prob(jnp.arange(3)) + normal(y[:, None], z["w"])),
    "latents that choose": lambda z, y: jax.nn.softmax(z["w"]) * (dist.Categorical(logits=z["w"]).log_prob(jnp.arange(3)) + normal(y[:, None], z["w"])),
    "a ratio": lambda z, y: (lambda p: (p + loglik(z, y).sum()) - p + normal(z["s"]))(normal(z["w"][0])),
    "parts that overlap": lambda z, y: (lambda lik: {"early": lik[:3], "late": lik[2:]})(normal(y, z["w"][0])),
    "summed by hand": lambda z, y: (prior(z) + loglik(z, y).sum()).sum(),
    "summed by steps": lambda z, y: (prior(z)[:, None] + normal(y, z["w"][:, None])).sum(1),
    "masked and summed": lambda z, y: jnp.where(MASK, prior(z) + loglik(z, y).sum(), 0.0).sum(),
    "masked densities": lambda z, y: {"a": jnp.where(y > 0, normal(y, z["w"][0]), 0.0), "b": MASK * prior(z)},
    "one that is chosen": lambda z, y: (prior(z) + loglik(z, y).sum())[1],
    "columns that labels choose": lambda z, y: (dist.Categorical(logits=z["w"]).log_prob(jnp.arange(3)) + normal(y[:, None], z["w"]))[STEP, LABELS],
    "two equal observations": lambda z, y: sum(dist.Bernoulli(logits=z["w"][0]).log_prob(1.0) for _ in range(2)), "tempered": lambda z, y: 2 * loglik(z, y).sum() + prior(z).sum(),
    "an affine change": lambda z, y: normal((y - z["w"][0]) / z["s"]) - dist.transforms.AffineTransform(0.0, z["s"]).log_abs_det_jacobian(y[0], y[0]),
}  # fmt: skip
FORGOTTEN |= HIDDEN
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


MEANT |= ALIKE


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
    with pytest.raises(
        ValueError,
        match=r"log p would count it \d times. (Sum the array before you add|Return each part of log p once)",
    ):
        analysed(FORGOTTEN[name])


@pytest.mark.parametrize("name", MEANT)
def test_a_number_that_is_meant_is_taken(name):
    assert analysed(MEANT[name]).blankets.prior.shapes


def test_the_error_names_what_is_counted_and_where():
    with pytest.raises(ValueError, match=r"reads 'w' \(test_broadcast.py:\d+\) is added.*count it 3 times"):
        analysed(FORGOTTEN["a likelihood"])


def test_many_ways_to_one_density_are_followed_as_one():
    def halved(z, y):
        total = prior(z).sum()
        for _ in range(40):
            total = 0.5 * total + 0.5 * total
        return total

    assert analysed(halved).blankets.prior.shapes
    with pytest.raises(ValueError, match="is added up 1099511627776 times"):
        analysed(lambda z, y: functools.reduce(lambda x, _: x + x, range(40), prior(z).sum()))


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


def of_groups(likelihood, rows):
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: normal(beta["m"]).sum(),
        log_local=lambda beta, z, row: normal(z["u"], beta["m"][0]),
        log_likelihood=likelihood,
        globals={"m": bbvi.real(2)},
        locals={"u": bbvi.real(3)},
    )
    problem, data, groups = bind(model, rows)
    return analyse(problem, data, groups)


ROWS = {"y": np.ones((4, 2, 3)), "seen": np.ones((4, 2, 3), bool), "weight": np.ones((4, 2)), "first": np.eye(4, 2) > 0, "label": np.ones((4, 2), int), "hot": np.ones((4, 2, 3))}  # fmt: skip


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda beta, z, row: jnp.where(row["weight"][:, None] > 0, normal(row["y"], z["u"]) + normal(beta["m"]).sum(), 0.0),
        lambda beta, z, row: jnp.where(row["seen"], normal(row["y"], z["u"]) + normal(z["u"]), 0.0),
        lambda beta, z, row: row["weight"][:, None] * (normal(row["y"], z["u"]) + normal(z["u"])),
    ],
)  # fmt: skip
def test_a_sum_that_is_forgotten_in_a_row_is_refused(likelihood):
    with pytest.raises(ValueError, match="log_likelihood is an array of shape .*would count it [26] times"):
        of_groups(likelihood, ROWS)


@pytest.mark.parametrize(
    "likelihood",
    [
        lambda beta, z, row: normal(row["y"], z["u"]).sum(1) + jnp.where(row["first"], normal(beta["m"][0]), 0.0),
        lambda beta, z, row: row["hot"] * (normal(row["y"], z["u"]) + dist.Categorical(logits=z["u"]).log_prob(jnp.arange(3))),
        lambda beta, z, row: jax.nn.one_hot(row["label"], 3) * (normal(row["y"], z["u"]) + dist.Categorical(logits=z["u"]).log_prob(jnp.arange(3))),
        lambda beta, z, row: jnp.where(row["label"] == 1, normal(row["y"][:, 0], z["u"][0]) + dist.Bernoulli(logits=beta["m"][0]).log_prob(1.0), dist.Bernoulli(logits=beta["m"][0]).log_prob(0.0)),
    ],
)  # fmt: skip
def test_what_is_chosen_in_a_row_is_taken(likelihood):
    assert of_groups(likelihood, ROWS).blankets.of_group.shapes
