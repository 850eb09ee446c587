"""Five hierarchical models under subsampling, and the Mayo patients: how soon `bbvi.fit` is near the best ELBO, beside fixed settings.

    python benchmarks/hierarchies.py                          all models, the defaults and every fixed setting
    python benchmarks/hierarchies.py radon --settings defaults "Score 100"

Time is the processor's, of the steps alone: compiling and the ELBOs on the way, which are those of all groups from the same draws, are
not counted. Each fit runs in a process of its own.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 25
SETTINGS: dict[str, tuple[str | None, int | None]] = {
    "defaults": (None, None), "Auto 100": ("Auto", 100), "Auto 10": ("Auto", 10), "Pathwise 10": ("Pathwise", 10), "Pathwise 3": ("Pathwise", 3),
    "Score 100": ("Score", 100), "Score 30": ("Score", 30),
}  # fmt: skip
#: processor seconds
MARKS = 0.25 * 2.0 ** np.arange(9)
NEAR = 0.005  # of the best ELBO's size


def series(seed: int) -> tuple[Any, Any]:
    """The paper's Gamma-Normal time series: 200 patients."""
    import cohort

    return cohort.ours(cohort.simulate(200, longest=60, seed=seed))


def item_response(seed: int) -> tuple[Any, Any]:
    """Two-parameter item response: 1,000 people, 30 items."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi

    rng = np.random.default_rng(seed)
    ability, difficulty, slope = rng.normal(size=1000), rng.normal(size=30), rng.gamma(4, 0.25, 30)
    answers = rng.random((1000, 30)) < 1 / (1 + np.exp(-slope * (ability[:, None] - difficulty)))

    def log_likelihood(beta, z, row):
        return dist.Bernoulli(logits=beta["slope"] * (z["ability"] - beta["difficulty"])).log_prob(row)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: (
            dist.Normal(0, 2).log_prob(beta["difficulty"]).sum() + dist.Gamma(4, 4).log_prob(beta["slope"]).sum()
        ),
        log_local=lambda beta, z, row: dist.Normal(0, 1).log_prob(z["ability"]),
        log_likelihood=log_likelihood,
        globals={"difficulty": bbvi.real(30), "slope": bbvi.positive(30)},
        locals={"ability": bbvi.real()},
    )
    return model, jnp.asarray(answers, jnp.float32)


def radon(seed: int) -> tuple[Any, Any]:
    """Houses in 400 counties, 1 to 40 each, with an intercept and a slope for each county."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi

    rng = np.random.default_rng(seed)
    num = np.clip(rng.lognormal(1.5, 0.9, 400), 1, 40).astype(int)
    floors = [(rng.random(n) < 0.3).astype(np.float32) for n in num]
    levels = [
        rng.normal(1.4 + 0.4 * rng.normal() + (0.3 * rng.normal() - 0.7) * floor, 0.75).astype(np.float32)
        for floor in floors
    ]

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["a"] + z["b"] * row["floor"], beta["noise"]).log_prob(row["level"])
        return jnp.where(row["mask"]["house"], term, 0)

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: (
            dist.Normal(0, 5).log_prob(beta["mean"]).sum() + dist.HalfNormal(1).log_prob(beta["sd"]).sum() + dist.HalfNormal(2).log_prob(beta["noise"])
        ),
        log_local=lambda beta, z, row: (
            dist.Normal(beta["mean"][0], beta["sd"][0]).log_prob(z["a"]) + dist.Normal(beta["mean"][1], beta["sd"][1]).log_prob(z["b"])
        ),
        log_likelihood=log_likelihood,
        globals={"mean": bbvi.real(2), "sd": bbvi.positive(2), "noise": bbvi.positive()},
        locals={"a": bbvi.real(), "b": bbvi.real()},
    )  # fmt: skip
    return model, bbvi.ragged(house={"floor": floors, "level": levels})


def ratings(seed: int) -> tuple[Any, Any]:
    """Matrix factorisation: 1,000 users who rate 20 of 100 items each, rank 3."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi

    rng = np.random.default_rng(seed)
    users, items = rng.normal(size=(1000, 3)), rng.normal(size=(100, 3))
    item = np.stack([rng.permutation(100)[:20] for _ in range(1000)])
    stars = np.einsum("uk,unk->un", users, items[item]) + rng.normal(0, 0.5, item.shape)

    def log_likelihood(beta, z, row):
        return dist.Normal(beta["item"][row["item"]] @ z["user"], 0.5).log_prob(row["stars"])

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["item"]).sum(),
        log_local=lambda beta, z, row: dist.Normal(0, 1).log_prob(z["user"]).sum(),
        log_likelihood=log_likelihood,
        globals={"item": bbvi.real(100, 3)},
        locals={"user": bbvi.real(3)},
    )
    return model, {"item": item, "stars": jnp.asarray(stars, jnp.float32)}


def poisson(seed: int) -> tuple[Any, Any]:
    """Counts with exposure: 1,000 groups of 6, three covariates, an effect for each group."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi

    rng = np.random.default_rng(seed)
    x, exposure = rng.normal(size=(1000, 6, 3)), rng.gamma(2, 1, (1000, 6))
    effect = 0.6 * rng.normal(size=(1000, 1))
    counts = rng.poisson(exposure * np.exp(0.5 + x @ [0.3, -0.2, 0.1] + effect))

    def log_likelihood(beta, z, row):
        rate = row["exposure"] * jnp.exp(beta["level"] + row["x"] @ beta["slope"] + z["effect"])
        return dist.Poisson(rate).log_prob(row["counts"])

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: (
            dist.Normal(0, 3).log_prob(beta["level"]) + dist.Normal(0, 1).log_prob(beta["slope"]).sum() + dist.HalfNormal(1).log_prob(beta["sd"])
        ),
        log_local=lambda beta, z, row: dist.Normal(0, beta["sd"]).log_prob(z["effect"]),
        log_likelihood=log_likelihood,
        globals={"level": bbvi.real(), "slope": bbvi.real(3), "sd": bbvi.positive()},
        locals={"effect": bbvi.real()},
    )  # fmt: skip
    data = {"x": x, "exposure": exposure, "counts": counts.astype(float)}
    return model, {name: jnp.asarray(values, jnp.float32) for name, values in data.items()}


def mayo(seed: int) -> tuple[Any, Any]:
    """A random intercept and slope for each lab of the 312 Mayo patients."""
    return mayo_split(seed, 0.0)[:2]


def mayo_split(seed: int, share: float = 0.1) -> tuple[Any, Any, Any]:
    """The same, and the data without and with alone a share of the measurements."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    import bbvi
    from bbvi.study.mayo import load_mayo

    patients = load_mayo()
    logs = [np.log(labs) for labs in patients.labs]
    mean, sd = (f(np.concatenate(logs), axis=0) for f in (np.nanmean, np.nanstd))
    filled = [bbvi.missing((own - mean) / sd) for own in logs]
    years = [np.asarray(times / 3652.5, np.float32) for times in patients.times]

    def log_likelihood(beta, z, row):
        term = dist.Normal(z["a"] + z["b"] * row["years"][:, None], beta["noise"]).log_prob(row["labs"])
        return jnp.where(row["observed"] & row["mask"]["visit"][:, None], term, 0)

    def log_local(beta, z, row):
        a = dist.Normal(beta["mean_a"], beta["sd_a"]).log_prob(z["a"])
        return {"a": a, "b": dist.Normal(beta["mean_b"], beta["sd_b"]).log_prob(z["b"])}

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: {
            **{n: dist.Normal(0, 2).log_prob(beta[n]) for n in ("mean_a", "mean_b")},
            **{n: dist.HalfNormal(2).log_prob(beta[n]) for n in ("sd_a", "sd_b", "noise")},
        },
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={
            "mean_a": bbvi.real(7), "mean_b": bbvi.real(7), "sd_a": bbvi.positive(7), "sd_b": bbvi.positive(7),
            "noise": bbvi.positive(7),
        },
        locals={"a": bbvi.real(7), "b": bbvi.real(7)},
    )  # fmt: skip
    labs, seen = ([np.asarray(own[i]) for own in filled] for i in (0, 1))
    rng = np.random.default_rng(seed)
    held = [rng.random(own.shape) < share for own in seen]

    def data(observed):
        return bbvi.ragged(visit={"labs": labs, "observed": observed, "years": years})

    kept, out = ([own & (away == which) for own, away in zip(seen, held, strict=True)] for which in (False, True))
    return model, data(kept), data(out)


MODELS: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "series": series, "item response": item_response, "radon": radon, "ratings": ratings, "poisson": poisson, "mayo": mayo,
}  # fmt: skip


def options_of(setting: str) -> dict[str, Any]:
    import bbvi

    gradient, num = SETTINGS[setting]
    return {
        **({} if gradient is None else {"gradient": getattr(bbvi, gradient)(), "optimizer": bbvi.natural()}),
        **({} if num is None else {"draws": bbvi.MonteCarlo(num)}),
    }


def run(name: str, setting: str, seed: int, most: float, marks: Any = MARKS) -> dict[str, Any]:
    """Fit for so many processor seconds, and look at the ELBO on the way."""
    import bbvi

    model, data = MODELS[name](seed)
    began = time.process_time()
    looks, spent, waiting = [], 0.0, [mark for mark in marks if mark <= most]
    fits = bbvi.iterate(model, data, seed=seed, batch_size=BATCH, stop=bbvi.Budget(steps=10**9), **options_of(setting))
    first = next(fits)
    compiling = time.process_time() - began
    for posterior in fits:
        spent = time.process_time() - began - compiling
        if spent < waiting[0]:
            continue
        pause = time.process_time()
        looks.append((spent, len(posterior.history), float(posterior.elbo(100, seed=1))))
        began += time.process_time() - pause
        waiting = [mark for mark in waiting if mark > spent]
        if not waiting:
            break
    del first
    draws = posterior.history["draws"].to_numpy()
    return {
        "model": name, "setting": setting, "seed": seed, "compiling": compiling, "looks": looks, "draws": [int(draws[0]), int(draws[-1])],
        "estimators": posterior.estimators,
    }  # fmt: skip


def reached(found: dict[str, Any], best: float) -> float:
    """Processor seconds after which a fit was near the best ELBO and stayed."""
    near = [best - elbo <= NEAR * abs(best) for _, _, elbo in found["looks"]]
    if not near[-1]:
        return math.inf
    first = len(near) - (near[::-1].index(False) if False in near else len(near))
    return found["looks"][first][0]


def table(records: list[dict[str, Any]]) -> None:
    for name in dict.fromkeys(record["model"] for record in records):
        mine = [record for record in records if record["model"] == name]
        for seed in sorted({record["seed"] for record in mine}):
            own = [record for record in mine if record["seed"] == seed]
            best = max(elbo for record in own for *_, elbo in record["looks"])
            print(f"\n{name}, seed {seed}: best ELBO {best:,.1f}; ELBOs less it after processor seconds (steps)")
            for record in own:
                gaps = "  ".join(f"{t:.1f}s({n}) {elbo - best:,.1f}" for t, n, elbo in record["looks"])
                print(
                    f"{record['setting']:12} near {reached(record, best):5.1f} s, compiling {record['compiling']:4.0f} s, draws {record['draws']}: {gaps}"
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--seconds", type=float, default=16.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    records: list[dict[str, Any]] = []
    for name in options.models or MODELS:
        for seed in range(options.seeds):
            for setting in options.settings:
                with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                    records.append(pool.submit(run, name, setting, seed, options.seconds).result())
                if options.out is not None:
                    options.out.write_text(json.dumps(records, indent=1))
        table([record for record in records if record["model"] == name])


if __name__ == "__main__":
    main()
