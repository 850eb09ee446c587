"""Models with many optima, each with the values its data were made from: what `benchmarks/optima.py` fits."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi


@dataclasses.dataclass(frozen=True)
class Case:
    """A log joint with its data, its latents as `name: (constructor, *arguments)`, and the values that made the data."""

    name: str
    log_joint: Callable[[Any, Any], Any]
    latents: dict[str, tuple[Any, ...]]
    data: Any
    truth: dict[str, Any]

    def model(self, *, at_truth: bool = False) -> bbvi.Model:
        """Make the model; with `at_truth` a fit starts from the values that made the data."""
        made = {}
        for name, (constructor, *sizes) in self.latents.items():
            made[name] = constructor(*sizes, init=self.truth[name]) if at_truth else constructor(*sizes)
        return bbvi.Model(self.log_joint, **made)


def spike_and_slab(num: int, correlation: float, n: int = 150) -> Case:
    """Choose predictors by explicit bits."""
    rng = np.random.default_rng(num)
    common = rng.normal(size=(n, 1))
    x = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * rng.normal(size=(n, num))
    bits = np.arange(num) % 3 == 0
    slopes = np.where(bits, rng.choice([-1.0, 1.0], num) * rng.uniform(0.7, 2.0, num), 0.1)
    y = x @ (bits * slopes) + rng.normal(size=n)

    def log_joint(z, data):
        x, y = data
        return (
            dist.Bernoulli(0.3).log_prob(z["g"]).sum()
            + dist.Normal(0, 2).log_prob(z["b"]).sum()
            + dist.Normal(x @ (z["g"] * z["b"]), 1.0).log_prob(y).sum()
        )

    latents = {"g": (bbvi.binary, num), "b": (bbvi.real, num)}
    return Case(f"spike {num} {correlation:g}", log_joint, latents, (x, y), {"g": bits.astype(int), "b": slopes})


def hidden_markov(num: int, length: int = 120) -> Case:
    """Follow a sticky chain of states with unknown means."""
    rng = np.random.default_rng(num)
    stay = np.log(np.where(np.eye(num, dtype=bool), 0.9, 0.1 / (num - 1)))
    states = [0]
    for _ in range(length - 1):
        states.append(int(rng.choice(num, p=np.exp(stay[states[-1]]))))
    means = 3.0 * (np.arange(num) - (num - 1) / 2)
    y = means[states] + rng.normal(size=length)

    def log_joint(z, y):
        s = z["s"]
        return (
            dist.Normal(0, 5).log_prob(z["m"]).sum()
            + jnp.asarray(stay)[s[:-1], s[1:]].sum()
            + dist.Normal(z["m"][s], 1.0).log_prob(y).sum()
        )

    latents = {"s": (bbvi.categorical, num, length), "m": (bbvi.real, num)}
    return Case(f"hmm {num}", log_joint, latents, y, {"s": np.array(states), "m": means})


def mixture(dimensions: int, num: int = 4, n: int = 200) -> Case:
    """Assign points to clusters with unknown centres and weights."""
    rng = np.random.default_rng(dimensions)
    which = np.arange(n) % num
    centres = rng.normal(size=(num, dimensions)) * 5 / np.sqrt(dimensions)
    if dimensions == 1:
        centres = 5.0 * (np.arange(num) - (num - 1) / 2)[:, None]
    y = centres[which] + rng.normal(size=(n, dimensions))

    def log_joint(z, y):
        return (
            dist.Dirichlet(jnp.ones(num)).log_prob(z["w"])
            + dist.Normal(0, 5).log_prob(z["m"]).sum()
            + jnp.log(z["w"])[z["k"]].sum()
            + dist.Normal(z["m"][z["k"]], 1.0).log_prob(y).sum()
        )

    latents = {"w": (bbvi.simplex, num), "m": (bbvi.real, num, dimensions), "k": (bbvi.categorical, num, n)}
    truth = {"w": np.ones(num) / num, "m": centres, "k": which}
    return Case(f"mixture {dimensions}", log_joint, latents, y, truth)


def topics(documents: int, words: int, length: int, num: int = 4) -> Case:
    """Assign every word of every document to a topic (Blei et al. 2003)."""
    rng = np.random.default_rng(documents)
    topic = rng.dirichlet(0.1 * np.ones(words), num)
    topic = (topic + 1e-4) / (topic + 1e-4).sum(1, keepdims=True)
    share = rng.dirichlet(0.3 * np.ones(num), documents)
    share = (share + 1e-3) / (share + 1e-3).sum(1, keepdims=True)
    which = np.stack([rng.choice(num, length, p=own) for own in share])
    word = np.array([[rng.choice(words, p=topic[k]) for k in row] for row in which])

    def log_joint(z, word):
        return (
            dist.Dirichlet(0.1 * jnp.ones(words)).log_prob(z["topic"]).sum()
            + dist.Dirichlet(0.3 * jnp.ones(num)).log_prob(z["share"]).sum()
            + jnp.log(z["share"])[jnp.arange(documents)[:, None], z["k"]].sum()
            + jnp.log(z["topic"])[z["k"], word].sum()
        )

    latents = {
        "topic": (bbvi.simplex, words, num), "share": (bbvi.simplex, num, documents),
        "k": (bbvi.categorical, num, documents, length),
    }  # fmt: skip
    return Case(f"lda {documents} {words}", log_joint, latents, word, {"topic": topic, "share": share, "k": which})


def ising(coupling: float, size: int = 10) -> Case:
    """Couple the bits of a grid in a random field."""
    field = 0.5 * np.random.default_rng(7).normal(size=(size, size))

    def log_joint(z, field):
        spin = 2 * z["x"] - 1
        pairs = (spin[1:] * spin[:-1]).sum() + (spin[:, 1:] * spin[:, :-1]).sum()
        return coupling * pairs + (field * spin).sum()

    truth = {"x": np.full((size, size), int(field.sum() > 0))}
    return Case(f"ising {coupling:g}", log_joint, {"x": (bbvi.binary, size, size)}, field, truth)


def blocks(num: int = 3, n: int = 45) -> Case:
    """Find communities in a graph."""
    rng = np.random.default_rng(5)
    which = np.arange(n) % num
    rates = np.where(np.eye(num, dtype=bool), 0.6, 0.15)
    edges = np.triu(rng.uniform(size=(n, n)) < rates[which][:, which], 1)
    first, second = np.triu_indices(n, 1)

    def log_joint(z, edge):
        rate = z["rate"][z["k"][first], z["k"][second]]
        return dist.Beta(1.0, 1.0).log_prob(z["rate"]).sum() + dist.Bernoulli(rate).log_prob(edge).sum()

    latents = {"k": (bbvi.categorical, num, n), "rate": (bbvi.unit_interval, num, num)}
    return Case("blocks", log_joint, latents, edges[first, second].astype(int), {"k": which, "rate": rates})


def change_points(length: int = 60) -> Case:
    """Find two times at which a level changes."""
    rng = np.random.default_rng(3)
    times, levels = np.array([20, 45]), np.array([0.0, 2.5, -1.0])
    y = levels[(np.arange(length)[:, None] > times).sum(1)] + rng.normal(size=length)

    def log_joint(z, y):
        segment = (jnp.arange(length)[:, None] > jnp.sort(z["time"])).sum(1)
        return (
            -2 * jnp.log(1.0 * length)
            + dist.Normal(0, 5).log_prob(z["level"]).sum()
            + dist.Normal(z["level"][segment], 1.0).log_prob(y).sum()
        )

    latents = {"time": (bbvi.categorical, length, 2), "level": (bbvi.real, 3)}
    return Case("change points", log_joint, latents, y, {"time": times, "level": levels})


def boolean_factors(num: int = 3, rows: int = 30, columns: int = 20) -> Case:
    """Explain a table of bits by ors of a few patterns."""
    rng = np.random.default_rng(2)
    left, right = (rng.uniform(size=size) < 0.35 for size in ((rows, num), (num, columns)))
    seen = (left[:, :, None] & right[None]).any(1) ^ (rng.uniform(size=(rows, columns)) < 0.03)

    def log_joint(z, seen):
        found = 1 - jnp.prod(1 - z["left"][:, :, None] * z["right"][None], 1)
        prior = dist.Bernoulli(0.35).log_prob(z["left"]).sum() + dist.Bernoulli(0.35).log_prob(z["right"]).sum()
        return prior + jnp.where(found == seen, jnp.log(0.97), jnp.log(0.03)).sum()

    latents = {"left": (bbvi.binary, rows, num), "right": (bbvi.binary, num, columns)}
    return Case("boolean factors", log_joint, latents, seen.astype(int), {"left": left * 1, "right": right * 1})


def _solved(slopes: Callable[[Any, Any], Any], start: Any, parameters: Any, num: int, step: float, often: int) -> Any:
    def one(state, _):
        for _ in range(often):  # Runge and Kutta's
            a = slopes(state, parameters)
            b = slopes(state + step / 2 * a, parameters)
            c = slopes(state + step / 2 * b, parameters)
            state = state + step / 6 * (a + 2 * b + 2 * c + slopes(state + step * c, parameters))
        return state, state

    return jax.lax.scan(one, start, None, length=num)[1]


def predator_prey(num: int = 20) -> Case:
    """Find rates, initial numbers and noise of hares and lynxes (Lotka and Volterra): 8 latents."""
    truth = {
        "rate": np.array([0.55, 0.028, 0.84, 0.026]),
        "start": np.array([33.0, 6.0]),
        "noise": np.array([0.2, 0.2]),
    }
    scales = jnp.array([1.0, 0.05, 1.0, 0.05])

    def slopes(state, rate):
        hares, lynxes = jnp.exp(state)
        return jnp.stack([rate[0] - rate[1] * lynxes, rate[3] * hares - rate[2]])

    def path(z):
        return _solved(slopes, jnp.log(z["start"]), z["rate"], num, 0.125, 8)

    seen = np.asarray(path({name: jnp.asarray(value) for name, value in truth.items()}))
    y = np.exp(seen + 0.2 * np.random.default_rng(4).normal(size=seen.shape))

    def log_joint(z, y):
        return (
            dist.LogNormal(jnp.log(scales) - 0.5, 0.5).log_prob(z["rate"]).sum()
            + dist.LogNormal(jnp.log(10.0), 1.0).log_prob(z["start"]).sum()
            + dist.LogNormal(-1.0, 1.0).log_prob(z["noise"]).sum()
            + dist.LogNormal(path(z), z["noise"]).log_prob(y).sum()
        )

    latents = {"rate": (bbvi.positive, 4), "start": (bbvi.positive, 2), "noise": (bbvi.positive, 2)}
    return Case("predator prey", log_joint, latents, y, truth)


def oscillator(num: int = 40) -> Case:
    """Find frequency, friction and noise of a spring."""
    truth = {"rate": np.array([4.0, 0.15]), "start": np.array([2.0, 0.0]), "noise": np.array(0.2)}

    def path(z):
        return _solved(lambda s, p: jnp.stack([s[1], -p[0] * s[0] - p[1] * s[1]]), z["start"], z["rate"], num, 0.1, 3)[
            :, 0
        ]

    seen = np.asarray(path({name: jnp.asarray(value) for name, value in truth.items()}))
    y = seen + 0.2 * np.random.default_rng(6).normal(size=num)

    def log_joint(z, y):
        return (
            dist.LogNormal(jnp.array([1.0, -1.5]), 1.0).log_prob(z["rate"]).sum()
            + dist.Normal(0, 2).log_prob(z["start"]).sum()
            + dist.LogNormal(-1.0, 1.0).log_prob(z["noise"])
            + dist.Normal(path(z), z["noise"]).log_prob(y).sum()
        )

    latents = {"rate": (bbvi.positive, 2), "start": (bbvi.real, 2), "noise": (bbvi.positive,)}
    return Case("oscillator", log_joint, latents, y, truth)


def sinusoid(num: int = 60) -> Case:
    """Find the frequency of a wave."""
    t = np.arange(num) * 0.5
    truth = {"frequency": np.array(1.7), "amplitude": np.array([1.5, -1.0])}
    wave = truth["amplitude"] @ np.stack([np.sin(1.7 * t), np.cos(1.7 * t)])
    y = wave + 0.5 * np.random.default_rng(8).normal(size=num)

    def log_joint(z, y):
        phase = z["frequency"] * jnp.asarray(t)
        mean = z["amplitude"][0] * jnp.sin(phase) + z["amplitude"][1] * jnp.cos(phase)
        return dist.Normal(0, 2).log_prob(z["amplitude"]).sum() + dist.Normal(mean, 0.5).log_prob(y).sum()

    latents = {"frequency": (bbvi.interval, 0.0, 6.0), "amplitude": (bbvi.real, 2)}
    return Case("sinusoid", log_joint, latents, y, truth)


CASES: dict[str, Callable[[], Case]] = {
    "spike 8 0": lambda: spike_and_slab(8, 0.0), "spike 12 0.5": lambda: spike_and_slab(12, 0.5),
    "spike 30 0.8": lambda: spike_and_slab(30, 0.8), "hmm 2": lambda: hidden_markov(2), "hmm 3": lambda: hidden_markov(3),
    "hmm 4": lambda: hidden_markov(4), "hmm 5": lambda: hidden_markov(5), "mixture 1": lambda: mixture(1),
    "mixture 2": lambda: mixture(2), "mixture 10": lambda: mixture(10), "lda 40 50": lambda: topics(40, 50, 40),
    "lda 200 300": lambda: topics(200, 300, 60), "ising 0.2": lambda: ising(0.2), "ising 0.44": lambda: ising(0.44),
    "ising 0.8": lambda: ising(0.8), "blocks": blocks, "change points": change_points,
    "boolean factors": boolean_factors, "predator prey": predator_prey, "oscillator": oscillator, "sinusoid": sinusoid,
}  # fmt: skip
