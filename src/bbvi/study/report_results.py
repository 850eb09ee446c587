"""The report's results: Figures 1 and 2, Table 1, the factors found and the truth recovered."""

from functools import partial
from typing import Any

import numpy as np

from bbvi.study import figures, page, verdicts
from bbvi.study.draw_models import shown_labs
from bbvi.study.models import MODELS
from bbvi.study.numerals import duration, floats, number, percent, power_of_ten, significant
from bbvi.study.page import Html, tag
from bbvi.study.palette import colour
from bbvi.study.report_setting import frame
from bbvi.study.verdicts import Verdict


def verdict(one: Verdict) -> Html:
    """Write what was expected, what was found, and whether it holds."""
    badge = tag("span", f"{one.word.capitalize()}.", class_="badge") if one.word else ""
    words = tag("p", tag("b", "Expected: "), f"{one.expected}. ", tag("b", "Found: "), f"{one.found}. ", badge)
    return tag("div", words, cases(one), class_=f"verdict {kind(one)}")


def cases(one: Verdict) -> Html:
    """Write what was found case by case, as a list."""
    return tag("ul", *(tag("li", case) for case in one.each)) if one.each else Html("")


def kind(one: Verdict) -> str:
    """Return the style of a verdict."""
    return {True: "yes", False: "no", None: "open"}[one.holds]


def gibbs(results: dict[str, Any]) -> Html:
    """Write the section of Figure 1."""
    part = results["gibbs"]
    intro = (
        "Metropolis-Hastings, too, needs only the log joint. Plain, it fails on Gamma-Normal-TS, says the paper; within Gibbs it works, but "
        "slowly. Both methods get the same machine, the same time and the same patients, and are scored on the same held-out measurements."
    )
    caption = (
        f"BBVI against Metropolis-Hastings within Gibbs: log predictive density of a held-out measurement against time, "
        f"{part['data']}, {part.get('num_patients', '')} patients. A thin line is a seed, its band one standard error over patients; "
        f"the thick line is the mean of the seeds. The dotted line is where Gibbs ends. {part.get('clock') or ''}"
    )
    alt = f"Held-out predictive likelihood against time for {_list(c['method'] for c in part['curves'])}."
    parts = [tag("p", intro), page.figure("Figure 1", caption, alt, lambda narrow: figures.gibbs(part, narrow))]
    if part.get("reach"):
        parts.insert(1, verdict(verdicts.gibbs(part)))
    parts.append(_ends(part["curves"]))
    if part.get("acceptance") is not None:
        parts.append(tag("p", f"Accepted proposals: {_shares(part['acceptance'])}.", class_="meta"))
    for method, table in (part.get("mixing") or {}).items():
        parts.append(tag("details", tag("summary", f"Mixing of {method}"), frame(table, "")))
    return page.section("gibbs", "Figure 1: BBVI and sampling", *parts)


def _ends(curves: list[dict[str, Any]]) -> Html:
    """Write a table of where every run ended."""
    last = [{k: _last(c.get(k)) for k in ("per_observation", "error", "mse", "seconds")} for c in curves]
    columns = [
        page.names("method", [named(curve["method"]) for curve in curves]),
        page.numbers("seed", [str(curve["seed"]) for curve in curves]),
        page.estimates("per held-out measurement", [e["per_observation"] for e in last], [e["error"] for e in last]),
        page.numbers("squared error", [significant(end["mse"], keep_zeros=True) for end in last]),
        page.texts("after", [duration(end["seconds"]) for end in last], "number"),
    ]
    return page.table("At the end of the time, with one standard error over patients.", columns)


def _last(values: Any) -> float | None:
    return None if values is None or not len(values) else float(floats(values)[-1])


def _shares(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_shares(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple, np.ndarray)):
        return ", ".join(_shares(one) for one in value)
    return value if isinstance(value, str) else percent(value)


def _list(names: Any) -> str:
    return ", ".join(dict.fromkeys(map(str, names)))


def named(name: str, among: Any = ()) -> Html:
    """Write a model or a method with the colour it has in the figures."""
    return page.join(tag("span", "", class_="swatch", style=f"background:{colour(name, list(among))}"), name)


def variance(results: dict[str, Any]) -> Html:
    """Write the section of Figure 2."""
    part = results["variance"]
    caption = (
        f"Variance of the gradient for {part['component']}, {who(part['patient'])}, {part['data']}, against iteration, on a "
        f"logarithmic scale. {significant(part['draws'])} draws for a gradient, {significant(part['repeats'])} gradients at each "
        "iteration. Solid: the estimators of the paper. Dashed: later ones."
    )
    alt = f"Variance of the gradient against iteration for the estimators {_list(part['estimators'])}."
    found = part["estimators"]
    columns = [
        page.names("estimator", [named(name, found) for name in found]),
        page.numbers(
            "variance, median",
            [power_of_ten(np.nanmedian(floats(values))) for values in found.values()],
        ),
        page.numbers("Eq. 3's is larger by", [_times(found, name) for name in found]),
    ]
    return page.section(
        "variance", "Figure 2: variance reductions", *map(verdict, verdicts.variance(part)),
        page.figure("Figure 2", caption, alt, lambda narrow: figures.variance(part, narrow)),
        page.table("Over the iterations shown.", columns),
    )  # fmt: skip


def _times(found: dict[str, Any], name: str) -> str:
    if "Eq. 3" not in found or name == "Eq. 3":
        return ""
    with np.errstate(all="ignore"):
        ratio = np.nanmedian(floats(found["Eq. 3"]) / floats(found[name]))
    return f"{significant(ratio)} ×"


def progress(results: dict[str, Any]) -> Html:
    """Write the section on convergence with and without each variance reduction."""
    part = results["progress"]
    words = "The paper reports that Algorithm 1, without variance reductions, failed to make noticeable progress in the time allotted."
    caption = f"The ELBO against time with and without each variance reduction, {part['data']}."
    alt = f"ELBO against time for {_list(run['estimator'] for run in part['runs'])}."
    columns = [
        page.names("estimator", [named(run["estimator"]) for run in part["runs"]]),
        page.numbers("first ELBO", [number(floats(run["elbo"])[0], 0) for run in part["runs"]]),
        page.numbers("last ELBO", [number(_last(run["elbo"]), 0) for run in part["runs"]]),
        page.numbers("steps", [number(run["steps"], 0) for run in part["runs"]]),
        page.texts("time", [duration(_last(run["seconds"])) for run in part["runs"]], "number"),
    ]
    return page.section(
        "progress", "Convergence", tag("p", words),
        tag("div", tag("p", part["verdict"]), class_="verdict") if part.get("verdict") else "",
        page.figure("Convergence", caption, alt, lambda narrow: figures.progress(part, narrow)),
        page.table("", columns),
    )  # fmt: skip


def comparison(results: dict[str, Any]) -> Html:
    """Write the section of Table 1."""
    words = (
        "Each model is fitted to the training patients; for a test patient the locals are fitted to 75 % of the measurements with the globals "
        "held, and the rest is scored. The paper's column comes from other, private data, scored in a unit it does not state: "
        "compare the order of its numbers with ours, not their level."
    )
    parts = [tag("p", words)]
    for data, scores in results["comparison"].items():
        parts += [tag("h3", page.titled(data)), _scores(data, scores), *map(verdict, verdicts.claims({data: scores}))]
        alt = f"Predictive likelihood of {_list(m['model'] for m in scores['models'])} with error bars."
        caption = f"Table 1 as a picture, {data}: to the right is better."
        parts.append(page.figure("", caption, alt, partial(figures.comparison, scores)))
        if any(model.get("history") for model in scores["models"]):
            alt = f"ELBO against time for each model's fit, {data}."
            draw = partial(figures.histories, scores["models"])
            drawn = page.figure("", f"The ELBO of each fit against time, {data}.", alt, draw)
            parts.append(tag("details", tag("summary", "Did the fits converge?"), _fits(scores["models"]), drawn))
    return page.section("comparison", "Table 1: exploring models", *parts)


def _scores(data: str, scores: dict[str, Any]) -> Html:
    models, averages = scores["models"], scores.get("averages")
    rows = [*models, *([averages] if averages else [])]
    order = [model["model"] for model in models]
    labels: list[Any] = [named(name, order) for name in order] + ["own averages"] * bool(averages)
    columns = [page.names("model", labels)]
    columns.append(page.numbers("paper", [significant(row.get("paper")) for row in rows]))
    for what, head in (
        ("per_observation", "per measurement"),
        ("per_patient", "per patient"),
        ("mse", "squared error"),
    ):
        values, errors = [row.get(what) for row in rows], [row.get(f"{what}_error") for row in rows]
        columns.append(page.estimates(head, values, errors))
    others = [
        f"{name} is the paper's {MODELS[name].paper_name}"
        for name in order
        if name in MODELS and MODELS[name].paper_name not in (name, None)
    ]
    caption = page.join(
        tag("b", "Table 1. "), f"Log predictive density of held-out measurements and squared error of their mean, {data}, with one standard "
        "error over patients. ", f"{', '.join(others)}. " if others else "",
        "Own averages: a Normal around each patient's own mean of a lab, without a model." if averages else "",
    )  # fmt: skip
    return page.table(caption, columns, last=int(bool(averages)))


def who(patient: Any) -> str:
    """Write a patient's name, with the word patient if the name does not have it."""
    return str(patient) if str(patient).lower().startswith("patient") else f"patient {patient}"


def _fits(models: list[dict[str, Any]]) -> Html:
    order = [model["model"] for model in models]
    columns = [
        page.names("model", [named(name, order) for name in order]),
        page.estimates("ELBO", [m.get("elbo") for m in models], [m.get("elbo_error") for m in models]),
        page.numbers("steps", [number(m.get("steps"), 0) for m in models]),
        page.texts("time", [duration(m.get("seconds")) for m in models], "number"),
        page.texts("converged", ["yes" if m.get("converged") else "no" for m in models]),
        page.texts("stopped", [m.get("stopped") or "" for m in models]),
    ]
    return page.table(
        "The fits to the training patients. ELBOs of different models compare; of different data they do not.", columns
    )


def exploring(results: dict[str, Any]) -> Html:
    """Write the section on the factors found: loadings, and a patient through time."""
    parts: list[Any] = []
    for data, found in results["factors"].items():
        parts += [tag("h3", f"{page.titled(data)}, {found['model']}"), _loadings(data, found)]
        if found.get("patient"):
            parts += _patient(found)
    words = (
        "Each column of W is a factor: which labs rise and fall with it. Factors come in no order and without a scale of their own: "
        "another run may permute or stretch them and say the same."
    )
    return page.section("factors", "The factors found", tag("p", words), *parts)


def _loadings(data: str, found: dict[str, Any]) -> Html:
    caption = f"Weights W of the labs on the factors, {data}: posterior means, pale where within two standard deviations of 0."
    alt = f"Heat map of the weights of {_list(found['labs'])} on {floats(found['W_mean']).shape[1]} factors."
    return page.figure("Loadings", caption, alt, lambda narrow: figures.loadings(found, narrow))


def _patient(found: dict[str, Any]) -> list[Html]:
    one = found["patient"]
    held, value = np.asarray(one["held"], bool), floats(one["labs"])
    inside = (value >= floats(one["low"])) & (value <= floats(one["high"])) & held
    shown = len(shown_labs(one))
    caption = (
        f"{page.titled(who(one['id']))} of the test: the {shown} labs with the most held-out measurements. The model saw the filled points, not the open "
        f"ones. Of all {held.sum()} held-out measurements of this patient, {inside.sum()} lie inside the 90 % intervals."
    )
    alt = f"Labs of {who(one['id'])} through time with fitted means, intervals and held-out points."
    path = "Through time, with 90 % intervals."
    return [
        page.figure("A patient's labs", caption, alt, lambda narrow: figures.trajectory(found, narrow)),
        page.figure(
            "The same patient's factors",
            path,
            f"Factors of {who(one['id'])} through time.",
            lambda narrow: figures.factors(found, narrow),
        ),
    ]


def truth(results: dict[str, Any]) -> Html:
    """Write the fitted mean of W x + o beside the simulated truth."""
    part = results["truth"]
    words = (
        "Simulated patients have a truth. W and x can only be found up to a permutation and a scale of the factors, so what is compared is "
        "their product and the offset, W x + o: the true mean of every lab at every visit, measured or not."
    )
    kinds = {"where the lab was measured": "measured", "where it was not": "unmeasured"}
    fitted, averages = ([part[f"{name}_{k}"] for k in kinds.values()] for name in ("error", "averages"))
    columns = [
        page.names("root mean squared error", list(kinds)),
        page.numbers("fitted mean", [significant(value, keep_zeros=True) for value in fitted]),
        page.numbers("own averages", [significant(value, keep_zeros=True) for value in averages]),
        page.numbers("of a measurement itself", [significant(part.get("sigma_l"), keep_zeros=True), ""]),
    ]
    table = page.table(f"{part['data']}, training patients.", columns)
    return page.section("truth", "Recovery of the truth", tag("p", words), verdict(verdicts.truth(part)), table)
