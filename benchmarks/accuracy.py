"""How near means and sds of fits are to those of long chains: thirty posteriors, with the defaults and with others beside them.

    python benchmarks/accuracy.py                          all posteriors, all methods
    python benchmarks/accuracy.py radon rasch --methods defaults    some of them
    python benchmarks/accuracy.py --holdout                ten others, which no rule was chosen by
    python benchmarks/accuracy.py --references [names]     recomputes accuracy.json, the moments that fits are compared with

References are by NumPyro's NUTS in double precision, but for the funnel, whose moments are known. An error of a mean is in posterior
sds, a ratio of sds is that of the fit to the reference; each is the worst of all numbers of all latents, and the latent that it is of
stands beside it. Each fit is a process of its own; seconds are of CPU time from the call to its end, compiling included, so that other
jobs do not count.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.diagnostics
import numpyro.distributions as dist
import optax
from accuracy_hierarchies import HIERARCHIES
from accuracy_holdout import HOLDOUT
from accuracy_regressions import REGRESSIONS
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import bbvi

REFERENCES = Path(__file__).with_name("accuracy.json")
MODELS = REGRESSIONS | HIERARCHIES | HOLDOUT
MOST_MEAN_ERROR, MOST_SD_ERROR = 0.2, 0.2
NUM_CORRELATED = 6  # correlations are kept of the first numbers alone
CHAINS, WARM_UP = 4, 2000
LIMIT, HANGS = 150.0, 400.0  # seconds of CPU time of a fit, and on the clock
#: draws of each chain, else 5,000: fewer where a step is dear, more where scales mix slowly
SLOW = ("schools_centred", "horseshoe", "spatial", "stochastic_volatility", "local_level")
KEPT = {"rasch": 1500, "process_of_counts": 2500} | dict.fromkeys(SLOW, 20_000)
#: where chains get stuck in a neck: the same posterior in other coordinates, and the way back
OTHERWISE = {
    "schools_centred": (
        "schools_non_centred",
        lambda z: {"mu": z["mu"], "tau": z["tau"], "theta": z["mu"][..., None] + z["tau"][..., None] * z["eta"]},
    )
}
EXACT = {"funnel": {"v": (0.0, 1.5), "x": (0.0, math.exp(1.5**2 / 4))}}
STEPS = 10_000
#: with a constant step the last iterate is as noisy as its step is large: beside it, one that shrinks to a hundredth
GUIDES = {
    "AutoNormal": (AutoNormal, 0.01),
    "AutoMultivariateNormal": (AutoMultivariateNormal, 0.01),
    "AutoMultivariateNormal, decayed": (AutoMultivariateNormal, optax.exponential_decay(0.01, STEPS, 0.01)),
}
METHODS = ("defaults", "mean field", *GUIDES)


def as_numpyro(model: bbvi.Model, data: Any) -> Any:
    """Write a model of bbvi for NumPyro: flat priors on the supports, and the log joint as a factor."""

    def log_joint() -> None:
        z = {
            name: numpyro.sample(name, dist.ImproperUniform(latent.chart.support, latent.shape, latent.event))
            for name, latent in model.globals.items()
        }
        numpyro.factor("log_joint", sum(jnp.sum(term) for term in jax.tree.leaves(model.log_joint(z, data))))

    return log_joint


def flat(values: Any, model: bbvi.Model, lead: int = 0) -> np.ndarray:
    """Put the numbers of all latents into one axis, in the order of declaration."""
    arrays = [np.asarray(values[name], np.float64) for name in model.globals]
    return np.concatenate([a.reshape(*a.shape[:lead], -1) for a in arrays], -1)


def reference(name: str) -> dict[str, Any]:
    """Run NUTS for a long time; means and sds of the numbers of each latent, and how well the chains agree."""
    model, _ = MODELS[name]()
    other, turn = OTHERWISE.get(name, (name, lambda chains: chains))
    sampler = MCMC(
        NUTS(as_numpyro(*MODELS[other]()), target_accept_prob=0.95),
        num_warmup=WARM_UP, num_samples=KEPT.get(name, 5000), num_chains=CHAINS, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    sampler.run(jax.random.key(0))
    chains = turn(sampler.get_samples(group_by_chain=True))
    x = flat(chains, model, lead=2)
    agree = numpyro.diagnostics.summary(chains).values()
    draws = x.reshape(-1, x.shape[-1])
    return {
        "mean": draws.mean(0), "sd": draws.std(0), "correlation": np.corrcoef(draws[:, :NUM_CORRELATED].T),
        "r_hat": max(np.nanmax(one["r_hat"]) for one in agree),
        "effective_draws": min(np.nanmin(one["n_eff"]) for one in agree),
        "divergent": int(sampler.get_extra_fields()["diverging"].sum()),
    }  # fmt: skip


def exact(name: str) -> dict[str, Any]:
    """Moments that are known, of latents that are not correlated."""
    model, _ = MODELS[name]()
    mean, sd = (
        flat({n: np.full(model.globals[n].shape, own[i]) for n, own in EXACT[name].items()}, model) for i in (0, 1)
    )
    return {"mean": mean, "sd": sd, "correlation": np.eye(min(len(mean), NUM_CORRELATED))}


def fitted(model: bbvi.Model, data: Any) -> dict[str, Any]:
    """Fit with the defaults of `fit`, by the loop that can be left when it takes too long."""
    began = time.process_time()
    run = bbvi.iterate(model, data, seed=0)
    posterior = next(run)
    while time.process_time() - began < LIMIT and (later := next(run, None)) is not None:
        posterior = later
    seconds = time.process_time() - began
    return {
        "mean": flat(posterior.mean(), model), "sd": flat(posterior.sd(), model), "seconds": seconds,
        "draws": flat(posterior.sample(10_000), model, lead=1),
        "converged": posterior.converged, "structure": [list(block) for block in posterior.structure],
    }  # fmt: skip


def guided(model: bbvi.Model, data: Any, guide: Any, rate: Any) -> dict[str, Any]:
    """Fit with NumPyro's SVI and Adam."""
    joint, began = as_numpyro(model, data), time.process_time()
    q = guide(joint)
    state = SVI(joint, q, optax.adam(rate), Trace_ELBO()).run(jax.random.key(0), STEPS, progress_bar=False)
    jax.block_until_ready(state.params)
    seconds = time.process_time() - began
    x = flat(q.sample_posterior(jax.random.key(1), state.params, sample_shape=(10_000,)), model, lead=1)
    return {"mean": x.mean(0), "sd": x.std(0), "draws": x, "seconds": seconds}


def run(name: str, method: str, truth: dict[str, Any]) -> dict[str, Any]:
    """Fit by one method, and compare with the reference."""
    model, data = MODELS[name]()
    # some of the models are declared as mean field, for other benchmarks
    structure: dict[str, Any] = {} if method == "defaults" else {"joint": ()}
    found = (
        guided(model, data, *GUIDES[method])
        if method in GUIDES
        else fitted(bbvi.Model(model.log_joint, **structure, **model.globals), data)
    )
    labels = [n for n, latent in model.globals.items() for _ in range(math.prod((*latent.shape, *latent.event)))]
    error = np.abs(found.pop("mean") - truth["mean"]) / np.array(truth["sd"])
    ratio = found.pop("sd") / np.array(truth["sd"])
    of_mean, of_sd = int(np.argmax(error)), int(np.argmax(np.abs(np.log(ratio))))
    correlation = np.corrcoef(found.pop("draws")[:, :NUM_CORRELATED].T)
    return found | {
        "posterior": name, "method": method, "mean_error": float(error[of_mean]), "mean_of": labels[of_mean],
        "sd_ratio": float(ratio[of_sd]), "sd_of": labels[of_sd],
        "correlation_error": float(np.max(np.abs(correlation - truth["correlation"]))),
    }  # fmt: skip


def run_afresh(name: str, method: str, truth: dict[str, Any]) -> dict[str, Any]:
    """Run in a process of its own, so that nothing is compiled before, and one that hangs can be ended."""
    pool = multiprocessing.get_context("spawn").Pool(1)
    try:
        return pool.apply_async(run, (name, method, truth)).get(HANGS)
    except multiprocessing.TimeoutError:
        worst = {"mean_error": math.inf, "mean_of": "", "sd_ratio": 0.0, "sd_of": "", "correlation_error": 2.0}
        return {"posterior": name, "method": method, "seconds": math.inf, "converged": False, **worst}
    finally:
        pool.terminate()


def is_mean_near(record: dict[str, Any]) -> bool:
    return record["mean_error"] <= MOST_MEAN_ERROR


def is_sd_near(record: dict[str, Any]) -> bool:
    return abs(record["sd_ratio"] - 1) <= MOST_SD_ERROR


def table(records: list[dict[str, Any]]) -> str:
    """A line for each posterior, and a line for each method that counts the accurate ones; what is not accurate is bold."""
    methods = [method for method in METHODS if any(r["method"] == method for r in records)]
    heads = [f"{what}, {method}" for method in methods for what in ("mean", "sd", "correlation", "seconds")]
    lines = ["| " + " | ".join(["posterior", *heads, "structure"]) + " |", "|---" * (len(heads) + 2) + "|"]
    for name in MODELS:
        mine = {r["method"]: r for r in records if r["posterior"] == name}
        cells = [cell for method in methods for cell in (figures(mine[method]) if method in mine else [""] * 4)]
        if mine:
            lines.append("| " + " | ".join([name, *cells, shown(mine.get("defaults", {}).get("structure"))]) + " |")
    return "\n".join(lines) + "\n\n" + "\n".join(counts(records))


def figures(record: dict[str, Any]) -> list[str]:
    mean, sd = f"{record['mean_error']:.2f} {record['mean_of']}", f"{record['sd_ratio']:.2f} {record['sd_of']}"
    unsure = " (not converged)" if record.get("converged") is False else ""
    return [
        mean if is_mean_near(record) else f"**{mean}**", sd if is_sd_near(record) else f"**{sd}**",
        f"{record['correlation_error']:.2f}", f"{record['seconds']:.1f}{unsure}",
    ]  # fmt: skip


def counts(records: list[dict[str, Any]]) -> list[str]:
    lines = []
    for method in METHODS:
        own = [r for r in records if r["method"] == method]
        if own:
            good, seconds = sum(is_mean_near(r) and is_sd_near(r) for r in own), np.median([r["seconds"] for r in own])
            lines.append(f"{method}: {good} of {len(own)} accurate, {seconds:.1f} s in the median")
    return lines


def shown(structure: list[Any] | None) -> str:
    """Blocks of latents; those before a stroke set the scales of those after it."""
    return "; ".join(
        " ".join(names[:parents]) + (" / " if parents else "") + " ".join(names[parents:])
        for names, parents, *_ in structure or ()
    )


def rounded(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}")


def compute_references(names: list[str]) -> None:
    numpyro.enable_x64()
    stored = json.loads(REFERENCES.read_text()) if REFERENCES.exists() else {}
    for name in names:
        found = exact(name) if name in EXACT else reference(name)
        stored[name] = {key: rounded(value) for key, value in found.items()}
        lines = [f" {json.dumps(n)}: {json.dumps(stored[n])}" for n in MODELS if n in stored]
        REFERENCES.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        print(name, {k: v for k, v in stored[name].items() if not isinstance(v, list)}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="posterior", help=", ".join(MODELS))
    parser.add_argument("--holdout", action="store_true", help="the ten that no rule was chosen by")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS, metavar="METHOD")
    parser.add_argument("--references", action="store_true", help="recompute accuracy.json")
    parser.add_argument("--out", type=Path, help="a JSON file for all records; those that it has are kept")
    parser.add_argument("--quick", action="store_true", help="one small posterior, as a smoke")
    options = parser.parse_args()
    names = options.names or list(HOLDOUT if options.holdout else REGRESSIONS | HIERARCHIES)
    names = ["logistic"] if options.quick else names
    if options.references:
        compute_references(names)
        return
    references = json.loads(REFERENCES.read_text())
    records = json.loads(options.out.read_text()) if options.out and options.out.exists() else []
    for name, method in itertools.product(names, options.methods):
        records = [r for r in records if (r["posterior"], r["method"]) != (name, method)]
        records.append(run_afresh(name, method, references[name]))
        print(json.dumps(records[-1]), flush=True)
        if options.out:
            options.out.write_text(json.dumps(records, indent=1) + "\n")
    print("\n" + table(records))


if __name__ == "__main__":
    main()
