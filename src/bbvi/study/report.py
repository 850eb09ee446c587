"""Section 5 as a page: the report of a run of the study, one HTML file that needs nothing else."""

import os
from pathlib import Path
from typing import Any

from bbvi.study import page, report_results, report_setting, verdicts
from bbvi.study.page import Html, tag

PAPER = "https://arxiv.org/abs/1401.0118"

# Sections in the paper's order, each with what it needs of the results and its name in the contents
SECTIONS = [
    ("data", "data", "Data", report_setting.data),
    ("model", "data", "Model", report_setting.models),
    ("gibbs", "gibbs", "Figure 1", report_results.gibbs),
    ("variance", "variance", "Figure 2", report_results.variance),
    ("progress", "progress", "Convergence", report_results.progress),
    ("comparison", "comparison", "Table 1", report_results.comparison),
    ("factors", "factors", "Factors", report_results.exploring),
    ("truth", "truth", "Truth", report_results.truth),
    ("settings", "data", "Settings", report_setting.settings),
    ("run", "plan", "This run", report_setting.circumstances),
    ("change", "plan", "How to change it", lambda results: report_setting.options()),
]


def write(results: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the report of these results; sections that were not run are left out."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(results), encoding="utf-8")
    return path


def render(results: dict[str, Any]) -> str:
    """Write the report as HTML."""
    made = {(key, name): make(results) for key, needs, name, make in SECTIONS if results.get(needs)}
    made = {label: content for label, content in made.items() if content}
    contents = tag("nav", *(tag("a", name, href=f"#{key}") for key, name in made), **{"aria-label": "Contents"})
    title = "Black Box Variational Inference: The empirical study, repeated"
    return page.document(title, header(results, title), summary(results), contents, *made.values(), footer(results))


def header(results: dict[str, Any], title: str) -> Html:
    """Write what this report is, and of which run."""
    lead = (
        "Section 5 of ", tag("a", "Ranganath, Gerrish and Blei (2014)", href=PAPER), ", repeated by one command on data that anyone can have: "
        "the same models, the same figures, the same table.",
    )  # fmt: skip
    kicker, heading = title.split(": ")
    run: list[Any] = [tag("code", results["command"])] if results.get("command") else []
    run += [f" on {results['date']}"] if results.get("date") else []
    return tag(
        "header",
        tag("p", kicker, class_="kicker"),
        tag("h1", heading),
        tag("p", *lead, class_="lead"),
        tag("p", *run, class_="meta") if run else "",
    )


def summary(results: dict[str, Any]) -> Html:
    """Write the main findings, each with a tick or a cross."""
    found = verdicts.summary(results)
    if not found:
        return Html("")
    marks = {True: "✓", False: "✗", None: "·"}
    items = []
    for one in found:
        mark = tag("span", marks[one.holds], class_="mark", **{"aria-hidden": "true"})
        title = (tag("b", one.title), " ", tag("span", one.word, class_="badge"))
        words = tag("div", *title, tag("p", f"Found: {one.found}."), report_results.cases(one))
        items.append(tag("li", mark, words, class_=report_results.kind(one)))
    held = sum(one.holds is True for one in found)
    heading = tag("h2", f"Of {len(found)} claims of the paper, {held} hold{'s' if held == 1 else ''} here")
    return tag("section", heading, tag("ol", *items), class_="summary")


def footer(results: dict[str, Any]) -> Html:
    """Write which program made the page, and what its errors are."""
    words = f"Written by bbvi {results['versions'].get('bbvi', '')}. A ± is one standard error; nats are natural logarithms."
    return tag("footer", tag("p", words, class_="meta"))
