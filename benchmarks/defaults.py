"""How far `bbvi.fit` gets without tuning: twelve models, its defaults, and a grid of fixed settings beside them.

    python benchmarks/defaults.py --only-defaults     the defaults alone
    python benchmarks/defaults.py --out results.json  the defaults, every fixed setting of the grid, and a race with the best
    python benchmarks/defaults.py --out results.json --race   the race again, of those that results.json has
    python benchmarks/defaults.py --best-known        recomputes twelve_models.json, the ELBOs that gaps are taken to
    python benchmarks/defaults.py --check             the exact ELBOs beside those of draws, in standard errors

ELBOs are those of twelve_elbos.py, without Monte Carlo. Seconds are of CPU time, so that other jobs do not count (run
it on one core: taskset -c 1 python ...). A run is looked at between chunks of steps, which grow to 0.3 s.

Every fixed setting of the grid runs once, until its budget ends. The two that were soonest near the best ELBO, compiling included, then
run against the defaults: in turns, three times, each with the stopping rule of the defaults. The ratio is that of what
a user waits for, the medians of the seconds from the call of `fit` to its end, to the fastest that converged within 0.05 nat. Each run is a
process of its own, so that none finds its programs compiled.
"""

import argparse
import functools
import json
import math
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from best_known import COLLAPSED, best_known, optima
from twelve_elbos import ELBOS
from twelve_models import CONTINUOUS, EXCHANGEABLE, MODELS

import bbvi

KNOWN = Path(__file__).with_name("twelve_models.json")
TOLERANCE = 0.05
FINALISTS, ROUNDS = 2, 3
LOOKS = 1.2  # a fixed setting is looked at again when it has run so many times as long

GRADIENTS = {"Score": bbvi.Score(), "Pathwise": bbvi.Pathwise()}
OPTIMIZERS = {
    "adagrad 0.1": bbvi.adagrad(0.1),
    "adagrad 1": bbvi.adagrad(1.0),
    "adam 0.01": optax.adam(0.01),
    "adam 0.1": optax.adam(0.1),
}
FIXED = {
    f"{gradient}, S = {draws}, {optimizer}": {
        "gradient": GRADIENTS[gradient], "draws": bbvi.MonteCarlo(draws), "optimizer": OPTIMIZERS[optimizer],
    }
    for gradient, sizes in {"Score": (10, 100, 1000), "Pathwise": (10, 100)}.items()
    for draws in sizes
    for optimizer in OPTIMIZERS
}  # fmt: skip
SETTINGS: dict[str, Any] = {"defaults": {}, **FIXED}


@functools.cache
def exact(name: str) -> Any:
    return jax.jit(ELBOS[name])


def elbo(name: str, params: Any, data: Any) -> float:
    with jax.enable_x64(True):
        return float(exact(name)(jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params), data))


def run(name: str, best: float, seed: int, setting: str, stop: Any, limit: float = math.inf) -> dict[str, Any]:
    """Run a setting to its end; `reached` is when it was near the best ELBO and stayed, in seconds, or None."""
    model, data = MODELS[name]()
    looks: list[tuple[float, Any]] = []
    jax.block_until_ready(jax.numpy.zeros(1))  # JAX itself has started
    began = time.process_time()
    # the loop of `fit`, which can be looked at on the way
    for posterior in bbvi.iterate(model, data, seed=seed, stop=stop, **SETTINGS[setting]):
        total = time.process_time() - began
        first = total if not looks else first
        if not looks or total - first >= LOOKS * looks[-1][0]:
            looks.append((total - first, posterior.params))
        if total - first > limit:
            break
    seconds, reached = total - first, None
    looks.append((seconds, posterior.params))
    last = value = elbo(name, posterior.params, data)
    while best - value <= TOLERANCE:
        reached, _ = looks.pop()
        if not looks:
            break
        value = elbo(name, looks[-1][1], data)
    # where there are many optima: how far from the nearest
    own = optima(name, posterior.params, data)[0] - last if setting == "defaults" and name in COLLAPSED else None
    return {
        "model": name, "setting": setting, "seed": seed, "elbo": last, "gap": best - last, "own_gap": own,
        "converged": posterior.converged, "stopped": posterior.stopped, "steps": len(posterior.history),
        "reached": reached, "seconds": seconds, "compiling": first,
    }  # fmt: skip


def run_afresh(*arguments: Any) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def checked(name: str) -> float:
    """The exact ELBO less that of draws, in standard errors, at a q with finite variances: narrow gammas."""
    model, data = MODELS[name]()
    start = bbvi.fit(model, data, stop=bbvi.Budget(steps=0))
    narrow = {
        latent: {p: raw + 3 * (p == "concentration") for p, raw in own.items()} for latent, own in start.params.items()
    }
    posterior = start.replace(narrow)
    estimate = posterior.elbo(10_000)
    return (elbo(name, narrow, data) - estimate) / estimate.standard_error


def settings_for(name: str) -> list[str]:
    return [setting for setting in FIXED if name in CONTINUOUS or not setting.startswith("Pathwise")]


def chosen(records: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The fits with defaults that count: all of them, or the best of the seeds where labels can be exchanged."""
    mine = [r for r in records if r["model"] == name and r["setting"] == "defaults"]
    return [max(mine, key=lambda r: r["elbo"])] if name in EXCHANGEABLE and mine else mine


def finalists(records: list[dict[str, Any]], name: str) -> list[str]:
    """The fixed settings that were soonest near the best ELBO and stayed, from the call on."""
    near = [r for r in records if r["model"] == name and r["setting"] in FIXED and r["reached"] is not None]
    return [r["setting"] for r in sorted(near, key=lambda r: r["compiling"] + r["reached"])[:FINALISTS]]


def waited(race: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Of the settings that converged near the best ELBO each time, the median of the seconds from call to end."""
    mine: dict[str, list[dict[str, Any]]] = {}
    for r in race:
        if r["model"] == name:
            mine.setdefault(r["setting"], []).append(r)
    good = {s: rs for s, rs in mine.items() if all(r["converged"] and r["gap"] <= TOLERANCE for r in rs)}
    return {s: statistics.median(r["compiling"] + r["seconds"] for r in rs) for s, rs in good.items()}


def table(records: list[dict[str, Any]], race: list[dict[str, Any]]) -> str:
    """A line for each fit with the defaults, and the fastest fixed setting of the race."""
    lines = [
        "| model | seed | gap, nat | to the nearest optimum | converged | steps | compiling | to 0.05 nat | to the end | race | best fixed setting | its race | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in MODELS:
        times = waited(race, name)
        ours = times.pop("defaults", None)
        best = min(times, key=lambda setting: times[setting], default=None)
        for r in chosen(records, name):
            beside = [shown(ours), "none", "-", "-"] if best is None or ours is None else [
                shown(ours), best, shown(times[best]), f"{ours / times[best]:.2f}"
            ]  # fmt: skip
            cells = [
                name, r["seed"], f"{r['gap']:.3f}", "" if r["own_gap"] is None else f"{r['own_gap']:.3f}",
                "yes" if r["converged"] else "no", f"{r['steps']:,}",
                shown(r["compiling"]), shown(r["reached"]), shown(r["seconds"]), *beside,
            ]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def stored() -> dict[str, Any]:
    return json.loads(KNOWN.read_text()) if KNOWN.exists() else {}


def shown(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS), metavar="MODEL")
    parser.add_argument("--seeds", type=int, default=1, help="how many; 5 at least where labels can be exchanged")
    parser.add_argument("--only-defaults", action="store_true", help="no fixed settings")
    parser.add_argument("--steps", type=int, default=50_000, help="budget of a fixed setting")
    parser.add_argument("--limit", type=float, default=30.0, help="the same in seconds")
    parser.add_argument("--out", type=Path, help="a JSON file for all records")
    parser.add_argument("--race", action="store_true", help="the race alone, of those that --out has")
    parser.add_argument("--best-known", action="store_true", help="recompute twelve_models.json")
    parser.add_argument("--check", action="store_true", help="the exact ELBOs beside those of draws")
    parser.add_argument("--quick", action="store_true", help="one small model and few steps, as a smoke")
    options = parser.parse_args()
    known = stored()
    if options.best_known:
        for name in options.models:
            found = best_known(name)
            print(name, found, flush=True)
            known = stored() | {name: found}
            KNOWN.write_text(json.dumps({name: known[name] for name in MODELS if name in known}, indent=1) + "\n")
        return
    if options.check:
        for name in options.models:
            print(f"{name}: {checked(name):.2f} standard errors", flush=True)
        return
    names, stop = (["funnel"], bbvi.Budget(steps=300)) if options.quick else (options.models, None)
    found: dict[str, list[dict[str, Any]]] = {"grid": [], "race": []}
    if options.race:
        found["grid"] = json.loads(options.out.read_text())["grid"]

    def keep(part: str, record: dict[str, Any]) -> None:
        found[part].append(record)
        print(json.dumps(record), flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")

    for name in names:
        best = known.get(name, {"elbo": math.nan})["elbo"]
        if not options.race:
            for seed in range(max(options.seeds, 5) if name in EXCHANGEABLE else options.seeds):
                keep("grid", run_afresh(name, best, seed, "defaults", stop))
        if options.only_defaults:
            continue
        seed = max(chosen(found["grid"], name), key=lambda r: r["elbo"])["seed"]
        if not options.race:
            budget = stop or bbvi.Budget(steps=options.steps)
            for setting in settings_for(name)[-1:] if options.quick else settings_for(name):
                keep("grid", run_afresh(name, best, seed, setting, budget, options.limit))
        if not options.quick:
            for _ in range(ROUNDS):
                for setting in ("defaults", *finalists(found["grid"], name)):
                    keep("race", run_afresh(name, best, seed, setting, None, options.limit))
    print("\n" + table(found["grid"], found["race"]))


if __name__ == "__main__":
    main()
