"""Small models whose ELBO and expected gradient can be summed exactly, and the machinery to do it."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.diagnostics.moments import full_gradient
from bbvi.draws.batch import Batch, by_bucket
from bbvi.draws.draws import AbstractDraws
from bbvi.families import Tree
from bbvi.model.groups import AbstractGroups, Cohort
from bbvi.model.problem import bind
from bbvi.numerics.address import seed_key
from bbvi.posterior.values import own_lengths
from tests.compiled import compiled

# ---- draws that are given, not drawn ------------------------------------------------------------------------


class Given(AbstractDraws):
    """Draws from a table: (*factors, samples) for globals, (group, *factors, samples) for locals."""

    num: int = eqx.field(static=True)
    table: dict[str, jax.Array]
    locals: tuple[str, ...] = eqx.field(static=True)
    chunk: int | None = eqx.field(static=True, default=None)

    def sample(self, name, family, params, address):
        table, rest = self.table[name], (-1, *family.chart.shape, self.num)
        if name in self.locals:
            return table.reshape(table.shape[0], *rest)[address.group, address.element, ..., address.sample]
        return table.reshape(rest)[address.element, ..., address.sample]


# ---- models -------------------------------------------------------------------------------------------------


def chain():
    """Three coupled bits, one term for each pair."""
    coupling = jnp.array([0.9, -0.7])

    def log_joint(z, bias):
        x = z["x"]
        return {"field": bias * x, "edges": coupling * x[1:] * x[:-1]}

    return bbvi.Model(log_joint, x=bbvi.binary(3)), jnp.array([0.4, -0.3, 0.8])


def categories():
    """Two categorical latents that a bit couples, one of them read through a table."""
    table = jnp.array([[0.3, -1.0, 0.6], [1.1, 0.2, -0.4]])

    def log_joint(z, data):
        return [table[z["b"], z["c"][0]], table[0, z["c"]] * data, 0.5 * z["b"]]

    return bbvi.Model(log_joint, b=bbvi.binary(), c=bbvi.categorical(3, 2)), jnp.array([0.7, -1.2])


def counts():
    """A Poisson count that a bit thins."""

    def log_joint(z, y):
        n = z["n"]
        return {
            "n": dist.Poisson(1.3).log_prob(n),
            "b": dist.Bernoulli(0.3).log_prob(z["b"]),
            "y": dist.Normal(n * (1.0 + z["b"]), 1.5).log_prob(y),
        }

    return bbvi.Model(log_joint, n=bbvi.count(init={"rate": 0.5}), b=bbvi.binary()), jnp.array(2.0)


def bounded():
    """A count from 0 to 3, a one-hot vector that chooses its mean, and a count without a bound that reads neither."""

    def log_joint(z, y):
        return {
            "n": dist.Binomial(3, 0.3).log_prob(z["n"]),
            "which": (jnp.array([0.2, -0.4, 0.5]) * z["which"]).sum(),
            "y": dist.Normal(z["n"] * (z["which"] @ jnp.array([0.5, 1.0, 2.0])), 1.5).log_prob(y),
            "m": dist.Poisson(0.4).log_prob(z["m"]),
        }

    latents = {
        "n": bbvi.count(q=functools.partial(dist.Binomial, total_count=3)), "which": bbvi.one_hot(3),
        "m": bbvi.count(q=dist.Geometric, init={"logits": 4.0}),
    }  # fmt: skip
    return bbvi.Model(log_joint, **latents), jnp.array(2.0)


def groups():
    """Two global bits, three groups of two local bits."""
    return (
        bbvi.HierarchicalModel(
            log_prior=lambda beta: jnp.array([0.5, -0.2]) * beta["w"],
            log_local=lambda beta, z, row: {
                "z": 0.6 * z["z"] * (2 * beta["w"] - 1),
                "pair": 0.4 * z["z"][0] * z["z"][1],
            },
            log_likelihood=lambda beta, z, row: dist.Normal(z["z"] + 0.5 * beta["w"][0], 1.0).log_prob(row["y"]),
            globals={"w": bbvi.binary(2)},
            locals={"z": bbvi.binary(2)},
        ),
        {"y": jnp.array([[0.2, 1.4], [-0.5, 0.9], [1.8, 0.1]])},
    )


def ragged_groups():
    """One global bit, groups of one and two visits, padded to two."""
    cohort = bbvi.ragged(visit={"y": [[0.7], [1.6, -0.4], [0.3]]})

    def log_local(beta, z, row):
        return jnp.where(row["mask"]["visit"], 0.8 * z["z"] * beta["w"], 0)

    def log_likelihood(beta, z, row):
        return jnp.where(row["mask"]["visit"], dist.Normal(z["z"] + 0.0, 1.0).log_prob(row["y"]), 0)

    return (
        bbvi.HierarchicalModel(
            log_prior=lambda beta: 0.3 * beta["w"],
            log_local=log_local,
            log_likelihood=log_likelihood,
            globals={"w": bbvi.binary()},
            locals={"z": bbvi.binary("visit")},
        ),
        cohort,
    )


def scanned_chain():
    """Four coupled bits in a loop that adds up the log joint."""

    def log_joint(z, bias):
        def step(carry, now):
            before, total = carry
            x, b = now
            return (x, total + b * x + 0.8 * x * before - 0.3 * before), None

        (_, total), _ = jax.lax.scan(step, (jnp.int32(1), 0.0), (z["x"], bias))
        return total

    return bbvi.Model(log_joint, x=bbvi.binary(4)), jnp.array([0.4, -0.3, 0.8, 0.1])


def walk():
    """An array without plates: each observation sees the sum of the steps so far."""

    def log_joint(z, y):
        return dist.Bernoulli(0.3).log_prob(z["z"]).sum() + dist.Normal(jnp.cumsum(z["z"]) + 0.0, 1.0).log_prob(y).sum()

    return bbvi.Model(log_joint, z=bbvi.binary(4)), jnp.array([0.3, 1.2, 0.9, 2.2])


def by_hand():
    """Products of sums, a dot product and a mask, as one writes a density by hand."""

    def log_joint(z, data):
        r = data["y"] - z["x"]
        fit = -0.5 * (1.0 + z["s"]) * jnp.dot(r, r) - 0.2 * z["t"][0] * jnp.sum(r * z["t"])
        return fit + jnp.where(data["seen"], (z["x"] * jnp.array([[0.4], [-0.3]])).sum(0), 0).sum() + 0.1 * z["s"]

    model = bbvi.Model(log_joint, x=bbvi.binary(3), s=bbvi.binary(), t=bbvi.binary(3))
    return model, {"y": jnp.array([0.2, 1.3, -0.4]), "seen": jnp.array([True, False, True])}


def ratings():
    """Users rate items that their data name, one item twice; each item is one bit."""

    def log_likelihood(beta, z, row):
        return dist.Normal(beta["item"][row["which"]] * (1.0 + z["user"]), 1.0).log_prob(row["y"])

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: (jnp.array([0.4, -0.6, 0.1]) * beta["item"]).sum(),
        log_local=lambda beta, z, row: 0.3 * z["user"],
        log_likelihood=log_likelihood,
        globals={"item": bbvi.binary(3)},
        locals={"user": bbvi.binary()},
    )
    which = jnp.array([[0, 2], [1, 1], [2, 1]])
    return model, {"which": which, "y": jnp.array([[0.2, 1.4], [-0.5, 0.9], [1.8, 0.1]])}


def matches():
    """Each match reads two strengths that its data name, once the same one twice, through a common scale."""

    def log_likelihood(beta, z, row):
        strength = (beta["scale"] + 1.0) * beta["team"] + 0.2
        levels = z["form"][row["side"]]
        return dist.Normal(strength[row["home"]] - 0.7 * strength[row["away"]] * levels, 1.0).log_prob(row["y"]).sum()

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -0.2 * beta["team"].sum() + 0.3 * beta["scale"],
        log_local=lambda beta, z, row: (0.3 * z["form"]).sum(),
        log_likelihood=log_likelihood,
        globals={"team": bbvi.binary(2), "scale": bbvi.binary()},
        locals={"form": bbvi.binary(2)},
    )
    rows = {"home": [[0, 1], [1, 1], [0, 0]], "away": [[1, 0], [1, 0], [0, 1]], "side": [[0, 1], [1, 1], [0, 0]]}
    rows = {name: jnp.array(value) for name, value in rows.items()}
    return model, {**rows, "y": jnp.array([[0.2, 1.4], [-0.5, 0.9], [1.8, 0.1]])}


def tree():
    """A tree of three numbers with three values beside a fourth of its own, and a bit that weighs one pair."""
    table = jnp.array([[0.9, -0.4, 0.2], [0.1, 0.6, -1.1], [-0.3, 0.8, 0.5]])

    def log_joint(z, field):
        s = z["s"]
        pairs = jnp.stack([table[s[0], s[1]], table[s[1], s[2]] * (0.5 + z["b"])])
        return {"field": field * s * (1.0 + s), "pairs": pairs, "b": 0.4 * z["b"]}

    latents = {"s": bbvi.categorical(3, 4, q=bbvi.MarkovTree([1, -1, 1, -1])), "b": bbvi.binary()}
    return bbvi.Model(log_joint, **latents), jnp.array([0.4, -0.3, 0.1, 0.2])


def two_chains():
    """Two chains of two bits that share a term at each place."""

    def log_joint(z, field):
        s = z["s"]
        return {"field": field * s, "along": 0.9 * (s[:, 1] == s[:, 0]), "across": 0.7 * s[0] * s[1]}

    return bbvi.Model(log_joint, s=bbvi.binary(2, 2, q=bbvi.MarkovTree())), jnp.array([[0.4, -0.3], [0.8, -0.6]])


FLAT = {
    "tree": tree, "two_chains": two_chains, "chain": chain, "categories": categories, "counts": counts, "bounded": bounded,
    "scanned_chain": scanned_chain, "walk": walk, "by_hand": by_hand,
}  # fmt: skip
HIERARCHICAL = {"groups": groups, "ragged_groups": ragged_groups, "ratings": ratings, "matches": matches}


# ---- enumeration --------------------------------------------------------------------------------------------


class Exact:
    """A bound model at a fixed lambda, with sums over all outcomes of the latents."""

    def __init__(self, model: Any, data: Any):
        self.model = model
        self.problem, self.data, self.groups = bind(model, data)
        self.analysis = analyse(self.problem, self.data, self.groups)
        start = bbvi.fit(model, data, gradient=bbvi.Score(), stop=bbvi.Budget(steps=0), seed=3)
        self.params = start._params
        self.posterior = start
        self.lengths = own_lengths(self.groups)

    def values(self, name: str) -> np.ndarray:
        """The values a factor of this latent can take, until less than 1e-12 of q is left."""
        latent = self.problem.latents[name]
        if isinstance(latent.family, Tree):
            return np.array(list(itertools.product(range(latent.family.chart.num_values), repeat=latent.event[0])))
        if latent.support == "one_hot":
            return np.eye(*latent.event, dtype=np.int32)
        if latent.support == "binary":
            return np.arange(2)
        if hasattr(latent.family.chart.support, "upper_bound"):
            return np.arange(latent.family.chart.support.upper_bound + 1)
        return np.arange(np.max(latent.family.marginals(self.posterior.params[name]).ppf(1 - 1e-12)) + 1)

    def outcomes(self) -> dict[str, np.ndarray]:
        """All outcomes of all latents, {latent: (outcome, [group,] *factors)}; padding stays 0."""
        slots = []
        for name in self.problem.latents:
            shape = self.problem.shape(name)
            if name in self.problem.globals:
                slots += [(name, index) for index in np.ndindex(*shape)]
                continue
            for group in range(self.problem.num_groups):
                for index in np.ndindex(*shape):
                    axes = self.problem.latents[name].shape
                    own = [self.lengths[a][group] if isinstance(a, str) else a for a in axes]
                    if all(i < size for i, size in zip(index, own, strict=True)):
                        slots.append((name, (group, *index)))
        values = {name: self.values(name) for name in self.problem.latents}
        combos = np.array(list(itertools.product(*[range(len(values[name])) for name, _ in slots])), np.int32)
        out = {}
        for name in self.problem.latents:
            lead = (self.problem.num_groups,) if name in self.problem.locals else ()
            shape = (*lead, *self.problem.shape(name), *self.problem.latents[name].event)
            out[name] = np.zeros((len(combos), *shape), np.int32)
        for column, (name, index) in enumerate(slots):
            out[name][(slice(None), *index)] = values[name][combos[:, column]]
        return out

    def log_joint(self, z: dict[str, Any]) -> jax.Array:
        """log p(x, z) of one outcome, all groups included, summed without any of the library's blankets."""
        beta = {name: z[name] for name in self.problem.globals}
        total = sum(term.sum() for term in self.problem.prior_terms(beta, self.data).values())
        if self.groups is not None:
            rows = self.groups.take(np.arange(self.problem.num_groups))
            local = {name: z[name] for name in self.problem.locals}
            terms = jax.vmap(lambda zi, row: self.problem.group_terms(beta, zi, row))(local, rows)
            total = total + sum(term.sum() for term in terms.values())
        return total

    def log_q(self, params: Any, z: dict[str, Any]) -> jax.Array:
        return self.posterior.replace(params).log_prob(z)

    @functools.cache  # noqa: B019  (few, and they live as long as the tests)
    def probabilities(self) -> np.ndarray:
        z, params = jax.tree.map(jnp.asarray, (self.outcomes(), self.posterior.params))
        of_all = compiled(lambda params, z: jax.vmap(lambda one: self.log_q(params, one))(z))
        return np.exp(np.asarray(of_all(params, z), np.float64))

    @functools.cache  # noqa: B019
    def gradient(self) -> Any:
        """The gradient of the enumerated ELBO."""
        z, params = jax.tree.map(jnp.asarray, (self.outcomes(), self.posterior.params))

        def elbo(params, z):
            log_q = jax.vmap(lambda one: self.log_q(params, one))(z)
            return jnp.sum(jnp.exp(log_q) * (jax.vmap(self.log_joint)(z) - log_q))

        return compiled(jax.grad(elbo))(params, z)

    def batch(self, numbers: Any) -> Batch | None:
        if self.groups is None:
            return None
        assert isinstance(self.groups, AbstractGroups)
        numbers, counts = jnp.asarray(numbers), None
        if self.analysis.buckets:
            assert isinstance(self.groups, Cohort)
            numbers, counts = by_bucket(numbers, self.groups.bucket, len(self.analysis.buckets))
        rows = jax.tree.map(lambda leaf: leaf[numbers], self.params["locals"])
        data, lengths = self.groups.take(numbers), self.groups.lengths(numbers)
        return Batch(numbers, data, lengths, rows, counts, num_groups=self.problem.num_groups)

    def expected(self, gradient: Any, num: int = 2, numbers: Any = None, chunk: int | None = None) -> Any:
        """The estimator's mean over ALL outcomes of `num` independent draws, for one batch of groups."""
        if numbers is None and self.groups is not None:
            numbers = np.arange(self.problem.num_groups)
        return self.expected_of_each(gradient, num, [numbers], chunk)[0]

    def expected_of_each(self, gradient: Any, num: int, batches: list[Any], chunk: int | None = None) -> list[Any]:
        """The same for several batches of one size, compiled once."""
        outcomes, weights = self.outcomes(), self.probabilities()

        def one(index: jax.Array, batch: Batch | None) -> Any:
            table = {name: jnp.moveaxis(jnp.asarray(z)[index], 0, -1) for name, z in outcomes.items()}
            draws = Given(num, table, tuple(self.problem.locals), chunk)
            estimate = gradient.estimate(
                self.analysis, self.params["globals"], self.data, batch, draws=draws, key=seed_key(0)
            )
            return full_gradient(estimate, batch, self.params["locals"])

        many = compiled(jax.vmap(one, in_axes=(0, None)))

        def mean(batch: Batch | None) -> Any:
            total: Any = None
            for block, exists in _blocks(len(weights), num):
                probability = np.prod(weights[block], axis=1) * exists
                found = many(jnp.asarray(block), batch)
                part = jax.tree.map(lambda leaf, p=probability: np.tensordot(p, leaf, 1), found)
                total = part if total is None else jax.tree.map(np.add, total, part)
            return total

        return [mean(self.batch(numbers)) for numbers in batches]


def _blocks(count: int, num: int, size: int = 4096) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All outcomes of `num` draws, in blocks of one length, and which of a block there are."""
    indices = np.indices((count,) * num).reshape(num, -1).T
    size = min(size, len(indices))
    for begin in range(0, len(indices), size):
        at = np.arange(begin, begin + size)
        yield indices[np.minimum(at, len(indices) - 1)], at < len(indices)


def largest_gap(one: Any, other: Any) -> float:
    """The largest difference between two gradients, over their largest entry."""
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(other))
    gaps = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), one, dict(other))
    return max(jax.tree.leaves(gaps)) / scale


def hermite(num):
    """Nodes of a standard Normal, and the probability that each stands for."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num)
    return nodes, weights / weights.sum()


def nodes_of_pair(family, params, num_nodes):
    """Coordinates that stand for all draws of q(g) q(b | g), and the probability of each, by sums over values and quadrature."""
    num, own = len(family.chart.parts), hermite(num_nodes)
    nodes = np.array(list(itertools.product(own[0], repeat=num)))
    weights = np.array([np.prod(w) for w in itertools.product(own[1], repeat=num)])
    u = params["loc"][:, None] + jnp.exp(params["scale"])[:, None] * nodes
    values = jnp.broadcast_to(family.values[:, None, None] * 1.0, (*u.shape[:-1], 1))
    q = jnp.exp(family.log_q(params))
    return jnp.concatenate([values, u], -1).reshape(-1, 1 + num), (q[:, None] * weights).ravel()
