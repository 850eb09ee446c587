"""NumPyro functions as its documentation has them, each with its log joint written by hand for bbvi, term by term."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam

RNG = np.random.default_rng(0)

# ---- eight schools, with a reparametrised twin ---------------------------------------------------------------------------

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(sigma, y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(sigma)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_by_hand(z):
    return {
        "mu": dist.Normal(0, 5).log_prob(z["mu"]),
        "tau": dist.HalfCauchy(5).log_prob(z["tau"]),
        "theta": dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]),
        "y": dist.Normal(z["theta"], ERROR).log_prob(EFFECT),
    }


non_centred = numpyro.handlers.reparam(eight_schools, config={"theta": LocScaleReparam(0)})


def non_centred_by_hand(z):
    return {
        "mu": dist.Normal(0, 5).log_prob(z["mu"]),
        "tau": dist.HalfCauchy(5).log_prob(z["tau"]),
        "theta": dist.Normal(0, 1).log_prob(z["theta_decentered"]),
        "y": dist.Normal(z["mu"] + z["tau"] * z["theta_decentered"], ERROR).log_prob(EFFECT),
    }


# ---- Bayesian regression -------------------------------------------------------------------------------------------------

MARRIAGE, AGE = RNG.normal(size=(2, 20))
DIVORCE = 0.3 * MARRIAGE - 0.5 * AGE + 0.3 * RNG.normal(size=20)


def regression(marriage, age, divorce=None):
    a = numpyro.sample("a", dist.Normal(0.0, 0.2))
    marriage = numpyro.sample("bM", dist.Normal(0.0, 0.5)) * marriage
    age = numpyro.sample("bA", dist.Normal(0.0, 0.5)) * age
    sigma = numpyro.sample("sigma", dist.Exponential(1.0))
    mu = numpyro.deterministic("mu", a + marriage + age)
    numpyro.sample("obs", dist.Normal(mu, sigma), obs=divorce)


def regression_by_hand(z):
    mu = z["a"] + z["bM"] * MARRIAGE + z["bA"] * AGE
    return {
        "a": dist.Normal(0, 0.2).log_prob(z["a"]),
        "bM": dist.Normal(0, 0.5).log_prob(z["bM"]),
        "bA": dist.Normal(0, 0.5).log_prob(z["bA"]),
        "sigma": dist.Exponential(1.0).log_prob(z["sigma"]),
        "obs": dist.Normal(mu, z["sigma"]).log_prob(DIVORCE),
    }


# ---- a GLMM with crossed plates --------------------------------------------------------------------------------------------

COUNTS = RNG.poisson(3.0, size=(4, 6))


def glmm(num_rows, num_columns, y=None):
    alpha = numpyro.sample("alpha", dist.Normal(0, 3))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    rows = numpyro.plate("row", num_rows, dim=-2)
    columns = numpyro.plate("column", num_columns, dim=-1)
    with rows:
        row = numpyro.sample("row_effect", dist.Normal(0, spread[0]))
    with columns:
        column = numpyro.sample("column_effect", dist.Normal(0, spread[1]))
    with rows, columns:
        noise = numpyro.sample("noise", dist.Normal(0, 0.3))
        numpyro.sample("y", dist.Poisson(jnp.exp(alpha + row + column + noise)), obs=y)


def glmm_by_hand(z):
    return {
        "alpha": dist.Normal(0, 3).log_prob(z["alpha"]),
        "spread": dist.HalfNormal(1.0).log_prob(z["spread"]),
        "row": dist.Normal(0, z["spread"][0]).log_prob(z["row_effect"]),
        "column": dist.Normal(0, z["spread"][1]).log_prob(z["column_effect"]),
        "noise": dist.Normal(0, 0.3).log_prob(z["noise"]),
        "y": dist.Poisson(jnp.exp(z["alpha"] + z["row_effect"] + z["column_effect"] + z["noise"])).log_prob(COUNTS),
    }


# ---- a mixture with discrete sites -----------------------------------------------------------------------------------------

POINTS = np.concatenate([RNG.normal(-2, 0.5, 6), RNG.normal(1, 0.5, 6), RNG.normal(4, 0.5, 6)])


@numpyro.infer.config_enumerate if hasattr(numpyro.infer, "config_enumerate") else (lambda fn: fn)
def mixture(k, y):
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(k)))
    with numpyro.plate("component", k):
        centre = numpyro.sample("centre", dist.Normal(0, 5))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    with numpyro.plate("data", len(y)):
        which = numpyro.sample("which", dist.Categorical(weight), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(centre[which], scale), obs=y)


def mixture_by_hand(z):
    return {
        "weight": dist.Dirichlet(jnp.ones(3)).log_prob(z["weight"]),
        "centre": dist.Normal(0, 5).log_prob(z["centre"]),
        "scale": dist.LogNormal(0, 1).log_prob(z["scale"]),
        "which": dist.Categorical(z["weight"]).log_prob(z["which"]),
        "y": dist.Normal(z["centre"][z["which"]], z["scale"]).log_prob(POINTS),
    }


# ---- a hidden Markov model -----------------------------------------------------------------------------------------------

STATES = np.array([0, 0, 1, 1, 1, 0, 2, 2, 0, 1])
READINGS = np.array([-3.0, 0.0, 3.0])[STATES] + RNG.normal(size=10)


def hmm(y, k):
    transition = numpyro.sample("transition", dist.Dirichlet(jnp.ones(k)).expand([k]).to_event(1))
    centre = numpyro.sample("centre", dist.Normal(jnp.linspace(-3, 3, k), 1).to_event(1))

    def step(before, y):
        state = numpyro.sample("state", dist.Categorical(transition[before]), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(centre[state], 1.0), obs=y)
        return state, None

    scan(step, 0, y)


def hmm_by_hand(z):
    before = jnp.concatenate([jnp.zeros(1, int), z["state"][:-1]])
    return {
        "transition": dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1).log_prob(z["transition"]),
        "centre": dist.Normal(jnp.linspace(-3, 3, 3), 1).log_prob(z["centre"]),
        "state": dist.Categorical(z["transition"][before]).log_prob(z["state"]),
        "y": dist.Normal(z["centre"][z["state"]], 1.0).log_prob(READINGS),
    }


# ---- latent Dirichlet allocation -------------------------------------------------------------------------------------------

WORDS, DOCUMENT = RNG.integers(0, 6, 20), np.sort(RNG.integers(0, 4, 20))


def lda(words, document, num_documents, num_topics, num_words):
    with numpyro.plate("topics", num_topics):
        topic_words = numpyro.sample("topic_words", dist.Dirichlet(jnp.ones(num_words)))
    with numpyro.plate("documents", num_documents):
        document_topics = numpyro.sample("document_topics", dist.Dirichlet(jnp.ones(num_topics)))
    with numpyro.plate("words", len(words)) as i:
        topic = numpyro.sample("topic", dist.Categorical(document_topics[document[i]]), infer={"enumerate": "parallel"})
        numpyro.sample("word", dist.Categorical(topic_words[topic]), obs=words)


def lda_by_hand(z):
    return {
        "topic_words": dist.Dirichlet(jnp.ones(6)).log_prob(z["topic_words"]),
        "document_topics": dist.Dirichlet(jnp.ones(2)).log_prob(z["document_topics"]),
        "topic": dist.Categorical(z["document_topics"][DOCUMENT]).log_prob(z["topic"]),
        "word": dist.Categorical(z["topic_words"][z["topic"]]).log_prob(WORDS),
    }


# ---- a Gaussian process ----------------------------------------------------------------------------------------------------

X = np.linspace(-1, 1, 12)
Y = np.sin(4 * X) + 0.1 * RNG.normal(size=12)


def kernel(variance, length, noise):
    near = jnp.exp(-0.5 * ((X[:, None] - X) / length) ** 2)
    return variance * near + (noise + 1e-4) * jnp.eye(len(X))


def gp(x, y):
    variance = numpyro.sample("variance", dist.LogNormal(0.0, 1.0))
    noise = numpyro.sample("noise", dist.LogNormal(-2.0, 1.0))
    length = numpyro.sample("length", dist.LogNormal(0.0, 1.0))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), kernel(variance, length, noise)), obs=y)


def gp_by_hand(z):
    return {
        "variance": dist.LogNormal(0.0, 1.0).log_prob(z["variance"]),
        "noise": dist.LogNormal(-2.0, 1.0).log_prob(z["noise"]),
        "length": dist.LogNormal(0.0, 1.0).log_prob(z["length"]),
        "y": dist.MultivariateNormal(0.0, kernel(z["variance"], z["length"], z["noise"])).log_prob(Y),
    }


# ---- stochastic volatility -------------------------------------------------------------------------------------------------

RETURNS = 0.02 * RNG.standard_t(5, size=15)


def stochastic_volatility(returns):
    step = numpyro.sample("sigma", dist.Exponential(50.0))
    s = numpyro.sample("s", dist.GaussianRandomWalk(scale=step, num_steps=len(returns)))
    nu = numpyro.sample("nu", dist.Exponential(0.1))
    numpyro.sample("r", dist.StudentT(df=nu, loc=0.0, scale=jnp.exp(s)), obs=returns)


def stochastic_volatility_by_hand(z):
    return {
        "sigma": dist.Exponential(50.0).log_prob(z["sigma"]),
        "s": dist.GaussianRandomWalk(z["sigma"], num_steps=15).log_prob(z["s"]),
        "nu": dist.Exponential(0.1).log_prob(z["nu"]),
        "r": dist.StudentT(z["nu"], 0.0, jnp.exp(z["s"])).log_prob(RETURNS),
    }


# ---- a level that drifts, drawn in a loop ------------------------------------------------------------------------------------


def local_level(y):
    drift = numpyro.sample("drift", dist.HalfNormal(1.0))
    first = numpyro.sample("first", dist.Normal(0, 5))

    def step(level, y):
        level = numpyro.sample("level", dist.Normal(level, drift))
        numpyro.sample("y", dist.Normal(level, 0.5), obs=y)
        return level, None

    scan(step, first, y)


def local_level_by_hand(z):
    before = jnp.append(z["first"], z["level"][:-1])
    return {
        "drift": dist.HalfNormal(1.0).log_prob(z["drift"]),
        "first": dist.Normal(0, 5).log_prob(z["first"]),
        "level": dist.Normal(before, z["drift"]).log_prob(z["level"]),
        "y": dist.Normal(z["level"], 0.5).log_prob(READINGS),
    }


# ---- an ordinary differential equation -----------------------------------------------------------------------------------------

HARE_AND_LYNX = np.array([[30.0, 4.0], [47.2, 6.1], [70.2, 9.8], [77.4, 35.2], [36.3, 59.4]])


def populations(start, theta):
    """Solve by Runge and Kutta's method, eight steps a year."""
    a, b, c, d = theta

    def growth(z):
        return jnp.stack([(a - b * z[1]) * z[0], (-c + d * z[0]) * z[1]])

    def step(z, _):
        k1 = growth(z)
        k2 = growth(z + k1 / 16)
        k3 = growth(z + k2 / 16)
        k4 = growth(z + k3 / 8)
        return z + (k1 + 2 * k2 + 2 * k3 + k4) / 48, z

    return jax.lax.scan(step, start, length=33)[1][::8]


def ode(num, y=None):
    start = numpyro.sample("start", dist.LogNormal(jnp.log(10), 1).expand([2]))
    theta = numpyro.sample(
        "theta",
        dist.TruncatedNormal(low=0.0, loc=jnp.array([1.0, 0.05, 1.0, 0.05]), scale=jnp.array([0.2, 0.01, 0.2, 0.01])),
    )
    size = populations(start, theta)
    sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
    numpyro.sample("y", dist.LogNormal(jnp.log(size), sigma), obs=y)


def ode_by_hand(z):
    u = z["theta_unconstrained"]
    loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.2, 0.01, 0.2, 0.01])
    size = populations(z["start"], jnp.exp(u))
    return {
        "start": dist.LogNormal(jnp.log(10), 1).log_prob(z["start"]),
        "theta": dist.TruncatedNormal(low=0.0, loc=loc, scale=scale).log_prob(jnp.exp(u)),
        "theta.jacobian": u,
        "sigma": dist.LogNormal(-1, 1).log_prob(z["sigma"]),
        "y": dist.LogNormal(jnp.log(size), z["sigma"]).log_prob(HARE_AND_LYNX),
    }


# ---- ragged plates, by masks -----------------------------------------------------------------------------------------------

LENGTHS = np.array([3, 1, 4])
TALL = np.where(np.arange(4)[:, None] < LENGTHS, RNG.normal(1.0, 1.0, (4, 3)), 0.0)


def ragged(y, lengths):
    mu = numpyro.sample("mu", dist.Normal(0, 3))
    with numpyro.plate("series", len(lengths), dim=-1):
        level = numpyro.sample("level", dist.Normal(mu, 1))
        with numpyro.plate("time", len(y), dim=-2), numpyro.handlers.mask(mask=np.arange(len(y))[:, None] < lengths):
            numpyro.sample("y", dist.Normal(level, 1), obs=y)


def ragged_by_hand(z):
    inside = np.arange(4)[:, None] < LENGTHS
    return {
        "mu": dist.Normal(0, 3).log_prob(z["mu"]),
        "level": dist.Normal(z["mu"], 1).log_prob(z["level"]),
        "y": jnp.where(inside, dist.Normal(z["level"], 1).log_prob(TALL), 0),
    }


# ---- logistic regression on a subsample --------------------------------------------------------------------------------------

DESIGN = RNG.normal(size=(40, 3))
OUTCOME = (RNG.random(40) < 1 / (1 + np.exp(-DESIGN @ [1.0, -1.0, 0.5]))).astype(int)


def logistic(x, y, batch=10):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(x.shape[1]), 2.0).to_event(1))
    with numpyro.plate("N", len(x), subsample_size=batch) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ w), obs=y[i])


def logistic_by_hand(z):
    return {
        "w": dist.Normal(0.0, 2.0).log_prob(z["w"]),
        "y": dist.Bernoulli(logits=jnp.asarray(DESIGN) @ z["w"]).log_prob(OUTCOME),
    }


# ---- correlated effects with an LKJ prior --------------------------------------------------------------------------------------

CAFE, AFTERNOON = np.repeat(np.arange(4), 3), np.tile([0, 1, 0], 4)
WAIT = RNG.normal(3.0, 1.0, 12)


def lkj(cafe, afternoon, wait):
    mean = numpyro.sample("mean", dist.Normal(jnp.array([3.0, -1.0]), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.Exponential(1.0).expand([2]).to_event(1))
    corr = numpyro.sample("corr", dist.LKJCholesky(2, 2.0))
    with numpyro.plate("cafes", 4):
        effect = numpyro.sample("effect", dist.MultivariateNormal(mean, scale_tril=scale[:, None] * corr))
    numpyro.sample("wait", dist.Normal(effect[cafe, 0] + effect[cafe, 1] * afternoon, 0.5), obs=wait)


def lkj_by_hand(z):
    t = jnp.tanh(z["corr_unconstrained"][0])
    corr = jnp.array([[1.0, 0.0], [0.0, 0.0]]).at[1].set(jnp.stack([t, jnp.sqrt(1 - t**2)]))
    tril = z["scale"][:, None] * corr
    return {
        "mean": dist.Normal(jnp.array([3.0, -1.0]), 1.0).log_prob(z["mean"]),
        "scale": dist.Exponential(1.0).log_prob(z["scale"]),
        "corr": dist.LKJCholesky(2, 2.0).log_prob(corr),
        "corr.jacobian": jnp.log(1 - t**2),
        "effect": dist.MultivariateNormal(z["mean"], scale_tril=tril).log_prob(z["effect"]),
        "wait": dist.Normal(z["effect"][CAFE, 0] + z["effect"][CAFE, 1] * AFTERNOON, 0.5).log_prob(WAIT),
    }


# ---- a horseshoe regression --------------------------------------------------------------------------------------------------


def horseshoe(x, y):
    lambdas = numpyro.sample("lambdas", dist.HalfCauchy(jnp.ones(x.shape[1])))
    tau = numpyro.sample("tau", dist.HalfCauchy(jnp.ones(1)))
    raw = numpyro.sample("raw", dist.Normal(jnp.zeros(x.shape[1]), jnp.ones(x.shape[1])))
    precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
    numpyro.sample("y", dist.Normal(x @ (tau * lambdas * raw), 1 / jnp.sqrt(precision)), obs=y)


def horseshoe_by_hand(z):
    mean = jnp.asarray(DESIGN) @ (z["tau"] * z["lambdas"] * z["raw"])
    return {
        "lambdas": dist.HalfCauchy(1.0).log_prob(z["lambdas"]),
        "tau": dist.HalfCauchy(1.0).log_prob(z["tau"]),
        "raw": dist.Normal(0, 1).log_prob(z["raw"]),
        "precision": dist.Gamma(3.0, 1.0).log_prob(z["precision"]),
        "y": dist.Normal(mean, 1 / jnp.sqrt(z["precision"])).log_prob(DESIGN[:, 0]),
    }


# ---- missing covariates --------------------------------------------------------------------------------------------------------

AGES = np.where(np.arange(10) % 3 == 1, np.nan, RNG.normal(30.0, 5.0, 10))
SURVIVED = RNG.integers(0, 2, 10)


def missing(age, survived):
    mu = numpyro.sample("mu", dist.Normal(30, 5))
    sigma = numpyro.sample("sigma", dist.Gamma(10.0, 2.0))
    unknown = np.isnan(age)
    own = numpyro.sample("age_missing", dist.Normal(mu, sigma).expand([unknown.sum()]))
    age = jnp.asarray(age).at[np.nonzero(unknown)[0]].set(own)
    numpyro.sample("age", dist.Normal(mu, sigma), obs=age)
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("survived", dist.Bernoulli(logits=slope * (age - 30) / 5), obs=survived)


def missing_by_hand(z):
    unknown = np.isnan(AGES)
    age = jnp.asarray(AGES).at[np.nonzero(unknown)[0]].set(z["age_missing"])
    return {
        "mu": dist.Normal(30, 5).log_prob(z["mu"]),
        "sigma": dist.Gamma(10.0, 2.0).log_prob(z["sigma"]),
        "age_missing": dist.Normal(z["mu"], z["sigma"]).log_prob(z["age_missing"]),
        "age": dist.Normal(z["mu"], z["sigma"]).log_prob(age),
        "slope": dist.Normal(0, 1).log_prob(z["slope"]),
        "survived": dist.Bernoulli(logits=z["slope"] * (age - 30) / 5).log_prob(SURVIVED),
    }


# ---- capture and recapture -----------------------------------------------------------------------------------------------------

CAPTURES = np.array([[1, 0, 1, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 1, 1], [0, 0, 1, 0, 0]])


def capture_recapture(captures):
    num, _ = captures.shape
    survival = numpyro.sample("survival", dist.Uniform(0.0, 1.0))
    recapture = numpyro.sample("recapture", dist.Uniform(0.0, 1.0))

    def step(carry, y):
        seen, alive = carry
        with numpyro.plate("animals", num, dim=-1), numpyro.handlers.mask(mask=seen):
            alive = numpyro.sample("alive", dist.Bernoulli(alive * survival), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Bernoulli(alive * recapture), obs=y)
        return (seen | (y == 1), alive), None

    scan(step, (captures[:, 0] == 1, jnp.ones(num, int)), captures[:, 1:].T)


def capture_recapture_by_hand(z):
    seen = np.cumsum(CAPTURES, 1)[:, :-1].T > 0
    alive = jnp.zeros(seen.shape, int).at[np.nonzero(ALIVE)].set(z["alive"])
    before = jnp.concatenate([jnp.ones((1, 4), int), alive[:-1]])
    later = CAPTURES[:, 1:].T
    return {
        "survival": dist.Uniform(0, 1).log_prob(z["survival"]),
        "recapture": dist.Uniform(0, 1).log_prob(z["recapture"]),
        "alive": jnp.where(seen, dist.Bernoulli(before * z["survival"]).log_prob(alive), 0),
        "y": jnp.where(seen, dist.Bernoulli(alive * z["recapture"]).log_prob(later), 0),
    }


_SEEN = np.cumsum(CAPTURES, 1)[:, :-1].T > 0
#: who has a density at a step, and who is looked back at by the next
ALIVE = _SEEN | np.append(_SEEN[1:], np.zeros((1, 4), bool), 0)

# ---- annotators who err ----------------------------------------------------------------------------------------------------------

LABELS = RNG.integers(0, 3, (7, 4))


def annotators(labels):
    num_items, num_annotators = labels.shape
    with numpyro.plate("annotator", num_annotators, dim=-2), numpyro.plate("class", 3):
        skill = numpyro.sample("skill", dist.Dirichlet(jnp.ones(3)))
    share = numpyro.sample("share", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", num_items, dim=-2):
        true = numpyro.sample("true", dist.Categorical(share), infer={"enumerate": "parallel"})
        with numpyro.plate("position", num_annotators):
            numpyro.sample("y", dist.Categorical(skill[np.arange(num_annotators), true]), obs=labels)


def annotators_by_hand(z):
    return {
        "skill": dist.Dirichlet(jnp.ones(3)).log_prob(z["skill"]),
        "share": dist.Dirichlet(jnp.ones(3)).log_prob(z["share"]),
        "true": dist.Categorical(z["share"]).log_prob(z["true"]),
        "y": dist.Categorical(z["skill"][np.arange(4), z["true"]]).log_prob(LABELS),
    }


# ---- a bound that is a latent, ordered centres, a factor ---------------------------------------------------------------------------


def bounds(y):
    top = numpyro.sample("top", dist.Gamma(3.0, 1.0))
    with numpyro.plate("data", len(y)):
        x = numpyro.sample("x", dist.Uniform(0.0, top))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def bounds_by_hand(z):
    share = jax.nn.sigmoid(z["x_unconstrained"])
    return {
        "top": dist.Gamma(3.0, 1.0).log_prob(z["top"]),
        "x": dist.Uniform(0, z["top"]).log_prob(z["top"] * share),
        "x.jacobian": jnp.log(z["top"] * share * (1 - share)),
        "y": dist.Normal(z["top"] * share, 1.0).log_prob(np.abs(READINGS)),
    }


def ordered(y):
    base = dist.Normal(0.0, 3.0).expand([2]).to_event(1)
    centre = numpyro.sample("centre", dist.TransformedDistribution(base, dist.transforms.OrderedTransform()))
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    parts = dist.Normal(centre, 1.0).log_prob(y[:, None]) + jnp.log(jnp.stack([weight, 1 - weight]))
    numpyro.factor("y", logsumexp(parts, -1))


def ordered_by_hand(z):
    base = dist.Normal(0.0, 3.0).expand([2]).to_event(1)
    parts = dist.Normal(z["centre"], 1.0).log_prob(READINGS[:, None])
    parts = parts + jnp.log(jnp.stack([z["weight"], 1 - z["weight"]]))
    return {
        "centre": dist.TransformedDistribution(base, dist.transforms.OrderedTransform()).log_prob(z["centre"]),
        "weight": dist.Beta(2.0, 2.0).log_prob(z["weight"]),
        "y": logsumexp(parts, -1),
    }


#: each function with the arguments it is called with, and its log joint by hand
MODELS = {
    "eight schools": (eight_schools, (ERROR,), {"y": EFFECT}, eight_schools_by_hand),
    "reparametrised schools": (non_centred, (ERROR,), {"y": EFFECT}, non_centred_by_hand),
    "regression": (regression, (MARRIAGE, AGE), {"divorce": DIVORCE}, regression_by_hand),
    "GLMM": (glmm, (4, 6), {"y": COUNTS}, glmm_by_hand),
    "mixture": (mixture, (3, POINTS), {}, mixture_by_hand),
    "HMM": (hmm, (READINGS, 3), {}, hmm_by_hand),
    "LDA": (lda, (WORDS, DOCUMENT, 4, 2, 6), {}, lda_by_hand),
    "GP": (gp, (X, Y), {}, gp_by_hand),
    "stochastic volatility": (stochastic_volatility, (RETURNS,), {}, stochastic_volatility_by_hand),
    "local level": (local_level, (READINGS,), {}, local_level_by_hand),
    "ODE": (ode, (5,), {"y": HARE_AND_LYNX}, ode_by_hand),
    "ragged plates": (ragged, (TALL, LENGTHS), {}, ragged_by_hand),
    "subsampled logistic": (logistic, (DESIGN, OUTCOME), {}, logistic_by_hand),
    "LKJ": (lkj, (CAFE, AFTERNOON, WAIT), {}, lkj_by_hand),
    "horseshoe": (horseshoe, (DESIGN, DESIGN[:, 0]), {}, horseshoe_by_hand),
    "missing data": (missing, (AGES, SURVIVED), {}, missing_by_hand),
    "capture and recapture": (capture_recapture, (CAPTURES,), {}, capture_recapture_by_hand),
    "annotators": (annotators, (LABELS,), {}, annotators_by_hand),
    "moving bounds": (bounds, (np.abs(READINGS),), {}, bounds_by_hand),
    "ordered mixture": (ordered, (READINGS,), {}, ordered_by_hand),
}
