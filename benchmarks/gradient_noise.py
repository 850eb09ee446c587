"""Part of peers.py: how noisy the gradients of different libraries are at the same lambda."""

import argparse
from pathlib import Path
from typing import Any

import cohort
import judge
import numpy as np
from driven import Method, Worker
from methods import OURS, PATHWISE, PYRO, SCORE, WRITTEN, attempt, chosen, written

LONGEST = 12  # visits; NumPyro takes minutes to compile a site for each of many


def variance(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Variance per draw of the full-data gradient over that of bbvi's Score, at the start and near the optimum."""
    data = cohort.simulate(options.few_patients, longest=LONGEST).padded()
    near, failures, rows = folder / "near.npz", {}, []
    if attempt("bbvi Score", failures, fitted, OURS, written(folder, "start", data), near, options) is None:
        return {"rows": [], "failures": failures, "caption": ""}
    methods = {
        "bbvi Score": OURS,
        "NumPyro TraceGraph_ELBO, a site a patient": SCORE.having(**WRITTEN),
        "NumPyro TraceGraph_ELBO, a site a visit": SCORE.having(**WRITTEN).having(sites="visits"),
        "Pyro TraceGraph_ELBO, a site a patient": PYRO.having(**WRITTEN),
        "bbvi Pathwise": OURS.having(method="pathwise"),
        "NumPyro pathwise Gamma": PATHWISE.having(**WRITTEN),
    }
    with np.load(near) as q:
        places = {"at the start": None, "after 300 steps of bbvi": dict(q)}
    for place, q in places.items():
        path, reference = written(folder, "place", data, q), None
        for name, method in chosen(options, methods).items():
            small = method.having(draws=options.variance_draws, batch=options.few_patients)
            moments = attempt(f"{name}, {place}", failures, moments_of, small, path, folder / "moments.npz", options)
            if moments is not None:
                reference = reference or moments
                rows.append({"lambda": place, "method": name, **compared(moments, reference, data, options.repeats)})
    caption = f"Variance per draw over that of bbvi Score, {options.few_patients} patients of up to {LONGEST} visits, S = {options.variance_draws}, {options.repeats} repeats"
    return {"rows": rows, "failures": failures, "caption": caption}


def fitted(method: Method, path: Path, into: Path, options: argparse.Namespace) -> bool:
    worker = Worker(method.having(draws=100, batch=options.few_patients), path, patience=options.patience)
    try:
        worker.ask("steps", num=300)
        worker.ask("posterior", into=str(into))
    finally:
        worker.close()
    return True


def moments_of(method: Method, path: Path, into: Path, options: argparse.Namespace) -> judge.Arrays:
    worker = Worker(method, path, patience=options.patience)
    try:
        worker.ask("gradients", repeats=options.repeats, into=str(into))
    finally:
        worker.close()
    with np.load(into) as found:
        return dict(found)


def compared(moments: judge.Arrays, reference: judge.Arrays, data: judge.Arrays, repeats: int) -> dict[str, float]:
    """For the parameters of each kind the median ratio of variances, and how far the means are apart."""
    valid, out, gaps = judge.visits(data), {}, []
    for name in ("W_loc", "W_log_scale", "o_loc", "o_log_scale", "x_log_concentration", "x_log_mean"):
        at = valid if name.startswith("x") else ...
        mean, var, mean_ours, var_ours = (
            m[f"{w} {name}"][at] for m in (moments, reference) for w in ("mean", "variance")
        )
        out[name] = float(np.median(var / var_ours))
        gaps.append(np.ravel((mean - mean_ours) / np.sqrt((var + var_ours) / repeats)))
    return {**out, "rms gap of means, standard errors": float(np.sqrt(np.mean(np.concatenate(gaps) ** 2)))}
