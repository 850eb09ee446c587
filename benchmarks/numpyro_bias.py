"""Is the score-function gradient biased? NumPyro's TraceGraph_ELBO and bbvi against enumeration: a minute or two.

Three models whose latents are all Bernoulli, at one mean-field q with fixed logits: a chain written by `scan`, an array
whose entries meet in a cumulative sum without a plate, and locals in a subsampled plate. The exact gradient is a sum over
all outcomes, checked against finite differences of the exact ELBO. Each estimate is a mean over independent repeats, its
standard error that of the repeats.
"""

import argparse
import os
import platform
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.infer import TraceGraph_ELBO
from scipy.special import expit
from scipy.stats import bernoulli, norm

import bbvi

PARTICLES = 10  # draws in one gradient
LENGTH, NUM_GROUPS, BATCH = 8, 6, 2
STEP, STAY = -1.0, 2.5  # logit of z_t = 1 after a 0, and what a 1 adds to it
PRIOR, SHIFT = 0.3, 1.5  # P(z = 1) and P(g = 1), and what the global bit adds to the logit of a local


class Written(NamedTuple):
    """One way to write a model and its guide in NumPyro."""

    model: Callable[..., None]
    guide: Callable[..., None]


class Case(NamedTuple):
    """A model three times: in NumPy for the enumeration, in NumPyro (the first way is the headline) and in bbvi."""

    log_joint: Callable[..., np.ndarray]
    logits: dict[str, np.ndarray]
    x: np.ndarray
    ways: dict[str, Written]
    model: bbvi.Model | bbvi.HierarchicalModel
    batch_size: int | None = None


# ---- a chain ------------------------------------------------------------------------------------------------


def chain_log_joint(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    before = np.pad(z[:, :-1], ((0, 0), (1, 0)))
    return (bernoulli.logpmf(z, expit(STEP + STAY * before)) + norm.logpdf(x, z)).sum(1)


def chain_model(x):
    def step(before, x):
        z = numpyro.sample("z", dist.Bernoulli(logits=STEP + STAY * before))
        numpyro.sample("x", dist.Normal(z, 1.0), obs=x)
        return z, None

    scan(step, jnp.int32(0), x)


def chain_guide(x):
    logits = numpyro.param("logits_z", jnp.zeros(LENGTH))
    scan(lambda carry, logit: (carry, numpyro.sample("z", dist.Bernoulli(logits=logit))), None, logits)


def array_guide(x, *, event: bool):
    logits = numpyro.param("logits_z", jnp.zeros(LENGTH))
    numpyro.sample("z", dist.Bernoulli(logits=logits).to_event(int(event)))


def factor_model(x):
    z = numpyro.sample("z", dist.Bernoulli(jnp.full(LENGTH, 0.5)).mask(False).to_event(1))
    numpyro.factor("chain", chain_in_bbvi({"z": z}, x))


def loop_model(x):
    z = 0
    for t in range(LENGTH):
        z = numpyro.sample(f"z_{t}", dist.Bernoulli(logits=STEP + STAY * z))
        numpyro.sample(f"x_{t}", dist.Normal(z, 1.0), obs=x[t])


def loop_guide(x):
    logits = numpyro.param("logits_z", jnp.zeros(LENGTH))
    for t in range(LENGTH):
        numpyro.sample(f"z_{t}", dist.Bernoulli(logits=logits[t]))


def chain_in_bbvi(z, x):
    def step(carry, now):
        (before, total), (z, x) = carry, now
        total += dist.Bernoulli(logits=STEP + STAY * before).log_prob(z) + dist.Normal(z, 1.0).log_prob(x)
        return (z, total), None

    return jax.lax.scan(step, (jnp.zeros_like(z["z"][0]), 0.0), (z["z"], x))[0][1]


def chain(rng: np.random.Generator) -> Case:
    ways = {
        "scan in model and guide": Written(chain_model, chain_guide),
        "scan in model, one array site in the guide": Written(chain_model, partial(array_guide, event=False)),
        "the chain in one `factor`, z an array site with `to_event(1)`": Written(
            factor_model, partial(array_guide, event=True)
        ),
        "Python loops, a site for each step": Written(loop_model, loop_guide),
    }
    logits, x = {"z": rng.normal(size=LENGTH)}, rng.normal(0.5, 1, size=LENGTH)
    return Case(chain_log_joint, logits, x, ways, bbvi.Model(chain_in_bbvi, z=bbvi.binary(LENGTH)))


# ---- a coupled array ----------------------------------------------------------------------------------------


def array_log_joint(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (bernoulli.logpmf(z, PRIOR) + norm.logpdf(x, np.cumsum(z, 1))).sum(1)


def maybe_plate(plate: bool) -> Any:
    return numpyro.plate("entries", LENGTH) if plate else nullcontext()


def array_model(x, *, z_event: bool, x_event: bool, z_plate: bool, x_plate: bool):
    with maybe_plate(z_plate):
        z = numpyro.sample("z", dist.Bernoulli(jnp.full(LENGTH, PRIOR)).to_event(int(z_event)))
    with maybe_plate(x_plate):
        numpyro.sample("x", dist.Normal(jnp.cumsum(z), 1.0).to_event(int(x_event)), obs=x)


def plated_guide(x, *, z_event: bool, z_plate: bool):
    with maybe_plate(z_plate):
        array_guide(x, event=z_event)


def array_way(*options: str) -> Written:
    flags = {name: name in options for name in ("z_event", "x_event", "z_plate", "x_plate")}
    guide = partial(plated_guide, z_event=flags["z_event"], z_plate=flags["z_plate"])
    return Written(partial(array_model, **flags), guide)


def array_in_bbvi(z, x):
    return {"z": dist.Bernoulli(PRIOR).log_prob(z["z"]), "x": dist.Normal(jnp.cumsum(z["z"]), 1.0).log_prob(x)}


def array(rng: np.random.Generator) -> Case:
    ways = {
        "z and x bare": array_way(),
        "z in a plate, x bare": array_way("z_plate"),
        "z and x in one plate (declares x_i free of z_j)": array_way("z_plate", "x_plate"),
        "z with `to_event(1)`, x bare": array_way("z_event"),
        "z bare, x with `to_event(1)`": array_way("x_event"),
        "z in a plate, x with `to_event(1)`": array_way("z_plate", "x_event"),
        "z and x with `to_event(1)`": array_way("z_event", "x_event"),
    }
    logits, x = {"z": rng.normal(size=LENGTH)}, np.cumsum(rng.normal(0.4, 0.5, size=LENGTH))
    return Case(array_log_joint, logits, x, ways, bbvi.Model(array_in_bbvi, z=bbvi.binary(LENGTH)))


# ---- locals in a minibatch ----------------------------------------------------------------------------------


def groups_log_joint(bits: np.ndarray, x: np.ndarray) -> np.ndarray:
    g, z = bits[:, :1], bits[:, 1:]
    local = bernoulli.logpmf(z, expit(STEP + SHIFT * g)) + norm.logpdf(x, 2 * z)
    return bernoulli.logpmf(g, PRIOR)[:, 0] + local.sum(1)


def groups_model(x, *, size: int):
    g = numpyro.sample("g", dist.Bernoulli(PRIOR))
    with numpyro.plate("groups", NUM_GROUPS, subsample_size=size) as rows:
        z = numpyro.sample("z", dist.Bernoulli(logits=STEP + SHIFT * g))
        numpyro.sample("x", dist.Normal(2 * z, 1.0), obs=x[rows])


def groups_guide(x, *, size: int):
    numpyro.sample("g", dist.Bernoulli(logits=numpyro.param("logits_g", jnp.zeros(()))))
    logits = numpyro.param("logits_z", jnp.zeros(NUM_GROUPS))
    with numpyro.plate("groups", NUM_GROUPS, subsample_size=size) as rows:
        numpyro.sample("z", dist.Bernoulli(logits=logits[rows]))


def likelihood_subsampled_model(x):
    g = numpyro.sample("g", dist.Bernoulli(PRIOR))
    with numpyro.plate("groups", NUM_GROUPS):
        z = numpyro.sample("z", dist.Bernoulli(logits=STEP + SHIFT * g))
    with numpyro.plate("batch", NUM_GROUPS, subsample_size=BATCH) as rows:
        numpyro.sample("x", dist.Normal(2 * z[rows], 1.0), obs=x[rows])


def groups_in_bbvi() -> bbvi.HierarchicalModel:
    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Bernoulli(PRIOR).log_prob(beta["g"]),
        log_local=lambda beta, z, row: dist.Bernoulli(logits=STEP + SHIFT * beta["g"]).log_prob(z["z"]),
        log_likelihood=lambda beta, z, row: dist.Normal(2 * z["z"], 1.0).log_prob(row),
        globals={"g": bbvi.binary()},
        locals={"z": bbvi.binary()},
    )


def groups(rng: np.random.Generator) -> Case:
    whole, batch = ({"size": size} for size in (NUM_GROUPS, BATCH))
    ways = {
        "z and x in a subsampled plate": Written(partial(groups_model, **batch), partial(groups_guide, **batch)),
        "all z drawn, x alone in a subsampled plate": Written(
            likelihood_subsampled_model, partial(groups_guide, **whole)
        ),
        "no subsampling": Written(partial(groups_model, **whole), partial(groups_guide, **whole)),
    }
    logits = {"g": rng.normal(size=()), "z": rng.normal(size=NUM_GROUPS)}
    return Case(groups_log_joint, logits, rng.normal(1, 1, size=NUM_GROUPS), ways, groups_in_bbvi(), BATCH)


CASES = {"chain by scan": chain, "coupled array": array, "minibatched locals": groups}
SCORES = {"bbvi Score()": bbvi.Score(), "bbvi Score(True, None)": bbvi.Score(True, None)}


# ---- enumeration --------------------------------------------------------------------------------------------


def flat(tree: dict[str, Any]) -> np.ndarray:
    """All logits, or all gradients, in one vector: the order of the bits in the enumeration."""
    return np.concatenate([np.ravel(np.asarray(tree[name], np.float64)) for name in sorted(tree)])


def labels(logits: dict[str, np.ndarray]) -> list[str]:
    return [f"{name}{list(index) or ''}" for name in sorted(logits) for index in np.ndindex(np.shape(logits[name]))]


def outcomes(num_bits: int) -> np.ndarray:
    return np.arange(2**num_bits)[:, None] >> np.arange(num_bits) & 1


def exact_elbo(case: Case, logits: np.ndarray) -> float:
    bits = outcomes(logits.size)
    log_q = bernoulli.logpmf(bits, expit(logits)).sum(1)
    return float(np.exp(log_q) @ (case.log_joint(bits, case.x) - log_q))


def exact_gradient(case: Case) -> np.ndarray:
    """Sum q(z) (log p - log q) times the score over all outcomes, and hold it to finite differences."""
    logits = flat(case.logits)
    bits, step = outcomes(logits.size), 1e-5
    log_q = bernoulli.logpmf(bits, expit(logits)).sum(1)
    gradient = (np.exp(log_q) * (case.log_joint(bits, case.x) - log_q)) @ (bits - expit(logits))
    moves = step * np.eye(logits.size)
    slopes = [(exact_elbo(case, logits + move) - exact_elbo(case, logits - move)) / (2 * step) for move in moves]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-8)
    return gradient


# ---- estimates ----------------------------------------------------------------------------------------------


class Estimate(NamedTuple):
    """Mean and standard error over repeats."""

    mean: np.ndarray
    error: np.ndarray


def from_numpyro(case: Case, way: Written, draws: int, *, seed: int) -> tuple[Estimate, Estimate, bool]:
    """Estimate the gradient, and the ELBO itself, as SVI does; and say whether NumPyro warned of a plate."""
    loss, x = TraceGraph_ELBO(num_particles=PARTICLES).loss, jnp.asarray(case.x)
    params = {f"logits_{name}": jnp.asarray(value) for name, value in case.logits.items()}

    @jax.jit
    @jax.vmap
    def repeats(key):
        return jax.value_and_grad(lambda params: -loss(key, params, way.model, way.guide, x))(params)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        elbo, gradient = repeats(jax.random.split(jax.random.key(seed), draws // PARTICLES))
    columns = [np.reshape(gradient[name], (len(elbo), -1)) for name in sorted(gradient)]
    warned = any("plate" in str(warning.message) for warning in caught)
    return over_repeats(np.concatenate(columns, 1)), over_repeats(np.asarray(elbo)), warned


def over_repeats(values: np.ndarray) -> Estimate:
    mean, spread = values.mean(0, dtype=np.float64), values.std(0, ddof=1, dtype=np.float64)
    return Estimate(mean, spread / np.sqrt(len(values)))


def from_bbvi(case: Case, gradient: bbvi.Score, draws: int, *, seed: int) -> Estimate:
    """Ask bbvi for the moments of its own gradient at the same logits."""
    start = bbvi.fit(case.model, case.x, stop=bbvi.Budget(steps=0))
    posterior = start.replace({name: {"logits": jnp.asarray(value)} for name, value in case.logits.items()})
    found = bbvi.gradient_moments(
        case.model, case.x, posterior, seed=seed, batch_size=case.batch_size,
        gradient=gradient, draws=bbvi.MonteCarlo(PARTICLES), repeats=draws // PARTICLES,
    )  # fmt: skip
    return Estimate(
        *(flat({name: tree[name]["logits"] for name in tree}) for tree in (found.mean, found.standard_error))
    )


# ---- tables -------------------------------------------------------------------------------------------------

COLUMNS = ["worst parameter", "exact", "mean ± standard error", "deviation in standard errors"]


def worst(case: Case, exact: np.ndarray, found: Estimate) -> list[str]:
    """Describe the parameter whose mean is the most standard errors from its exact gradient."""
    deviations = (found.mean - exact) / found.error
    at = int(np.argmax(np.abs(deviations)))
    mean = f"{found.mean[at]:+.4f} ± {found.error[at]:.4f}"
    return [labels(case.logits)[at], f"{exact[at]:+.4f}", mean, f"{deviations[at]:+.1f}"]


def measure(draws: int, seed: int) -> tuple[list[list[str]], list[list[str]], float]:
    """Rows of the first ways beside bbvi, rows of all ways, and the worst deviation of NumPyro's ELBO itself."""
    beside, ways, elbo_deviation = [], [], 0.0
    for name, make in CASES.items():
        case = make(np.random.default_rng(0))
        exact, elbo = exact_gradient(case), exact_elbo(case, flat(case.logits))
        rows = []
        for title, way in case.ways.items():
            found, value, warned = from_numpyro(case, way, draws, seed=seed)
            rows.append([name, title, "yes" if warned else "no", *worst(case, exact, found)])
            elbo_deviation = max(elbo_deviation, abs(float((value.mean - elbo) / value.error)))
        ways += rows
        beside.append([name, "NumPyro TraceGraph_ELBO", *rows[0][3:]])
        for title, gradient in SCORES.items():
            beside.append([name, title, *worst(case, exact, from_bbvi(case, gradient, draws, seed=seed))])
    return beside, ways, elbo_deviation


def render(header: list[str], rows: list[list[str]], *, markdown: bool) -> str:
    """Lay rows out as a table, in markdown or in columns of equal width."""
    if markdown:
        lines = [header, ["---"] * len(header), *rows]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    pad = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (header, *rows)]
    return "\n".join("  ".join(line).rstrip() for line in pad)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=400_000, help="draws for each row")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the draws")
    parser.add_argument("--seed", type=int, default=0, help="of the draws; the models stay the same")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    draws = options.draws // 20 if options.quick else options.draws
    beside, ways, elbo_deviation = measure(draws, options.seed)
    print(
        f"Python {platform.python_version()}, jax {jax.__version__}, numpyro {numpyro.__version__}, "
        f"bbvi {bbvi.__version__}, {os.cpu_count()} cores, {platform.machine()}; "
        f"{draws:,} draws a row in gradients of {PARTICLES}, seed {options.seed}.\n"
    )
    print(render(["model", "gradient", *COLUMNS], beside, markdown=options.markdown))
    print("\nWays to write the same models in NumPyro; the first of each is the one above.\n")
    print(render(["model", "written as", "warns", *COLUMNS], ways, markdown=options.markdown))
    print(
        "\nA row shows the largest of 7 or 8 deviations: without bias, above 2.7 once in twenty rows. NumPyro's ELBO "
        f"itself, the value, is within {elbo_deviation:.1f} standard errors of the exact one in all rows."
    )


if __name__ == "__main__":
    main()
