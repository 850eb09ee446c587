"""The report's setting: data and models (sections 5.1 and 5.2), settings, seeds, machine, and how to change them."""

import inspect
import textwrap
from typing import Any

from bbvi.study import page
from bbvi.study.models import MODELS
from bbvi.study.numerals import duration, floats, percent, significant
from bbvi.study.page import Html, tag

# Settings by the paper's letters: what they are, and whether the paper gives them
LETTERS = {
    "num_factors": ("K", "number of factors", False),
    "floor": ("floor", "least mean of a factor's next value", False),
    "level": ("level", "prior mean of the offsets, Gamma-Normal models", True),
    "sigma_w": ("σ_w", "sd of the weights, Gamma-Normal models", True),
    "sigma_o": ("σ_o", "sd of the offsets, Gamma-Normal models", True),
    "sigma_x": ("σ_x", "variance of a factor's step, Gamma-Normal-TS", True),
    "sigma_l": ("σ_l", "sd of a measurement, Gamma-Normal models", True),
    "alpha_0": ("α_0", "factors before the first visit", False),
    "alpha_w": ("α_w", "shape of the weights, Gamma models", True),
    "beta_w": ("β_w", "rate of the weights, Gamma models", True),
    "alpha_o": ("α_o", "shape of the offsets, Gamma models", True),
    "beta_o": ("β_o", "rate of the offsets, Gamma models", True),
    "alpha_x": ("α_x", "shape of the factors, static models", True),
    "beta_x": ("β_x", "rate of the factors, static models", True),
    "sigma_v": ("σ_v", "variance of a factor's step, Gamma-TS", False),
    "observation_variance": ("σ_o of the Gamma models", "variance of a measurement", True),
    "walk": ("σ_s", "sd of a factor's step, Log-T-TS", False),
    "degrees": ("ν", "degrees of freedom of a measurement, Log-T-TS", False),
    "sigma_noise": ("σ_n", "scale of the labs' noises, Log-T-TS", False),
}

PROCESS = {
    "Gamma-Normal-TS": ("Normal(0, σ_w)", "Normal(level, σ_o)", "GammaE(x_pv−1, σ_x); x_p0 = α_0", "Normal(W x_pv + o_p, σ_l)"),
    "Gamma-Normal": ("Normal(0, σ_w)", "Normal(level, σ_o)", "Gamma(α_x, β_x)", "Normal(W x_pv + o_p, σ_l)"),
    "Gamma-TS": ("Gamma(α_w, β_w)", "Gamma(α_o, β_o)", "GammaE(x_pv−1, σ_v); x_p1 ~ Gamma(α_x, β_x)", "GammaE(W x_pv + o_p, σ_o)"),
    "Gamma": ("Gamma(α_w, β_w)", "Gamma(α_o, β_o)", "Gamma(α_x, β_x)", "GammaE(W x_pv + o_p, σ_o)"),
    "Log-T-TS": ("Normal(0, σ_w)", "Normal(log level, σ_o)", "Normal(x_pv−1, σ_s); x_p0 = 0", "log l_pv ~ T_ν(W x_pv + o_p, τ); τ_l ~ HalfNormal(σ_n)"),
}  # fmt: skip

OPTIONS = {
    "--quick": "a few minutes, with few simulated patients",
    "--full": "the paper's size, 976 simulated patients",
    "--patients N": "how many patients to simulate",
    "--factors K": "the number of factors",
    "--seed N": "of the data, the splits and the fits",
    "--models A,B": "some of the models",
    "--paper-settings": "the paper's hyperparameters, whatever the data",
    "--out FOLDER": "where results go; a rerun continues there",
    "--data FILE": "labs of your own, a CSV file, with --patient, --time and, in long form, --lab and --value naming its columns",
}


def data(results: dict[str, Any]) -> Html:
    """Write what the patients are (section 5.1)."""
    intro = (
        "The paper studies 976 patients of a clinic for chronic kidney disease: 33,000 visits at irregular times, and at each a "
        "subset of 17 labs. Those records are private. "
    )
    parts = [
        tag("p", intro, tag("b", "So the levels of our numbers do not compare with the paper's; their order does."))
    ]
    for one in results["data"]:
        split = f"{one['num_train']:,} patients for training, {one['num_test']:,} for the test"
        known = {label: text for label, text in one["facts"].items() if label != "data" and text}
        parts += [tag("h3", page.titled(one["name"])), page.facts(known | {"split": split})]
        if one.get("lab_table"):
            count = len(one["lab_table"]["index"])
            parts.append(tag("details", tag("summary", f"The {count} labs"), frame(one["lab_table"], "lab")))
    return page.section("data", "Data", *parts)


def frame(table: dict[str, Any], of: str, caption: str = "") -> Html:
    """Write a table of numbers with names of rows and columns; columns of shares in percent."""
    values = floats(table["values"]).reshape(len(table["index"]), len(table["columns"]))
    columns = [page.names(of, table["index"])]
    for name, column in zip(table["columns"], values.T, strict=True):
        write = percent if name in ("measured", "acceptance") else significant
        columns.append(page.numbers(str(name), [write(value) for value in column]))
    return page.table(caption, columns)


def models(results: dict[str, Any]) -> Html:
    """Write the models of this run, and the code of the first (section 5.2)."""
    fitted = [m["model"] for scores in (results.get("comparison") or {}).values() for m in scores["models"]]
    chosen = list(dict.fromkeys(fitted)) or list(results["plan"].get("models") or MODELS)
    known = [name for name in chosen if name in PROCESS]
    heads = ("weights W", "offsets o_p", "factors x_pv", "labs l_pv")
    columns = [
        page.texts(maths(head), [maths(PROCESS[name][i]) for name in known], "formula") for i, head in enumerate(heads)
    ]
    words = (
        "Factors x, positive in the paper's models, sum up each visit; a lab, or its logarithm, is a weighted sum of them around the patient's own offset. In the time series "
        "a factor's mean is its value at the visit before. GammaE is the gamma distribution by mean and variance; the second argument of "
        "Normal is a standard deviation. Each model is a function of some fifteen lines; what follows is all that bbvi is told."
    )
    table = page.table("", [page.names("model", known), *columns]) if known else ""
    listings = [
        tag("details", tag("summary", f"{name} in Python"), tag("pre", tag("code", _source(name))))
        for name in chosen
        if name in MODELS
    ]
    return page.section("model", "Model", tag("p", words), table, *listings)


def _source(name: str) -> str:
    return textwrap.dedent(inspect.getsource(MODELS[name].build))


def maths(text: str) -> Html:
    """Write letters with what follows an underscore as their index.

    Examples:
        >>> maths("W x_pv")
        'W x<sub>pv</sub>'
    """
    parts = []
    for i, word in enumerate(text.split("_")):
        index = len(word) - len(word.lstrip("abcdefghijklmnopqrstuvwxyz0123456789−")) if i else 0
        before, semicolon, after = word[index:].partition(";")  # starts a new line
        parts += [tag("sub", word[:index]) if index else "", before, Html("<br>") if semicolon else "", after]
    return page.join(*parts)


def settings(results: dict[str, Any]) -> Html:
    """Write our hyperparameters beside the paper's where they differ."""
    parts = []
    for one in results["data"]:
        ours, papers = one.get("settings") or {}, one.get("paper_settings") or {}
        differ = [name for name in ours if ours[name] != papers.get(name) or not _given(name)]
        same = [LETTERS.get(name, (name,))[0] for name in ours if name not in differ]
        if not ours:
            continue
        columns = [
            page.names("", [maths(LETTERS.get(name, (name,))[0]) for name in differ]),
            page.numbers("ours", [significant(ours[name]) for name in differ]),
            page.numbers("paper", [significant(papers.get(name)) if _given(name) else "not given" for name in differ]),
            page.texts("", [LETTERS.get(name, ("", "", True))[1] for name in differ], "words"),
        ]
        parts += [tag("h3", page.titled(one["name"])), page.table("", columns)]
        if same:
            alike = page.join(*(page.join(", " if i else "", maths(letter)) for i, letter in enumerate(same)))
            parts.append(tag("p", "The same as in the paper: ", alike, ".", class_="meta"))
    if not parts:
        return Html("")
    words = "The data demand some values other than the paper's; the documentation of the study says why for each."
    return page.section("settings", "Settings", tag("p", words), *parts)


def _given(name: str) -> bool:
    return LETTERS.get(name, ("", "", True))[2]


def circumstances(results: dict[str, Any]) -> Html:
    """Write seeds, versions, machine and timings."""
    plan = {name.replace("_", " "): _plain(value) for name, value in results["plan"].items() if value is not None}
    seeds = sorted({curve["seed"] for curve in (results.get("gibbs") or {}).get("curves", [])})
    plan |= {"seeds of Figure 1": ", ".join(map(str, seeds))} if seeds else {}
    parts = [tag("h3", "Plan and seeds"), page.facts(plan), tag("h3", "Machine"), page.facts(results["machine"])]
    parts += [tag("h3", "Versions"), page.facts(results["versions"])]
    stages = results.get("stages") or []
    if stages:
        total = sum(stage["seconds"] for stage in stages)
        columns = [
            page.names("stage", [*(stage["name"] for stage in stages), "together"]),
            page.texts("time", [*(duration(stage["seconds"]) for stage in stages), duration(total)], "number"),
        ]
        parts += [tag("h3", "Timings"), page.table("", columns, last=1)]
    return page.section("run", "This run", *parts)


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def options() -> Html:
    """Write how to run the study with other options."""
    rows = [tag("code", option) for option in OPTIONS]
    table = page.table("", [page.names("option", rows), page.texts("", list(OPTIONS.values()), "words")])
    words = (
        "All of the above comes from one command, ",
        tag("code", "bbvi study"),
        ". A rerun continues from the finished stages.",
    )
    return page.section("change", "How to change it", tag("p", *words), table)
