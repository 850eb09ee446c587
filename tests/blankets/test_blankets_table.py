"""Section 3.1: the blankets of log joints as people write them, against blankets written down by hand.

The truth of a case is its terms, each by the latents that it contains, found by reading the density, not by running
the library. A term that contains no more than another does not matter here: only the largest are compared.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax

import bbvi
from bbvi.blankets.blankets import find_blankets
from bbvi.model.problem import bind

pytestmark = pytest.mark.compat

# compiling is most of the time here
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class Found(NamedTuple):
    """What the library found: which term element reads which latent element (a factor of q), and their values."""

    latents: dict[str, bbvi.model.latents.Latent]
    elements: list[tuple[str, tuple[int, ...]]]
    matrix: np.ndarray
    evaluate: Callable[[Any], tuple[np.ndarray, np.ndarray]]

    def sets(self) -> list[frozenset]:
        """The latent elements that each term element reads; without those that read none."""
        return [frozenset(self.elements[j] for j in np.flatnonzero(row)) for row in self.matrix if row.any()]


def find(model, data) -> Found:
    """The one place that knows how the library is asked for its blankets."""
    problem, data, _ = bind(model, data)
    blankets = find_blankets(problem, data, None)
    elements = [(name, index) for name in problem.latents for index in np.ndindex(problem.shape(name))]

    def at_point(z):
        terms = blankets.prior.at_samples({name: value[..., None] for name, value in z.items()}, data, 1)
        whole = sum(jnp.sum(term) for term in problem.prior_terms(z, data).values())
        return [terms[name].ravel() for name in sorted(terms)], whole

    def evaluate(points):
        # one point after the other, so that what is not moved stays the same to the last bit
        terms, whole = jax.jit(lambda points: lax.map(at_point, points), compiler_options=QUICK)(points)
        return np.concatenate([np.asarray(f) for f in terms], axis=1), np.asarray(whole)

    some = {name: latent.some_values({}, 1, np.random.default_rng(0)) for name, latent in problem.latents.items()}
    dummy = {name: np.moveaxis(value, 0, -1) for name, value in some.items()}
    shapes = jax.eval_shape(lambda z: blankets.prior.at_samples(z, data, 1), dummy)
    columns = []
    for name, index in elements:
        flat = int(np.ravel_multi_index(index, problem.shape(name))) if index else 0
        patterns = blankets.prior.patterns.get(name, {})
        assert set(patterns) <= set(shapes)
        parts = [
            patterns[term].pairs().toarray()[:, flat]
            if term in patterns
            else np.zeros(math.prod(shapes[term].shape), bool)
            for term in sorted(shapes)
        ]
        columns.append(np.concatenate(parts))
    return Found(dict(problem.latents), elements, np.stack(columns, axis=1), evaluate)


def found(model, data) -> list[frozenset]:
    return find(model, data).sets()


def by_perturbation(structure: Found, points, others):
    """Which term elements move when one latent element is replaced by its value in `others`; also the values."""
    num, width = len(next(iter(points.values()))), len(structure.elements) + 1
    batch = {name: np.repeat(np.asarray(value)[:, None], width, axis=1) for name, value in points.items()}
    for column, (name, index) in enumerate(structure.elements, start=1):
        batch[name][(slice(None), column, *index)] = np.asarray(others[name])[(slice(None), *index)]
    flat = {name: jnp.asarray(value.reshape(num * width, *value.shape[2:])) for name, value in batch.items()}
    terms, whole = structure.evaluate(flat)
    cube = terms.reshape(num, width, -1)
    same = (cube[:, 1:] == cube[:, :1]) | (np.isnan(cube[:, 1:]) & np.isnan(cube[:, :1]))
    return ~same.all(0).T, terms, whole


def maximal(sets) -> set[frozenset]:
    """The sets that no other contains."""
    distinct = {frozenset(s) for s in sets}
    return {s for s in distinct if not any(s < other for other in distinct)}


class _Elements:
    """`e.x(0, 1)` is element (0, 1) of the latent x, `e.tau()` the scalar tau."""

    def __getattr__(self, name):
        return lambda *index: (name, tuple(map(int, index)))


e = _Elements()


class Case(NamedTuple):
    model: bbvi.Model
    data: Any
    true: list[set]
    exact: bool


CASES: dict[str, Case] = {}


def case(true, data=None, *, exact=True, **latents):
    """Enter a log joint into the table; where not `exact`, the library may find that a term reads more."""

    def register(log_joint):
        CASES[log_joint.__name__] = Case(bbvi.Model(log_joint, **latents), data, true, exact)
        return log_joint

    return register


conservative = functools.partial(case, exact=False)
real, positive, categorical, binary, count = bbvi.real, bbvi.positive, bbvi.categorical, bbvi.binary, bbvi.count
Normal = dist.Normal
Y4, Y5, Y6 = np.array([0.3, -1.2, 0.8, 2.0]), np.array([0.5, 1.1, -0.7, 0.2, 1.9]), np.linspace(-1.0, 2.0, 6)
PAIRS = [{e.x(t - 1), e.x(t)} for t in range(1, 6)]
TRIPLES = [{e.x(t) for t in (i - 1, i, i + 1) if 0 <= t < 6} for i in range(6)]

# ---------------------------------------------------------------------------------------------- time series


@case(PAIRS, {"y": Y6}, x=real(6))
def chain_by_concatenate(z, data):
    before = jnp.concatenate([jnp.zeros(1), z["x"][:-1]])
    return Normal(before, 1.0).log_prob(z["x"]).sum() + Normal(z["x"], 0.5).log_prob(data["y"]).sum()


@case(PAIRS, {"y": Y6}, x=real(6))
def chain_by_slices(z, data):
    x = z["x"]
    walk = Normal(0, 1).log_prob(x[0]) + Normal(x[:-1], 1).log_prob(x[1:]).sum()
    return walk + Normal(x, 0.5).log_prob(data["y"]).sum()


@case([s | {e.sigma()} for s in PAIRS], x=real(6), sigma=positive())
def chain_by_diff(z, _):
    return Normal(0, z["sigma"]).log_prob(jnp.diff(z["x"])).sum() + Normal(0, 1).log_prob(z["x"][0])


@case(PAIRS, x=real(6))
def chain_by_roll_and_where(z, _):
    x, first = z["x"], jnp.arange(6) == 0
    return jnp.where(first, Normal(0, 1).log_prob(x), Normal(jnp.roll(x, 1), 1).log_prob(x)).sum()


@case(PAIRS, x=real(6))
def chain_by_roll_times_mask(z, _):
    x, later = z["x"], np.array([0.0, 1, 1, 1, 1, 1])
    return jnp.sum(later * Normal(jnp.roll(x, 1), 1).log_prob(x)) + Normal(0, 1).log_prob(x[0])


@case(PAIRS, {"y": Y6}, x=real(6))
def chain_by_scan_with_the_total_in_the_carry(z, data):
    def step(carry, now):
        (before, total), (x, y) = carry, now
        return (x, total + Normal(before, 1).log_prob(x) + Normal(x, 1).log_prob(y)), None

    (_, total), _ = lax.scan(step, (0.0, 0.0), (z["x"], data["y"]))
    return total


@case([{e.x(t - 1), e.x(t), e.sigma()} for t in range(1, 6)], {"y": Y6}, x=real(6), sigma=positive())
def chain_by_scan_with_the_first_state_at_the_start(z, data):
    def step(carry, now):
        (before, total), (x, y) = carry, now
        return (x, total + Normal(before, z["sigma"]).log_prob(x) + Normal(x, 1).log_prob(y)), None

    x, y = z["x"], data["y"]
    start = (x[0], Normal(0, 10).log_prob(x[0]) + Normal(x[0], 1).log_prob(y[0]))
    (_, total), _ = lax.scan(step, start, (x[1:], y[1:]))
    return total + dist.HalfCauchy(1.0).log_prob(z["sigma"])


@case(PAIRS, x=real(6))
def chain_by_scan_with_stacked_terms(z, _):
    _, terms = lax.scan(lambda before, x: (x, Normal(before, 1).log_prob(x)), 0.0, z["x"])
    return terms.sum()


@case(PAIRS, x=real(6))
def chain_by_reverse_scan(z, _):
    def step(carry, x):
        after, total = carry
        return (x, total - 0.5 * (after - x) ** 2), None

    return lax.scan(step, (0.0, 0.0), z["x"], reverse=True)[0][1]


@case(PAIRS, {"y": Y6}, x=real(6))
def chain_by_fori_loop(z, data):
    def step(t, total):
        total = total + Normal(z["x"][t - 1], 1).log_prob(z["x"][t])
        return total + Normal(z["x"][t], 1).log_prob(data["y"][t])

    return lax.fori_loop(1, 6, step, Normal(0, 1).log_prob(z["x"][0]))


@case(PAIRS, x=real(6))
def chain_by_python_loop(z, _):
    total = Normal(0, 1).log_prob(z["x"][0])
    for t in range(1, 6):
        total += Normal(z["x"][t - 1], 1).log_prob(z["x"][t])
    return total


@case([{e.x(t - 2), e.x(t - 1), e.x(t)} for t in range(2, 6)], x=real(6))
def second_order_by_scan(z, _):
    def step(carry, x):
        one, two, total = carry
        return (x, one, total + Normal(0.6 * one - 0.2 * two, 1).log_prob(x)), None

    return lax.scan(step, (0.0, 0.0, 0.0), z["x"])[0][2]


@case(
    [{e.x(t - 2), e.x(t - 1), e.x(t), e.phi(0), e.phi(1), e.sigma()} for t in range(2, 6)],
    x=real(6), phi=real(2), sigma=positive(),
)  # fmt: skip
def second_order_by_slices(z, _):
    x, phi = z["x"], z["phi"]
    mean = phi[0] * x[1:-1] + phi[1] * x[:-2]
    prior = Normal(0, 1).log_prob(phi).sum() + dist.Gamma(2.0, 1.0).log_prob(z["sigma"])
    return prior + Normal(mean, z["sigma"]).log_prob(x[2:]).sum() + Normal(0, 5).log_prob(x[:2]).sum()


@case([{e.x(t), *(e.u(s) for s in range(t + 1))} for t in range(5)], x=real(5), u=real(5))
def recurrence_by_scan_reads_all_the_past(z, _):
    def step(state, now):
        u, x = now
        state = jnp.tanh(0.8 * state + u)
        return state, Normal(state, 1).log_prob(x)

    return lax.scan(step, 0.1, (z["u"], z["x"]))[1].sum() - 0.5 * jnp.sum(z["u"] ** 2)


@case([{e.x(t), *(e.u(s) for s in range(t + 1))} for t in range(5)], x=real(5), u=real(5))
def recurrence_by_scan_with_the_total_in_the_carry(z, _):
    def step(carry, now):
        (state, total), (u, x) = carry, now
        state = 0.8 * state + u
        return (state, total + Normal(state, 1).log_prob(x)), None

    return lax.scan(step, (0.1, 0.0), (z["u"], z["x"]))[0][1]


@case([{e.x(t), *(e.u(s) for s in range(t + 1))} for t in range(5)], x=real(5), u=real(5))
def walk_by_cumulative_sum(z, _):
    return Normal(jnp.cumsum(z["u"]), 1).log_prob(z["x"]).sum() + Normal(0, 1).log_prob(z["u"]).sum()


@case([{e.mu(), e.sigma(), *(e.u(s) for s in range(6))}], {"y": Y6}, mu=real(), sigma=positive(), u=real(6))
def walk_not_centred(z, data):
    x = z["mu"] + z["sigma"] * jnp.cumsum(z["u"])
    prior = Normal(0, 1).log_prob(z["u"]).sum() + dist.HalfNormal(1.0).log_prob(z["sigma"])
    return prior + Normal(0, 5).log_prob(z["mu"]) + Normal(x, 1).log_prob(data["y"]).sum()


@case(
    [{e.h(t - 1), e.h(t), e.mu(), e.phi(), e.sigma()} for t in range(1, 5)],
    {"y": Y5}, h=real(5), mu=real(), phi=bbvi.unit_interval(), sigma=positive(),
)  # fmt: skip
def stochastic_volatility(z, data):
    h, mu, phi, sigma = z["h"], z["mu"], z["phi"], z["sigma"]
    first = Normal(mu, sigma / jnp.sqrt(1 - phi**2)).log_prob(h[0])
    later = Normal(mu + phi * (h[:-1] - mu), sigma).log_prob(h[1:]).sum()
    prior = dist.Beta(20.0, 1.5).log_prob(phi) + dist.HalfCauchy(1.0).log_prob(sigma) + Normal(0, 5).log_prob(mu)
    return prior + first + later + Normal(0, jnp.exp(h / 2)).log_prob(data["y"]).sum()


@case(
    # a level per step and factor walks by itself; a reading of lab l at visit t mixes all factors of the visit
    [{e.x(t - 1, k), e.x(t, k)} for t in range(1, 4) for k in range(2)]
    + [{e.x(t, 0), e.x(t, 1), e.W(lab, 0), e.W(lab, 1), e.o(lab)} for t in range(4) for lab in range(3)],
    {"y": np.linspace(-1, 1, 12).reshape(4, 3)},
    W=positive(3, 2), o=positive(3), x=positive(4, 2),
)  # fmt: skip
def gamma_normal_time_series(z, data):
    before = jnp.concatenate([jnp.ones((1, 2)), z["x"][:-1]])
    mean = z["x"] @ z["W"].T + z["o"]
    prior = dist.Gamma(1.0, 1.0).log_prob(z["W"]).sum() + dist.Gamma(1.0, 1.0).log_prob(z["o"]).sum()
    return prior + dist.Gamma(2.0, 2.0 / before).log_prob(z["x"]).sum() + Normal(mean, 0.1).log_prob(data["y"]).sum()


# ------------------------------------------------------------------------------- plates, regressions, designs

GROUP, ITEM = np.array([0, 0, 1, 2, 1, 2]), np.array([1, 0, 1, 0, 2, 2])
INDICATOR = np.eye(3)[GROUP]


@case([{e.mu(), e.tau(), e.theta(i)} for i in range(3)], mu=real(), tau=positive(), theta=real(3))
def eight_schools_centred(z, _):
    y, sigma = jnp.array([28.0, 8.0, -3.0]), jnp.array([15.0, 10.0, 16.0])
    prior = Normal(0, 5).log_prob(z["mu"]) + dist.HalfCauchy(5.0).log_prob(z["tau"])
    schools = Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
    return prior + schools + Normal(z["theta"], sigma).log_prob(y).sum()


@case([{e.mu(), e.tau(), e.eta(i)} for i in range(3)], mu=real(), tau=positive(), eta=real(3))
def eight_schools_not_centred(z, _):
    y, sigma = jnp.array([28.0, 8.0, -3.0]), jnp.array([15.0, 10.0, 16.0])
    theta = z["mu"] + z["tau"] * z["eta"]
    return {
        "mu": Normal(0, 5).log_prob(z["mu"]), "tau": dist.HalfCauchy(5.0).log_prob(z["tau"]),
        "eta": Normal(0, 1).log_prob(z["eta"]), "y": Normal(theta, sigma).log_prob(y),
    }  # fmt: skip


@case([{e.a(i), e.b(j)} for i in range(3) for j in range(4)], {"y": Y4[None] * Y6[:3, None]}, a=real(3), b=real(4))
def plates_by_broadcasting(z, data):
    return Normal(z["a"][:, None] + z["b"], 1.0).log_prob(data["y"]).sum()


CLASS_OF, SCHOOL_OF = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 0, 1, 1])


@case(
    [{e.school(SCHOOL_OF[c]), e.room(c), e.tau()} for c in range(4)],
    {"y": Y6}, school=real(2), room=real(4), tau=positive(),
)  # fmt: skip
def nested_plates_by_look_up(z, data):
    rooms = Normal(z["school"][SCHOOL_OF], z["tau"]).log_prob(z["room"]).sum()
    return Normal(0, 1).log_prob(z["school"]).sum() + rooms + Normal(z["room"][CLASS_OF], 1).log_prob(data["y"]).sum()


@case(
    [{e.u(g), e.v(i)} for g, i in zip(GROUP, ITEM, strict=True)],
    {"y": Y6, "group": GROUP, "item": ITEM}, u=real(3), v=real(3),
)  # fmt: skip
def crossed_effects_by_look_up(z, data):
    return Normal(z["u"][data["group"]] + z["v"][data["item"]], 1).log_prob(data["y"]).sum()


@case([{e.u(g), e.mu()} for g in range(3)], {"y": Y6, "Z": INDICATOR}, u=real(3), mu=real())
def indicator_design_in_the_data(z, data):
    return Normal(z["mu"] + data["Z"] @ z["u"], 1).log_prob(data["y"]).sum()


@case(
    [{e.u(g), e.v(i)} for g, i in zip(GROUP, ITEM, strict=True)],
    {"y": Y6, "item": ITEM}, u=real(3), v=real(3),
)  # fmt: skip
def indicator_design_as_a_constant(z, data):
    design = jnp.asarray(INDICATOR)
    return Normal(design @ z["u"] + jax.nn.one_hot(data["item"], 3) @ z["v"], 1).log_prob(data["y"]).sum()


TRIDIAGONAL = 2 * np.eye(6) - np.eye(6, k=1) - np.eye(6, k=-1)


# Q x is one vector: row i of it reads x_i and its neighbours
@case(TRIPLES, x=real(6))
def sparse_precision_quadratic_form(z, _):
    return -0.5 * z["x"] @ TRIDIAGONAL @ z["x"]


@case([s | {e.tau()} for s in TRIPLES], {"Q": TRIDIAGONAL}, x=real(6), tau=positive())
def sparse_precision_with_a_latent_scale(z, data):
    return -0.5 * z["tau"] * (z["x"] * (data["Q"] @ z["x"])).sum() + 3.0 * jnp.log(z["tau"])


@case([s | {e.tau()} for s in PAIRS], {"a": np.arange(5), "b": np.arange(1, 6)}, x=real(6), tau=positive())
def neighbours_by_edge_list(z, data):
    edge = z["x"][data["a"]] - z["x"][data["b"]]
    return -0.5 * z["tau"] * jnp.dot(edge, edge) + 2.5 * jnp.log(z["tau"])


USER, MOVIE = np.array([0, 0, 1, 2, 3]), np.array([0, 1, 1, 2, 0])


@case(
    [{e.U(u, 0), e.U(u, 1), e.V(m, 0), e.V(m, 1)} for u, m in zip(USER, MOVIE, strict=True)],
    {"y": Y5, "user": USER, "movie": MOVIE}, U=real(4, 2), V=real(3, 2),
)  # fmt: skip
def matrix_factorisation_by_look_up(z, data):
    rating = (z["U"][data["user"]] * z["V"][data["movie"]]).sum(-1)
    return Normal(rating, 1).log_prob(data["y"]).sum() - 0.5 * (z["U"] ** 2).sum() - 0.5 * (z["V"] ** 2).sum()


SEEN = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 1], [1, 1, 0]], bool)


@case(
    [{e.U(i, 0), e.U(i, 1), e.V(j, 0), e.V(j, 1)} for i, j in np.argwhere(SEEN)],
    {"y": np.linspace(-1, 1, 12).reshape(4, 3), "seen": SEEN}, U=real(4, 2), V=real(3, 2),
)  # fmt: skip
def bilinear_with_observed_entries(z, data):
    terms = Normal(z["U"] @ z["V"].T, 1).log_prob(data["y"])
    return jnp.where(data["seen"], terms, 0.0).sum()


@case([{e.a(i), e.b(j)} for i, j in np.argwhere(SEEN)], a=real(4), b=real(3))
def observed_entries_by_a_mask_of_noughts_and_ones(z, _):
    residual = z["a"][:, None] * z["b"] - 0.7
    return -0.5 * jnp.sum(SEEN.astype(np.float32) * residual**2)


@case([{e.mu(), e.x(i)} for i in range(4)], {"y": Y4, "censored": np.array([0, 1, 0, 1], bool)}, mu=real(), x=real(4))
def censored_observations(z, data):
    law = Normal(z["mu"] + z["x"], 3.0)
    terms = jnp.where(data["censored"], jnp.log1p(-law.cdf(data["y"])), law.log_prob(data["y"]))
    return terms.sum() + Normal(0, 1).log_prob(z["x"]).sum()


@case(
    [{e.z(n, 0), e.z(n, 1), e.W(d, 0), e.W(d, 1), e.psi(d)} for n in range(4) for d in range(3)],
    {"y": np.linspace(-1, 1, 12).reshape(4, 3)}, z=real(4, 2), W=real(3, 2), psi=positive(3),
)  # fmt: skip
def factor_analysis_by_einsum(z, data):
    mean = jnp.einsum("nk,dk->nd", z["z"], z["W"])
    prior = Normal(0, 1).log_prob(z["z"]).sum() + Normal(0, 1).log_prob(z["W"]).sum()
    return prior + dist.Gamma(1.0, 1.0).log_prob(z["psi"]).sum() + Normal(mean, z["psi"]).log_prob(data["y"]).sum()


@case(
    [{e.b(0), e.b(1), e.b(2)}],
    {"X": np.arange(1.0, 16).reshape(5, 3), "y": np.array([0, 1, 1, 0, 1])}, b=real(3),
)  # fmt: skip
def logistic_regression(z, data):
    likelihood = dist.Bernoulli(logits=0.1 * data["X"] @ z["b"]).log_prob(data["y"]).sum()
    return Normal(0, 1).log_prob(z["b"]).sum() + likelihood


@case(
    [{e.b(0), e.b(1), e.b(2)}, *({e.tau(), e.lam(j), e.b(j)} for j in range(3))],
    {"X": np.arange(1.0, 16).reshape(5, 3), "y": Y5}, b=real(3), lam=positive(3), tau=positive(),
)  # fmt: skip
def horseshoe_regression(z, data):
    scales = dist.HalfCauchy(1.0).log_prob(z["lam"]).sum() + dist.HalfCauchy(1.0).log_prob(z["tau"])
    slopes = Normal(0, z["lam"] * z["tau"]).log_prob(z["b"]).sum()
    return scales + slopes + Normal(0.1 * data["X"] @ z["b"], 1).log_prob(data["y"]).sum()


@case(
    [{e.a(), e.b(), e.u(g)} for g in range(3)] + [{e.sigma(), e.u(g)} for g in range(3)],
    {"x": Y6, "count": np.array([0, 2, 1, 4, 0, 3]), "group": GROUP}, a=real(), b=real(), u=real(3), sigma=positive(),
)  # fmt: skip
def poisson_regression_with_random_effects(z, data):
    rate = jnp.exp(z["a"] + z["b"] * data["x"] + z["u"][data["group"]])
    prior = Normal(0, z["sigma"]).log_prob(z["u"]).sum() + dist.HalfNormal(1.0).log_prob(z["sigma"])
    return prior + dist.Poisson(rate).log_prob(data["count"]).sum()


# ------------------------------------------------------------------------------------------- discrete latents

TABLE = np.log(np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5]]))
EMISSION = np.log(np.array([[0.7, 0.3], [0.2, 0.8], [0.5, 0.5]]))


@case([{e.s(t - 1), e.s(t)} for t in range(1, 5)], {"y": np.array([0, 1, 1, 0, 1])}, s=categorical(3, 5))
def hidden_markov_with_a_fixed_table(z, data):
    s = z["s"]
    moves = jnp.asarray(TABLE)[s[:-1], s[1:]].sum()
    return moves + jnp.asarray(EMISSION)[s, data["y"]].sum()


@case([{e.s(t - 1), e.s(t)} for t in range(1, 5)], {"y": np.array([0, 1, 1, 0, 1])}, s=categorical(3, 5))
def hidden_markov_by_scan(z, data):
    table, emission = jnp.asarray(TABLE), jnp.asarray(EMISSION)

    def step(carry, now):
        (before, total), (s, y) = carry, now
        return (s, total + table[before, s] + emission[s, y]), None

    return lax.scan(step, (0, 0.0), (z["s"], data["y"]))[0][1]


@case(
    [{e.P(0), e.P(1), e.P(2), e.s(t - 1), e.s(t)} for t in range(1, 5)]
    + [{e.mu(0), e.mu(1), e.mu(2), e.s(t)} for t in range(5)],
    {"y": Y5}, P=bbvi.simplex(3, 3), mu=real(3), s=categorical(3, 5),
)  # fmt: skip
def hidden_markov_with_latent_rows(z, data):
    s = z["s"]
    prior = dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["P"]).sum() + Normal(0, 3).log_prob(z["mu"]).sum()
    moves = dist.Categorical(probs=z["P"][s[:-1]]).log_prob(s[1:]).sum()
    return prior + moves + Normal(z["mu"][s], 1).log_prob(data["y"]).sum()


GRID_EDGES = [((i, j), (i + 1, j)) for i in range(2) for j in range(3)] + [
    ((i, j), (i, j + 1)) for i in range(3) for j in range(2)
]


@case([{e.b(*one), e.b(*other)} for one, other in GRID_EDGES], b=binary(3, 3))
def ising_grid(z, _):
    s = 2 * z["b"] - 1
    return 0.4 * ((s[1:] * s[:-1]).sum() + (s[:, 1:] * s[:, :-1]).sum())


@case([{e.b(*one), e.b(*other), e.beta()} for one, other in GRID_EDGES], b=binary(3, 3), beta=positive())
def ising_grid_with_a_latent_coupling(z, _):
    s = 2.0 * z["b"] - 1.0
    energy = jnp.sum(s[1:] * s[:-1]) + jnp.sum(s[:, 1:] * s[:, :-1])
    return z["beta"] * energy - z["beta"]


@case([{e.mu(0), e.mu(1), e.mu(2), e.w()}], {"y": Y5}, mu=real(3), w=bbvi.simplex(3))
def mixture_by_logsumexp(z, data):
    parts = jnp.log(z["w"]) + Normal(z["mu"], 1).log_prob(data["y"][:, None])
    return jax.nn.logsumexp(parts, axis=-1).sum() + dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["w"])


ASSIGNED = [{e.c(n), e.mu(0), e.mu(1), e.mu(2)} for n in range(5)]


@case(ASSIGNED + [{e.c(n), e.w()} for n in range(5)], {"y": Y5}, mu=real(3), w=bbvi.simplex(3), c=categorical(3, 5))
def mixture_with_assignments(z, data):
    assigned = dist.Categorical(probs=z["w"]).log_prob(z["c"]).sum()
    return assigned + Normal(z["mu"][z["c"]], 1).log_prob(data["y"]).sum()


@case([s | {e.b(n)} for n, s in enumerate(ASSIGNED)], {"y": Y5}, mu=real(3), b=real(5), c=categorical(3, 5))
def own_entry_of_each_row_by_index(z, data):
    table = Normal(z["b"][:, None] + z["mu"], 1).log_prob(data["y"][:, None])
    return table[jnp.arange(5), z["c"]].sum()


@case([s | {e.b(n)} for n, s in enumerate(ASSIGNED)], {"y": Y5}, mu=real(3), b=real(5), c=categorical(3, 5))
def own_entry_of_each_row_by_take_along_axis(z, data):
    table = Normal(z["b"][:, None] + z["mu"], 1).log_prob(data["y"][:, None])
    return jnp.take_along_axis(table, z["c"][:, None], axis=1).sum()


@case(
    [{e.c(n), e.b(n), e.mu(k)} for n in range(5) for k in range(3)],
    {"y": Y5}, mu=real(3), b=real(5), c=categorical(3, 5),
)  # fmt: skip
def own_entry_of_each_row_by_one_hot(z, data):
    # entry k of row n is a term by itself: c_n says whether it counts
    table = Normal(z["b"][:, None] + z["mu"], 1).log_prob(data["y"][:, None])
    return (jax.nn.one_hot(z["c"], 3) * table).sum()


DOC, WORD = np.array([0, 0, 1, 1, 1]), np.array([2, 0, 3, 1, 2])


@case(
    [{e.theta(d), e.phi(0), e.phi(1), e.phi(2)} for d in range(2)],
    {"doc": DOC, "word": WORD}, theta=bbvi.simplex(3, 2), phi=bbvi.simplex(4, 3),
)  # fmt: skip
def topics_summed_out(z, data):
    prior = (
        dist.Dirichlet(jnp.full(3, 2.0)).log_prob(z["theta"]).sum()
        + dist.Dirichlet(jnp.full(4, 2.0)).log_prob(z["phi"]).sum()
    )
    return prior + jnp.log((z["theta"][data["doc"]] * z["phi"][:, data["word"]].T).sum(-1)).sum()


@case(
    [{e.theta(DOC[n]), e.c(n)} for n in range(5)] + [{e.phi(0), e.phi(1), e.phi(2), e.c(n)} for n in range(5)],
    {"doc": DOC, "word": WORD}, theta=bbvi.simplex(3, 2), phi=bbvi.simplex(4, 3), c=categorical(3, 5),
)  # fmt: skip
def topics_with_assignments(z, data):
    chosen = jnp.log(z["theta"])[data["doc"], z["c"]].sum()
    return chosen + jnp.log(z["phi"])[z["c"], data["word"]].sum()


@case(
    [{e.s(), e.early(), e.late()}],
    {"count": np.array([3, 4, 1])}, s=categorical(4), early=positive(), late=positive(),
)  # fmt: skip
def switchpoint(z, data):
    rate = jnp.where(jnp.arange(3) < z["s"], z["early"], z["late"])
    return dist.Poisson(rate).log_prob(data["count"]).sum() - z["early"] - z["late"]


@case([{e.s(), e.a(t), e.b(t)} for t in range(3)], s=categorical(4), a=real(3), b=real(3))
def switchpoint_with_effects_of_each_time(z, _):
    return -0.5 * jnp.sum(jnp.where(jnp.arange(3) <= z["s"] - 1, z["a"], z["b"]) ** 2)


@case([{e.x(n), e.p()} for n in range(4)], {"y": np.array([0, 1, 1, 0])}, x=real(4), p=bbvi.unit_interval())
def threshold(z, data):
    chance = jnp.where(z["x"] > 0, z["p"], 0.5 * z["p"])
    return dist.Bernoulli(probs=chance).log_prob(data["y"]).sum() + Normal(0, 1).log_prob(z["x"]).sum()


@case([{e.x(i), e.x(i + 1)} for i in range(3)] + [{e.n(i), e.x(i)} for i in range(4)], x=real(4), n=count(4))
def floors_and_rounds(z, _):
    x, half = z["x"], z["n"] // 2
    pairs = (jnp.floor(2 * x[1:]) == jnp.round(x[:-1])).astype(float)
    return jnp.sum(pairs) + jnp.sum((half + z["n"] % 3) * jnp.exp(x)) + Normal(0, 1).log_prob(x).sum()


@case([{e.n(i), e.n(i + 1)} for i in range(4)], n=count(5))
def integers_with_their_sign_changed(z, _):
    n = z["n"]
    step = jnp.clip(-n[:-1] + n[1:], -9, 9)
    return dist.Poisson(3.0).log_prob(n).sum() - 0.1 * (step * step).sum()


@case([{e.n(i), e.rate()} for i in range(4)], n=count(4), rate=positive())
def counts_summed_as_integers(z, _):
    total = -jnp.sum(-jnp.minimum(z["n"], 99))
    return total * jnp.log(z["rate"]) - 4 * z["rate"] - jax.scipy.special.gammaln(z["n"] + 1.0).sum()


@case([{e.n(i), e.k(i), e.p()} for i in range(4)], n=count(4), k=count(4), p=bbvi.unit_interval())
def capture_and_recapture(z, _):
    n, k, p = z["n"] + z["k"], z["k"], z["p"]
    return dist.Poisson(4.0).log_prob(n).sum() + dist.Binomial(n, p).log_prob(k).sum()


# --------------------------------------------------------------------------------- densities written by hand


@case([{e.tau(), e.x(i)} for i in range(4)], x=real(4), tau=positive())
def precision_times_a_sum_of_squares(z, _):
    r, tau, n = z["x"] - 0.5, z["tau"], 4
    return -0.5 * tau * jnp.sum(r**2) + 0.5 * n * jnp.log(tau)


@case([{e.s2(), e.x(i)} for i in range(4)], {"y": Y4}, x=real(4), s2=positive())
def residuals_dotted_over_a_variance(z, data):
    r = data["y"] - z["x"]
    return -0.5 * jnp.dot(r, r) / z["s2"] - 2.0 * jnp.log(z["s2"]) - 0.5 * z["x"] @ z["x"]


@case([{e.tau(i), e.x(i, j)} for i in range(3) for j in range(4)], x=real(3, 4), tau=positive(3))
def precision_of_each_group(z, _):
    r = z["x"] - 1.0
    return -0.5 * (z["tau"] * (r**2).sum(1)).sum() + 2.0 * jnp.log(z["tau"]).sum()


@case([{e.lam(), e.x(i)} for i in range(4)], x=real(4), lam=positive())
def mean_times_a_latent(z, _):
    return -4.0 * z["lam"] * jnp.mean(jnp.abs(z["x"])) + 4.0 * jnp.log(z["lam"])


@case([{e.tau(), e.x(i)} for i in range(4)], x=real(4), tau=positive())
def distributed_and_divided_twice(z, _):
    ss = jnp.sum(z["x"] ** 2)
    return -((ss + 3.0) * z["tau"] / 2.0 - jnp.log(z["tau"]) * 5.0) / 1.5


@case([{e.x(0), e.x(1), e.x(2), e.x(3)}], x=real(4))
def student_whose_norm_is_one_term(z, _):
    return -3.0 * jnp.log1p(jnp.sum(z["x"] ** 2))


@case([{e.x(i)} for i in range(4)], x=real(4))
def vdot_and_norm_of_one_array(z, _):
    return -0.5 * jnp.vdot(z["x"], z["x"]) - jnp.linalg.norm(z["x"], 1)


# a product of matrices is not multiplied out: it would be larger than the matrices
@case([{e.A(i, 0), e.A(i, 1), e.A(i, 2), e.tau()} for i in range(2)], A=real(2, 3), tau=positive())
def trace_of_a_product(z, _):
    return -0.5 * z["tau"] * jnp.trace(z["A"] @ z["A"].T) + jnp.log(z["tau"])


@case(
    [{e.x(0), e.x(1), e.x(2), e.b(j)} for j in range(2)], {"M": np.arange(1.0, 7).reshape(3, 2)}, x=real(3), b=real(2)
)
def bilinear_form_of_two_latents(z, data):
    return z["x"] @ data["M"] @ z["b"] - 0.5 * jnp.sum(z["x"] ** 2) - 0.5 * jnp.sum(z["b"] ** 2)


# ------------------------------------------------------------------------------------- functions within functions


@case(PAIRS, {"linked": np.array(True)}, x=real(6))
def branch_chosen_by_the_data(z, data):
    def linked(x):
        return Normal(x[:-1], 1).log_prob(x[1:]).sum() + Normal(0, 1).log_prob(x[0])

    return lax.cond(data["linked"], linked, lambda x: -jax.nn.logsumexp(x), z["x"])


@case([{e.k(), e.x(i)} for i in range(4)], x=real(4), k=binary())
def branch_chosen_by_a_latent(z, _):
    terms = lax.cond(z["k"] == 1, lambda x: Normal(0, 1).log_prob(x), lambda x: dist.Cauchy(0, 1).log_prob(x), z["x"])
    return terms.sum()


@case([{e.k(), e.x(i)} for i in range(4)], x=real(4), k=categorical(3))
def sums_within_branches_chosen_by_a_latent(z, _):
    laws = [Normal(0.0, 1.0), dist.Cauchy(0.0, 1.0), dist.Laplace(0.0, 1.0)]
    return lax.switch(z["k"], [lambda x, law=law: law.log_prob(x).sum() for law in laws], z["x"])


@case([{e.a(n), e.w(0), e.w(1)} for n in range(4)], {"y": Y4, "x": Y5[:4]}, a=real(4), w=real(2))
def density_of_a_row_under_vmap(z, data):
    def row(a, x, y):
        return Normal(a + z["w"][0] + z["w"][1] * x, 1).log_prob(y) + Normal(0, 1).log_prob(a)

    return jax.vmap(row)(z["a"], data["x"], data["y"]).sum()


@case([{e.x(n, t - 1), e.x(n, t), e.rho()} for n in range(2) for t in range(1, 4)], x=real(2, 4), rho=real())
def scan_under_vmap(z, _):
    def row(x):
        def step(carry, now):
            before, total = carry
            return (now, total + Normal(z["rho"] * before, 1).log_prob(now)), None

        return lax.scan(step, (0.5, 0.0), x)[0][1]

    return jax.vmap(row)(z["x"]).sum()


@case([{e.x(n, t - 1), e.x(n, t)} for n in range(2) for t in range(1, 4)], x=real(2, 4))
def scan_over_vectors(z, _):
    def step(carry, now):
        before, total = carry
        return (now, total + Normal(before, 1).log_prob(now).sum()), None

    return lax.scan(step, (jnp.zeros(2), 0.0), z["x"].T)[0][1]


@case([{e.x(i), e.x(i + 1)} for i in range(3)], x=real(4))
def functions_compiled_within_functions(z, _):
    inner = jax.jit(lambda a, b: -((a - b) ** 2))
    outer = jax.jit(lambda x: jnp.sum(inner(x[1:], x[:-1])))
    return outer(z["x"]) - jax.jit(jnp.sum)(z["x"] ** 2)


@jax.custom_jvp
def _clipped_log(x):
    return jnp.log(jnp.maximum(x, 1e-6))


_clipped_log.defjvps(lambda t, ans, x: t / x)


@case([{e.x(i), e.s()} for i in range(4)], x=real(4), s=positive())
def functions_with_derivatives_of_their_own(z, _):
    scale = jax.nn.softplus(z["x"]) + jax.nn.relu(z["x"]) + z["s"]
    return -jnp.sum(_clipped_log(scale)) - 0.5 * jnp.sum(z["x"] ** 2)


@jax.custom_vjp
def _huber(r):
    return jnp.sum(jnp.where(jnp.abs(r) < 1, 0.5 * r**2, jnp.abs(r) - 0.5))


_huber.defvjp(lambda r: (_huber(r), r), lambda r, g: (g * jnp.clip(r, -1, 1),))


@case([{e.x(i), e.mu()} for i in range(4)], x=real(4), mu=real())
def sum_within_a_function_with_its_own_gradient(z, _):
    return -_huber(z["x"] - z["mu"])


@case([{e.x(i), e.mu()} for i in range(4)], x=real(4), mu=real())
def sum_within_checkpoint(z, _):
    return jax.checkpoint(lambda x, mu: Normal(mu, 1).log_prob(x).sum())(z["x"], z["mu"])


# ---------------------------------------------------------------------------------------------- moves of data


@case(
    [{e.x(s) for s in (t - 1, t, t + 1) if 0 <= s < 6} | {e.b(t)} for t in range(6)],
    {"y": Y6}, x=real(6), b=real(6),
)  # fmt: skip
def smoothing_by_convolution(z, data):
    smooth = jnp.convolve(z["x"], jnp.array([0.25, 0.5, 0.25]), mode="same")
    return Normal(smooth + z["b"], 1).log_prob(data["y"]).sum() - 0.5 * (z["x"] ** 2).sum()


@case(
    [{e.b(1), e.x(0)}, {e.b(4), e.x(1)}, {e.b(2), e.x(2)}, {e.b(0)}, {e.b(3)}, {e.b(5)}],
    {"y": Y6, "at": np.array([1, 4, 2])}, x=real(3), b=real(6),
)  # fmt: skip
def scatter_by_set(z, data):
    full = jnp.zeros(6).at[data["at"]].set(z["x"])
    return Normal(full + z["b"], 1).log_prob(data["y"]).sum()


@case(
    [{e.b(1), e.x(0), e.x(2)}, {e.b(3), e.x(1)}, {e.b(0)}, {e.b(2)}],
    {"y": Y4}, x=real(3), b=real(4),
)  # fmt: skip
def scatter_by_add(z, data):
    full = z["b"].at[np.array([1, 3, 1])].add(2.0 * z["x"])
    return Normal(full, 1).log_prob(data["y"]).sum()


@case(
    [{e.mu(), *(e.x(i) for i in np.flatnonzero(g == GROUP))} for g in range(3)],
    {"y": Y6[:3], "group": GROUP}, x=real(6), mu=real(),
)  # fmt: skip
def totals_of_groups_by_segment_sum(z, data):
    totals = jax.ops.segment_sum(z["x"], data["group"], num_segments=3)
    return Normal(z["mu"] + totals, 1).log_prob(data["y"]).sum()


# the sum within a group is one number that its precision multiplies
@case(
    [{e.tau(g), *(e.x(i) for i in np.flatnonzero(g == GROUP))} for g in range(3)],
    {"group": GROUP}, x=real(6), tau=positive(3),
)  # fmt: skip
def sums_of_squares_of_groups_by_segment_sum(z, data):
    squares = jax.ops.segment_sum(z["x"] ** 2, data["group"], num_segments=3)
    return -0.5 * jnp.sum(z["tau"] * squares) + jnp.log(z["tau"]).sum()


@case([{e.x(i), e.b(i - 2)} for i in (2, 3, 4)] + [{e.x(0)}, {e.x(1)}, {e.x(5)}], x=real(6), b=real(3))
def dynamic_slice_from_a_known_start(z, _):
    part = lax.dynamic_slice(z["x"], (jnp.asarray(2),), (3,))
    return Normal(z["b"], 1).log_prob(part).sum() - 0.5 * (z["x"] ** 2).sum()


@case(
    [{e.s(), e.b(0), e.x(0), e.x(1), e.x(2)}, {e.s(), e.b(1), e.x(1), e.x(2), e.x(3)}],
    x=real(4), b=real(2), s=categorical(3),
)  # fmt: skip
def dynamic_slice_from_a_latent_start(z, _):
    part = lax.dynamic_slice(z["x"], (z["s"],), (2,))
    return Normal(z["b"], 1).log_prob(part).sum() - 0.5 * (z["x"] ** 2).sum()


@case([{e.x(t) for t in (i - 1, i) if 0 <= t < 4} | {e.b(i)} for i in range(5)], x=real(4), b=real(5))
def padding_on_either_side(z, _):
    mean = 0.5 * (jnp.pad(z["x"], (1, 0)) + jnp.pad(z["x"], (0, 1)))
    return Normal(mean, 1).log_prob(z["b"]).sum()


WEIGHTS = np.array([[1.0, 2.0, 0.5], [3.0, 0.0, 4.0], [0.7, 6.0, 1.5]])


@case([{e.x(j, i), e.a(i)} for i, j in np.argwhere(WEIGHTS)], x=real(3, 3), a=real(3))
def known_weights_of_a_transposed_square(z, _):
    return -0.5 * jnp.sum(WEIGHTS * (z["x"].T - z["a"][:, None]) ** 2)


@case([{e.x(j, i), e.tau(i)} for i, j in np.argwhere(WEIGHTS)], {"w": WEIGHTS}, x=real(3, 3), tau=positive(3))
def known_weights_of_a_transposed_square_under_latent_precisions(z, data):
    squares = (data["w"] * (z["x"] ** 2).T).sum(1)
    return -0.5 * jnp.dot(z["tau"], squares) + jnp.log(z["tau"]).sum()


@case([{e.x(i), e.x(3 - i)} for i in range(2)], x=real(4))
def reversed_and_reshaped(z, _):
    return -jnp.sum((z["x"].reshape(2, 2) - z["x"][::-1].reshape(2, 2)) ** 2) - jnp.sum(z["x"] ** 2)


@case(
    [{e.c(0), e.c(1), e.c(2)}, *({e.theta(n), e.c(k)} for n in range(2) for k in range(3))],
    c=positive(3), theta=bbvi.simplex(3, 2),
)  # fmt: skip
def dirichlet_with_a_latent_concentration(z, _):
    # the entries of a simplex are one element; each is multiplied by its own concentration
    c = z["c"]
    normaliser = jax.scipy.special.gammaln(c.sum()) - jax.scipy.special.gammaln(c).sum()
    return jnp.sum((c - 1) * jnp.log(z["theta"])) + 2 * normaliser - c.sum()


@case([{e.cut(), e.x(n)} for n in range(4)], {"y": np.array([0, 2, 1, 2])}, x=real(4), cut=bbvi.ordered(2))
def ordered_cut_points(z, data):
    return dist.OrderedLogistic(z["x"], z["cut"]).log_prob(data["y"]).sum() + Normal(0, 1).log_prob(z["cut"]).sum()


# --------------------------------------------------------- may be found to read more than it does, never less

ALL4 = {e.x(0), e.x(1), e.x(2), e.x(3)}
INPUTS = np.linspace(0, 1, 4)


@conservative([ALL4], {"y": Y4}, x=real(4))
def sorted_latents(z, data):
    return Normal(jnp.sort(z["x"]), 1).log_prob(data["y"]).sum()


@conservative([ALL4 | {e.s()}], x=real(4), s=positive())
def while_loop(z, _):
    def halve(state):
        return state[0] / 2, state[1] + jnp.sum(z["x"] ** 2)

    return -lax.while_loop(lambda state: state[0] > 0.5, halve, (z["s"], jnp.sum(jnp.abs(z["x"]))))[1]


@conservative([{e.x(t - 1), e.x(t)} for t in range(1, 4)], {"n": np.array(4)}, x=real(4))
def loop_with_its_length_in_the_data(z, data):
    def step(t, total):
        return total + Normal(z["x"][t - 1], 1).log_prob(z["x"][t])

    return lax.fori_loop(1, data["n"], step, Normal(0, 1).log_prob(z["x"][0]))


@conservative([ALL4 | {e.rho()}], x=real(4), rho=bbvi.unit_interval())
def cholesky_of_a_latent_covariance(z, _):
    covariance = z["rho"] ** jnp.abs(jnp.arange(4)[:, None] - jnp.arange(4)) + 0.1 * jnp.eye(4)
    return dist.MultivariateNormal(jnp.zeros(4), covariance).log_prob(z["x"])


@conservative([ALL4], x=real(4))
def triangular_solve(z, _):
    scale = jnp.tril(jnp.ones((4, 4)))
    white = jax.scipy.linalg.solve_triangular(scale, z["x"], lower=True)
    return jnp.sum(jnp.cos(white)) - jnp.log1p(jnp.sum(z["x"] ** 2))


@conservative([ALL4 | {e.d()}], x=real(4), d=positive())
def linear_solve(z, _):
    return -0.5 * z["x"] @ jnp.linalg.solve(jnp.ones((4, 4)) + z["d"] * jnp.eye(4), z["x"])


@conservative([ALL4 | {e.length(), e.scale()}], {"y": Y4}, x=real(4), length=positive(), scale=positive())
def gaussian_process(z, data):
    distance = (INPUTS[:, None] - INPUTS) ** 2
    kernel = z["scale"] ** 2 * jnp.exp(-0.5 * distance / z["length"] ** 2) + 0.01 * jnp.eye(4)
    field = dist.MultivariateNormal(jnp.zeros(4), kernel).log_prob(z["x"])
    return field + Normal(z["x"], 0.5).log_prob(data["y"]).sum()


@conservative([{e.P(0), e.P(1), e.mu(0), e.mu(1)}], {"y": Y4}, P=bbvi.simplex(2, 2), mu=real(2))
def forward_algorithm(z, data):
    def step(alpha, y):
        alpha = jax.nn.logsumexp(alpha[:, None] + jnp.log(z["P"]), axis=0) + Normal(z["mu"], 1).log_prob(y)
        return alpha, None

    return jax.nn.logsumexp(lax.scan(step, jnp.log(jnp.full(2, 0.5)), data["y"])[0])


# ------------------------------------------------------------------------------------------------- the claims


@functools.cache
def found_in(name) -> Found:
    return find(CASES[name].model, CASES[name].data)


@functools.cache
def moved_in(name, num_points=24):
    structure, generator = found_in(name), np.random.default_rng(0)
    points, others = (
        {latent: declared.some_values({}, num_points, generator) for latent, declared in structure.latents.items()}
        for _ in range(2)
    )
    return by_perturbation(structure, points, others)


def shown(sets):
    return sorted(" ".join(sorted(f"{n}{list(i) if i else ''}" for n, i in s)) for s in sets)


@pytest.mark.parametrize("name", CASES)
def test_blankets_are_those_written_down(name):
    true, largest = maximal(CASES[name].true), maximal(found_in(name).sets())
    if CASES[name].exact:
        assert shown(largest) == shown(true)
    else:
        assert not shown(s for s in true if not any(s <= other for other in largest))


@pytest.mark.parametrize("name", CASES)
def test_no_term_moves_with_a_latent_that_it_does_not_read(name):
    unread = moved_in(name)[0] & ~found_in(name).matrix
    assert not [found_in(name).elements[j] for j in np.flatnonzero(unread.any(0))]


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].exact])
def test_each_term_moves_with_each_latent_that_it_reads(name):
    still = found_in(name).matrix & ~moved_in(name)[0]
    assert not [found_in(name).elements[j] for j in np.flatnonzero(still.any(0))]


@pytest.mark.parametrize("name", CASES)
def test_terms_add_up_to_the_log_joint(name):
    _, terms, whole = moved_in(name)
    size = 1 + np.abs(terms).sum(1)
    np.testing.assert_allclose(terms.astype(np.float64).sum(1) / size, whole / size, atol=1e-5)
