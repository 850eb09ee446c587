"""How far the word `posterior.converged` can be trusted: fits with the defaults, and exact gaps to the best q.

    python benchmarks/verdicts.py                        every target with one seed
    python benchmarks/verdicts.py --seeds 3 --jobs 2     three seeds, two processes
    python benchmarks/verdicts.py --only ridge --json ridges.json
    python benchmarks/verdicts.py --structure default    the q that fit structures by itself, in place of the paper's factors
    python benchmarks/verdicts.py --check                the exact ELBOs beside those of draws, and the best q beside others
    python benchmarks/verdicts.py --list                 the names of the targets

The gap of a fit is the best ELBO within the family of its q, less the ELBO of the q that was returned. Both come from closed
forms, enumeration or quadrature over one variable in double precision; no Monte Carlo. A claim is false if its gap is above 0.05 nat, with
minibatches above 0.5. What is asked of the library: of the fits that claim to have converged at most 5 % are false, and of those of
well-conditioned targets at least 90 % end with a claim within the budget of steps, by default 20,000 here, so that a run takes
minutes; `fit` itself goes on to 50,000. A fit that raises is recorded as an error, and the run goes on.
"""

import argparse
import gc
import json
import math
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np
import verdict_batches
import verdict_gaussians
import verdict_hard
from verdict_joint import in_default_structure
from verdict_target import Case, Target

import bbvi

TARGETS = {
    target.name: target
    for target in (*verdict_gaussians.TARGETS, *verdict_hard.TARGETS, *verdict_batches.TARGETS)
}  # fmt: skip
STRUCTURES: dict[str, Callable[[Target], Target]] = {
    "factors": lambda target: target,
    "default": in_default_structure,
}
STEPS = 20_000
FALSE_AT_MOST, CLAIMED_AT_LEAST = 0.05, 0.9
MANY_DRAWS, FEW_DRAWS, MANY_PARAMETERS = 100_000, 200, 500
Record = dict[str, Any]


def fit_once(target: Target, case: Case, seed: int, steps: int) -> Record:
    """Fit a target with the defaults and take its gap; what a fit raises is an outcome too."""
    record: Record = {
        "target": target.name, "kind": target.kind, "well_conditioned": target.well_conditioned,
        "minibatch": target.batch_size is not None, "tolerance": target.tolerance, "seed": seed,
        "claimed": False, "steps": 0, "gap": math.nan,
    }  # fmt: skip
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a fit that is not finite: its outcome says so
            posterior = bbvi.fit(
                case.model, case.data, seed=seed, progress=False,
                stop=[bbvi.Converged(), bbvi.Budget(steps=steps)], **target.keywords,
            )  # fmt: skip
        record |= {"outcome": posterior.outcome.value, "claimed": posterior.converged, "steps": len(posterior.history)}
        record["gap"] = case.best - case.exact_elbo(posterior)
    except Exception as error:  # one fit must not end the others
        record["outcome"] = f"error: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return record | {"seconds": time.perf_counter() - began}


def run_target(name: str, seeds: int, steps: int, structure: str) -> list[Record]:
    """Fit one target with every seed, which share its compiled programs, and forget these."""
    target = STRUCTURES[structure](TARGETS[name])
    case = target.build()
    records = [fit_once(target, case, seed, steps) for seed in range(seeds)]
    del case
    jax.clear_caches()
    gc.collect()
    return records


def run_targets(names: list[str], *arguments: Any, jobs: int) -> Iterator[Record]:
    """Run targets one after the other, or each in the next free of some processes."""
    if jobs == 1:
        for name in names:
            yield from run_target(name, *arguments)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_target, name, *arguments) for name in names]):
            yield from done.result()


def is_near(record: Record) -> bool:
    return bool(record["gap"] <= record["tolerance"])  # false for NaN


def line(record: Record) -> str:
    told = "FALSE CLAIM" if record["claimed"] and not is_near(record) else ""
    shown = f"{record['target']:<42} seed {record['seed']}  {record['outcome']:<10} {record['steps']:>6} steps"
    return f"{shown} {record['seconds']:>6.1f} s  gap {record['gap']:>10.4g}  {told}".rstrip()


def table(records: list[Record]) -> str:
    """Tabulate claims and false claims by kind."""
    kinds = list(dict.fromkeys(r["kind"] for r in records))
    groups = {kind: [r for r in records if r["kind"] == kind] for kind in kinds}
    groups["all flat"] = [r for r in records if not r["minibatch"]]
    groups["all well-conditioned, flat"] = [r for r in records if r["well_conditioned"] and not r["minibatch"]]
    groups["all well-conditioned, minibatches"] = [r for r in records if r["well_conditioned"] and r["minibatch"]]
    groups["all"] = records
    out = [
        "| kind | fits | within tolerance | claimed | share of fits | false claims | share of claims | largest gap claimed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, mine in groups.items():
        claims = [r for r in mine if r["claimed"]]
        false = [r for r in claims if not is_near(r)]
        largest = f"{np.max([r['gap'] for r in claims]):.3g}" if claims else "-"
        out.append(
            f"| {kind} | {len(mine)} | {sum(map(is_near, mine))} | {len(claims)} | {share(claims, mine)} "
            f"| {len(false)} | {share(false, claims)} | {largest} |"
        )
    return "\n".join(out)


def share(part: list[Record], whole: list[Record]) -> str:
    return f"{100 * len(part) / len(whole):.0f} %" if whole else "-"


def verdict(records: list[Record]) -> str:
    """Say in words whether the two demands are met."""
    claims = [r for r in records if r["claimed"]]
    false = sum(not is_near(r) for r in claims)
    good = [r for r in records if r["well_conditioned"]]
    claimed = sum(r["claimed"] for r in good)
    met = {True: "met", False: "not met"}
    return (
        f"At most 5 % of claims false: {false} of {len(claims)}, {met[false <= FALSE_AT_MOST * len(claims)]}.\n"
        f"At least 90 % of well-conditioned targets claimed: {claimed} of {len(good)}, "
        f"{met[claimed >= CLAIMED_AT_LEAST * len(good)]}."
    )


def moved(params: Any, size: float, seed: int) -> Any:
    """Move lambda at random by about `size`: locations in units of their scales, other parameters as they are."""
    rng = np.random.default_rng(seed)

    def move(own: dict[str, Any]) -> dict[str, Any]:
        unit = np.exp(own["scale"]) if "scale" in own else 1.0
        return {
            p: np.float32(raw + size * rng.normal(size=np.shape(raw)) * (unit if p == "loc" else 1.0))
            for p, raw in own.items()
        }

    return {name: move(own) for name, own in params.items()}


def check(name: str, structure: str = "factors", draws: int = MANY_DRAWS) -> dict[str, float]:
    """Compare the exact ELBO with that of draws at a q near the best, and the best with what lies around it.

    Where there are no more than some hundred parameters, a Newton step tells what is left to gain along ridges too.

    Draws see the log joint in single precision, whose rounding is allowed for beside the standard error.
    """
    case = STRUCTURES[structure](TARGETS[name]).build()
    around = [
        case.best - case.value(moved(case.optimum, size, seed)) for size in (0.003, 0.03, 0.3) for seed in range(10)
    ]
    start = bbvi.fit(case.model, case.data, stop=bbvi.Budget(steps=0), progress=False)
    posterior = start.replace(jax.tree.map(jax.numpy.asarray, moved(case.optimum, 0.1, 0)))
    size = sum(np.size(leaf) for leaf in jax.tree.leaves(case.optimum))
    estimate = posterior.elbo(max(FEW_DRAWS, draws // max(1, posterior.num_groups)))
    error = math.hypot(estimate.standard_error, 3e-7 * abs(estimate))
    return {
        "errors": (case.exact_elbo(posterior) - estimate) / error,
        "least": min(around),
        "newton": case.newton_gain() if size <= MANY_PARAMETERS else math.nan,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="fits of each target")
    parser.add_argument("--only", default="", help="targets whose kind and name contain this; several with commas")
    parser.add_argument("--steps", type=int, default=STEPS, help="the budget of a fit")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--structure", choices=STRUCTURES, default="factors", help="of q: the paper's, or that of fit")
    parser.add_argument("--json", type=Path, help="write the records there")
    parser.add_argument("--check", action="store_true", help="test the exact ELBOs and the best q instead")
    parser.add_argument("--list", action="store_true", help="list the targets")
    options = parser.parse_args()
    wanted = options.only.split(",")
    names = [n for n, target in TARGETS.items() if any(part in f"{target.kind}: {n}" for part in wanted)]
    if options.list:
        print("\n".join(f"{TARGETS[name].kind}: {name}" for name in names))
        return
    if options.check:
        for name in names:
            found = check(name, options.structure)
            shown = f"{name}: {found['errors']:.2f} standard errors, a Newton step would gain {found['newton']:.1g}"
            print(f"{shown}, the best above others by {found['least']:.2g}", flush=True)
            jax.clear_caches()
        return
    records = []
    for record in run_targets(names, options.seeds, options.steps, options.structure, jobs=options.jobs):
        records.append(record)
        print(line(record), flush=True)
        if options.json:
            options.json.write_text(
                json.dumps({"steps": options.steps, "structure": options.structure, "fits": records}, indent=1) + "\n"
            )
    print(f"\n{table(records)}\n\n{verdict(records)}")


if __name__ == "__main__":
    main()
