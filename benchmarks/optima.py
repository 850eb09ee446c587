"""The good optimum: how often fits with the defaults end near the best ELBO known, where there are many optima.

    python benchmarks/optima.py                       every model with one seed
    python benchmarks/optima.py --models spike,blocks --seeds 10 --json optima.json
    python benchmarks/optima.py --restarts 1          one start each
    python benchmarks/optima.py --paper               the paper's algorithm: Score(True, PlugIn()), adagrad(1.0), ParameterChange()

The models are those of `optima_models.py`. A fit is good if its ELBO is within max(1 nat, 0.5 %) of the best known: the highest
of a fit that starts from the values which made the data, of all fits of this run, and of those in the file given by `--json`, which is
read before it is written. A claim is false if a fit that is not good says converged and not that restarts disagree. Costs are in steps of
all kinds and in processor seconds, of which only ratios on one machine mean anything.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

from optima_models import CASES, Case

import bbvi

_DRAWS = 2000


def fitted(case: Case, seed: int, args: argparse.Namespace, *, at_truth: bool = False) -> dict[str, Any]:
    """Fit a model once and return what the table needs."""
    options: dict[str, Any] = {"stop": [bbvi.Converged(), bbvi.Budget(steps=args.steps)], "restarts": args.restarts}
    if at_truth:
        options["restarts"] = None
    elif args.paper:
        options = {
            "gradient": bbvi.Score(True, bbvi.PlugIn()),
            "optimizer": bbvi.adagrad(1.0),
            "draws": bbvi.MonteCarlo(1000),
        }
        options["stop"] = [bbvi.ParameterChange(), bbvi.Budget(steps=args.steps)]
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = bbvi.fit(case.model(at_truth=at_truth), case.data, seed=seed, progress=False, **options)
    seconds, elbo = time.process_time() - began, posterior.elbo(_DRAWS, seed=1)
    return {
        "elbo": float(elbo), "error": elbo.standard_error, "converged": posterior.converged,
        "disagree": "disagree" in posterior.verdict, "steps": len(posterior.history), "seconds": seconds,
    }  # fmt: skip


def is_good(elbo: float, best: float) -> bool:
    """Tell whether an ELBO is near enough to the best known."""
    return elbo > best - max(1.0, 0.005 * abs(best))


def main() -> None:
    """Fit, and print one line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="fit those whose name begins with one of these, parted by commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--restarts", type=int, default=None)
    parser.add_argument("--paper", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
    print(
        f"{'model':16} {'best':>10} {'median':>10} {'good':>6} {'claims':>6} {'false':>5} {'steps':>6} {'first s':>8} {'next s':>7}"
    )
    for name, make in CASES.items():
        if args.models and not any(name.startswith(one) for one in args.models.split(",")):
            continue
        case = make()
        found = [fitted(case, seed, args) for seed in range(args.seeds)]
        before = known.get(name, {"best": -math.inf})
        truth = fitted(case, 0, args, at_truth=True)["elbo"] if not math.isfinite(before["best"]) else before["best"]
        best = max(truth, before["best"], *(one["elbo"] for one in found))
        good = [is_good(one["elbo"], best) for one in found]
        false = sum(one["converged"] and not one["disagree"] and not ok for one, ok in zip(found, good, strict=True))
        elbos, steps = sorted(one["elbo"] for one in found), sorted(one["steps"] for one in found)
        later = [one["seconds"] for one in found[1:]] or [math.nan]
        print(
            f"{name:16} {best:10.2f} {elbos[len(elbos) // 2]:10.2f} {sum(good):3}/{len(good):<2} "
            f"{sum(one['converged'] for one in found):6} {false:5} {steps[len(steps) // 2]:6} {found[0]['seconds']:8.1f} "
            f"{sum(later) / len(later):7.1f}",
            flush=True,
        )
        key = "paper" if args.paper else f"restarts {args.restarts}"
        known[name] = {**before, "best": best, key: found}
        if args.json:
            args.json.write_text(json.dumps(known, indent=1))


if __name__ == "__main__":
    main()
