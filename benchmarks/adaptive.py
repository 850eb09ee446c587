"""What adaptive numbers of draws save: draws and seconds to a small gap of the ELBO, and to `Converged`.

    python benchmarks/adaptive.py [model ...] [--quick]

The gap is that of the exact ELBO at the iterates to the best one known, looked at every 25 steps; a run has arrived when it is
below 0.05 nat twice in a row. Seconds are of CPU, without compiling; all are medians over seeds.
"""

import argparse
import importlib
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
from twelve_elbos import ELBOS
from twelve_models import MODELS

import bbvi

GAP, IN_A_ROW, STEPS = 0.05, 2, 25
BEST = json.loads(Path(__file__).with_name("twelve_models.json").read_text())
OPTIMIZERS = {"natural()": bbvi.natural(), "adagrad(1.0)": bbvi.adagrad(1.0)}
DRAWS = {
    "MonteCarlo(16)": bbvi.MonteCarlo(16), "MonteCarlo(100)": bbvi.MonteCarlo(100),
    "MonteCarlo(1024)": bbvi.MonteCarlo(1024), "AdaptiveDraws()": bbvi.AdaptiveDraws(),
}  # fmt: skip


class Cost(NamedTuple):
    """What a run has spent so far."""

    steps: float
    draws: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.steps:.0f} steps, {self.draws:.2g} draws, {self.seconds:.2f} s"


def follow(model: Any, data: Any, gap: Any, limit: int, **settings: Any) -> tuple[Cost | None, Cost | None, float]:
    """The cost until the gap was small, that until convergence, each None if there was none, and the gap at the end."""
    stop = [bbvi.Converged(), bbvi.Budget(steps=limit)]
    first, in_a_row, looking = None, 0, 0.0
    begin = time.process_time()
    for posterior in bbvi.iterate(model, data, stop=stop, **settings):
        now = time.process_time()
        draws = sum(int(record["draws"].sum()) for record in posterior._records)
        cost = Cost(posterior._num_steps(), draws, now - begin - looking)
        in_a_row = in_a_row + 1 if gap(posterior.params) < GAP else 0
        first = cost if first is None and in_a_row == IN_A_ROW else first
        looking += time.process_time() - now
    return first, cost if posterior.converged else None, float(gap(posterior.params))


def median(costs: list[Cost | None]) -> str:
    reached = [cost for cost in costs if cost is not None]
    middle = Cost(*map(statistics.median, zip(*reached, strict=True))) if reached else "never"
    return f"{middle} ({len(reached)} of {len(costs)})"


def main(names: list[str], quick: bool) -> None:
    importlib.import_module("bbvi.fitting.run").next_length = lambda *_: STEPS
    limit, seeds = (30, 1) if quick else (5_000, 2)
    for name in names:
        model, data = MODELS[name]()
        gap = jax.jit(lambda params, name=name, data=data: BEST[name]["elbo"] - ELBOS[name](params, data))
        for label, optimizer in OPTIMIZERS.items():
            for shown, draws in DRAWS.items():
                settings = {"optimizer": optimizer, "draws": draws}
                begin = time.process_time()
                follow(model, data, gap, 1, seed=0, **settings)
                compiling = time.process_time() - begin
                found = [follow(model, data, gap, limit, seed=seed, **settings) for seed in range(seeds)]
                small, converged, left = zip(*found, strict=True)
                print(
                    f"{name}, {label}, {shown}: small gap {median(small)}; converged {median(converged)}, "
                    f"gap then {statistics.median(left):.3f}; compiled in {compiling:.1f} s",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["schools_centred", "crossed_effects"])
    parser.add_argument("--quick", action="store_true", help="too few steps to mean anything")
    options = parser.parse_args()
    main(options.models, options.quick)
