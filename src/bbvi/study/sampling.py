"""Section 5.3 and Figure 1: held-out predictive likelihood against time, for bbvi and for Metropolis-Hastings.

On the clock are steps and sweeps on the training patients, each method alone on the machine. The compiler, which every
run needs once, and the predictions, which are made with the clock stopped, are not.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import bbvi
from bbvi.study.data_sets import DataSet
from bbvi.study.effort import BATCH_SIZE, Effort, algorithm
from bbvi.study.models import MODELS
from bbvi.study.scores import HeldOut, draws_given, hold_out, plain, score
from bbvi.study.stages import Report, uninterrupted

MODEL = "Gamma-Normal-TS"
CLOCK = (
    "Steps and sweeps on the training patients are on the clock. Compiling is not, nor are the predictions: the test patients' "
    "locals are fitted or sampled, with globals from training only, while the clock stands still."
)
BBVI, GIBBS, PLAIN = "BBVI", "Metropolis-Hastings within Gibbs", "Metropolis-Hastings"
DEFAULTS = "BBVI with the defaults of fit"
_TUNING_SWEEPS = 100
_NUM_CHAINS = 2
_GLOBALS = 60  # draws of the globals that predict, for each chain and checkpoint
_SETTLING = 20  # of these, at whose predictions the locals have still to forget the checkpoint before


def on_the_clock(
    run: Iterator[Any],
    seconds: float,
    marks: tuple[float, ...],
    report: Report,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[float, Any]]:
    """Yield what a run has reached at each mark, a share of the seconds; the time between steps is not counted.

    The first chunk, which compiles, is not counted either.
    """
    current, spent, waiting = next(run), 0.0, list(marks)
    while waiting:
        began = clock()
        current = next(run)
        if isinstance(current, bbvi.Posterior):
            uninterrupted(current)
        spent += clock() - began
        report(min(1.0, spent / seconds))
        if spent >= waiting[0] * seconds:
            while waiting and spent >= waiting[0] * seconds:
                waiting.pop(0)
            yield spent, current


def variational(data: DataSet, effort: Effort, *, method: str, seed: int, report: Report) -> dict[str, Any]:
    """Make the curve of bbvi: by the paper's algorithm, or by the defaults of `bbvi.fit`."""
    entry = MODELS[MODEL]
    model, test = entry.build(len(data.train.names), data.settings), hold_out(data.test, 0)
    to_train, to_test = (
        {} if method == DEFAULTS else algorithm(entry.eta, num) for num in (effort.num_draws, effort.test_draws)
    )
    run = bbvi.iterate(
        model, data.train.ragged(), seed=seed, batch_size=min(BATCH_SIZE, len(data.train)),
        stop=bbvi.Budget(steps=10**9), **to_train,
    )  # fmt: skip
    points = []
    for seconds, posterior in on_the_clock(run, effort.seconds, effort.checkpoints, report):
        draws = draws_given(posterior, test, effort, seed=seed, **to_test)
        points.append((seconds, score(model, draws, test)))
    return _curve(method, seed, points)


def sampled(
    data: DataSet,
    effort: Effort,
    kernel: Any,
    *,
    method: str,
    seed: int,
    report: Report,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """Make the curve of a sampler: at each mark the later half of its draws of the globals predicts."""
    entry = MODELS[MODEL]
    model, test = entry.build(len(data.train.names), data.settings), hold_out(data.test, 0)
    run = bbvi.iterate_metropolis(
        model, data.train.ragged(), kernel=kernel, num_draws=10**6, num_burn_in=_TUNING_SWEEPS, num_chains=_NUM_CHAINS,
        seed=seed, keep=list(model.globals),
    )  # fmt: skip
    times, held, last = [], [], None
    for seconds, chains in on_the_clock(run, effort.seconds, effort.checkpoints, report, clock):
        if chains.num_draws >= 2:
            last = chains
            times.append(seconds)
            held.append(_later_half(chains.to_arviz(), list(model.globals)))
    if last is None:
        raise RuntimeError(f"{method} made no draw in {effort.seconds:g} s after tuning: give it more time")
    points = list(zip(times, _predictions(model, held, test, effort, kernel, seed), strict=True))
    mixed = bbvi.mixing(last.to_arviz())
    return {**_curve(method, seed, points), "mixing": _as_table(mixed), "num_sweeps": last.num_sweeps}


def _later_half(draws: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return draws of the globals evenly spread over the later half, `(chain, draw, ...)`."""
    num = draws.posterior.sizes["draw"]
    chosen = np.linspace(num // 2, num - 1, _GLOBALS).astype(int)
    return {name: draws.posterior[name].values[:, chosen] for name in names}


def _predictions(
    model: bbvi.HierarchicalModel,
    held: list[dict[str, np.ndarray]],
    test: HeldOut,
    effort: Effort,
    kernel: Any,
    seed: int,
) -> list[dict[str, Any]]:
    """Score at each mark; the test patients' locals move on from mark to mark, with each draw of the globals in turn."""
    both = {name: np.concatenate([part[name] for part in held], axis=1) for name in held[0]}
    values = {name: array.reshape(-1, *array.shape[2:]) for name, array in both.items()}
    *_, chains = bbvi.iterate_metropolis(
        model, test.fit_data, kernel=kernel, hold=values, num_draws=_GLOBALS * len(held), num_burn_in=_TUNING_SWEEPS,
        num_chains=_NUM_CHAINS, thin=effort.test_sweeps, seed=seed,
    )  # fmt: skip
    posterior, out = chains.to_arviz().posterior, []
    for mark in range(len(held)):
        part = posterior.isel(draw=slice(mark * _GLOBALS + _SETTLING, (mark + 1) * _GLOBALS))
        # the same for ArviZ's InferenceData and DataTree: chain after chain on one axis
        arrays = {name: part[name].transpose("chain", "draw", ...).values for name in (*model.globals, *model.locals)}
        draws = plain({name: array.reshape(-1, *array.shape[2:]) for name, array in arrays.items()})
        out.append(score(model, draws, test))
    return out


def _curve(method: str, seed: int, points: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    return {
        "method": method, "seed": seed, "seconds": np.array([s for s, _ in points]),
        "per_observation": np.array([p["per_observation"] for _, p in points]),
        "error": np.array([p["per_observation_error"] for _, p in points]),
        "mse": np.array([p["mse"] for _, p in points]),
    }  # fmt: skip


def _as_table(frame: Any) -> dict[str, Any]:
    return {"columns": list(frame.columns), "index": list(frame.index), "values": frame.to_numpy(float).tolist()}


def summary(curves: list[dict[str, Any]], data: DataSet, effort: Effort) -> dict[str, Any]:
    """Return Figure 1's numbers: where Gibbs ends, where bbvi ends, and how soon bbvi is where Gibbs ends."""
    out: dict[str, Any] = {
        "data": data.train.name, "budget": effort.seconds, "num_patients": len(data.train), "clock": CLOCK,
        "curves": [{k: v for k, v in c.items() if k != "mixing"} for c in curves],
        "mixing": {c["method"]: c["mixing"] for c in reversed(curves) if "mixing" in c},
    }  # fmt: skip
    ours, theirs = ([c for c in curves if c["method"] == method] for method in (BBVI, GIBBS))
    if ours and theirs:
        goal, gap = float(np.mean([c["per_observation"][-1] for c in theirs])), theirs[0]["error"][-1]
        times = [
            c["seconds"][np.argmax(c["per_observation"] >= goal)] for c in ours if (c["per_observation"] >= goal).any()
        ]
        reached = float(np.max(times)) if len(times) == len(ours) else None
        end = float(np.mean([c["per_observation"][-1] for c in ours]))
        out["reach"] = {
            "gibbs_end": goal, "gibbs_end_error": gap, "bbvi_end": end, "bbvi_end_error": ours[0]["error"][-1],
            "bbvi_seconds_to_gibbs_end": reached, "share_of_budget": None if reached is None else reached / effort.seconds,
            "holds": reached is not None and reached <= effort.seconds / 10 and end >= goal,
        }  # fmt: skip
    return out
