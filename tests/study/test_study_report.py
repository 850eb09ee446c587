"""The study's report says what the numbers say, whatever is missing, odd or not finite. All results here are made up."""

import copy
import csv
import html
import json
import re
import shutil
import subprocess
from dataclasses import asdict
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from bbvi.study import figures, page, report, report_setting, tables, verdicts
from bbvi.study.command import study
from bbvi.study.models import MODELS
from bbvi.study.numerals import duration, number, with_error
from bbvi.study.settings import Settings

ALWAYS = {"plan", "versions", "machine", "data"}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)


def made_up(seed=0, lab="<Na>"):
    """Results with the shape of a run's, from a seeded generator: test data, not findings."""
    rng = np.random.default_rng(seed)
    labs = [lab, *(f"lab {i + 2}" for i in range(6))]
    return {
        "plan": {"size": "quick", "seed": 0, "models": tuple(MODELS), "paper_settings": False, "data": None},
        "versions": {"bbvi": "0.1.0", "jax": "0.6.0"},
        "machine": {"cpu": "A & B", "cores": 2, "memory": "8 GB", "python": "3.11", "os": "Linux"},
        "stages": [{"name": "data", "seconds": 0.8}, {"name": "gibbs", "seconds": 61.0}],
        "date": "2026-01-01 00:00",
        "command": "bbvi study --quick",
        "data": [data_set(name, labs) for name in ("simulated cohort", "Mayo PBC")],
        "comparison": {name: scores(rng) for name in ("simulated cohort", "Mayo PBC")},
        "gibbs": sampling(rng),
        "variance": variances(rng),
        "progress": runs(rng),
        "truth": {"data": "simulated cohort", "error_measured": 0.14, "error_unmeasured": 0.21, "averages_measured": 0.55,
                  "averages_unmeasured": 0.61, "sigma_l": 0.3},
        "factors": {name: found(rng, labs) for name in ("simulated cohort", "Mayo PBC")},
    }  # fmt: skip


def data_set(name, labs):
    table = {
        "columns": ["measured", "5%", "median", "95%"],
        "index": labs,
        "values": [[0.39, 11.0, 15.2, 19.5]] * len(labs),
    }
    return {
        "name": name, "facts": {"data": name, "patients": "60", "visits": "2,031", "source": "made up"}, "lab_table": table,
        "settings": asdict(Settings.simulated()), "paper_settings": asdict(Settings.paper()), "num_train": 49, "num_test": 11,
    }  # fmt: skip


def scores(rng):
    models = []
    for i, (name, entry) in enumerate(MODELS.items()):
        at = np.geomspace(0.1, 30, 80)
        elbo = -2e4 - 5e5 * np.exp(-at) - 3000 * i
        models.append({
            "model": name, "paper": entry.paper, "per_observation": -0.812 - 0.31 * i, "per_observation_error": 0.021,
            "per_patient": -81.2 - 31 * i, "per_patient_error": 4.5, "mse": 0.13 + 0.05 * i, "mse_error": 0.008,
            "elbo": -20011.0 - 3000 * i, "elbo_error": 12.0, "steps": 1200, "seconds": 31.0, "converged": i < 3, "stopped": "flat",
            "history": {"step": np.arange(80), "seconds": at, "elbo": elbo + rng.normal(0, 200, 80)},
        })  # fmt: skip
    averages = {"per_observation": -1.02, "per_observation_error": 0.03, "per_patient": -104.0, "per_patient_error": 5.0,
                "mse": 0.4, "mse_error": 0.02}  # fmt: skip
    pairs = [("Gamma-Normal-TS", "Gamma-Normal", "time-series models beat their static twins", 0.31, 0.02),
             ("Gamma-TS", "Gamma", "time-series models beat their static twins", 0.01, 0.02),
             ("Gamma-Normal", "Gamma", "Normal-weight models beat Gamma-weight ones", 0.62, 0.03)]  # fmt: skip
    keys = ("better", "worse", "expected", "difference", "error")
    return {
        "models": models,
        "averages": averages,
        "pairs": [dict(zip(keys, p, strict=True)) | {"holds": p[3] > 0} for p in pairs],
    }


def sampling(rng):
    curves = []
    for method, rate, end in (
        ("BBVI", 1.2, -0.80),
        ("Metropolis-Hastings within Gibbs", 0.12, -0.88),
        ("Metropolis-Hastings", 0.005, -60),
    ):
        for seed in range(3):
            at = np.geomspace(0.3, 60, 40) * rng.uniform(0.97, 1)
            score = end - 25 * np.exp(-rate * at) + rng.normal(0, 0.006, 40)
            curves.append({"method": method, "seed": seed, "seconds": at, "per_observation": score,
                           "error": np.full(40, 0.02), "mse": 0.1 - 0.3 * (score + 0.7)})  # fmt: skip
    mixing = {
        "columns": ["R-hat", "ESS", "acceptance"],
        "index": ["W", "o", "x"],
        "values": [[1.8, 12.0, 0.31], [1.1, 80.0, 0.4], [1.2, 60.0, 0.35]],
    }
    return {
        "data": "simulated cohort", "budget": 60.0, "num_patients": 60, "curves": curves,
        "mixing": {"Metropolis-Hastings within Gibbs": mixing}, "acceptance": {"Metropolis-Hastings": 0.002},
        "reach": {"gibbs_end": -0.88, "gibbs_end_error": 0.02, "bbvi_end": -0.80, "bbvi_end_error": 0.02,
                  "bbvi_seconds_to_gibbs_end": 4.8, "share_of_budget": 0.08, "holds": True},
        "clock": "The clock runs from the first step; compilation is not on it.",
    }  # fmt: skip


def variances(rng):
    levels = {"Eq. 3": 1e9, "Eq. 6": 1e5, "Eq. 10": 6e3, "leave-one-out": 8e3, "cross-fitted": 7e3}
    at = np.arange(0, 200, 10)
    noisy = {name: level * np.exp(-at / 90 + rng.normal(0, 0.25, 20)) for name, level in levels.items()}
    return {
        "data": "simulated cohort", "patient": "patient 7", "component": "the mean of the first factor", "iterations": at,
        "estimators": noisy, "draws": 100, "repeats": 200, "ratios": {"Eq. 3 / Eq. 6": 9870.0, "Eq. 6 / Eq. 10": 16.3},
        "holds": {"two orders of magnitude": True, "control variate lowers further": True},
    }  # fmt: skip


def runs(rng):
    at = np.geomspace(0.2, 60, 60)
    speeds = {
        "Algorithm 1 (Eq. 3)": 1e-4,
        "Rao-Blackwellized (Eq. 6)": 0.15,
        "Algorithm 2 (Eq. 10)": 0.5,
        "leave-one-out": 0.55,
    }
    listed = [{"estimator": name, "seconds": at, "elbo": -2e4 - 1e6 * np.exp(-speed * at) - 300 * rng.random(60), "steps": 900}
              for name, speed in speeds.items()]  # fmt: skip
    return {
        "data": "simulated cohort",
        "runs": listed,
        "verdict": "Algorithm 1 made 0.6 % of the progress of Algorithm 2.",
    }


def found(rng, labs):
    visits, count, num = 30, 3, len(labs)
    weights, path = rng.normal(0, 1, (num, count)), np.exp(np.cumsum(rng.normal(0, 0.2, (visits, count)), 0))
    mean = path @ weights.T + 15
    seen = rng.random((visits, num)) < 0.5
    held = seen & (rng.random((visits, num)) < 0.25)
    patient = {
        "id": "patient 12", "times": np.cumsum(rng.lognormal(3.4, 1, visits)), "labs": np.where(seen, mean + rng.normal(0, 0.3, mean.shape), np.nan),
        "kept": seen & ~held, "held": held, "mean": mean + rng.normal(0, 0.05, mean.shape), "low": mean - 0.55, "high": mean + 0.55,
        "truth": mean, "factor_mean": path, "factor_low": 0.85 * path, "factor_high": 1.15 * path,
    }  # fmt: skip
    return {
        "model": "Gamma-Normal-TS",
        "labs": labs,
        "W_mean": weights,
        "W_sd": np.full(weights.shape, 0.1),
        "patient": patient,
    }


def as_json(tree):
    """What a JSON file gives back."""
    return json.loads(json.dumps(tree, default=lambda value: value.tolist()))


class Balanced(HTMLParser):
    """Fails at an element that is closed wrongly or not at all; collects headings and addresses."""

    VOID = frozenset({"meta", "link", "img", "source", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.addresses, self.ids = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.addresses += [(tag, name, value) for name, value in attrs if name in ("src", "href", "srcset")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


@pytest.fixture(scope="module")
def results():
    return made_up()


@pytest.fixture
def undrawn(monkeypatch):
    """Pages without their drawings, which take most of the time."""
    monkeypatch.setattr(page, "figure", lambda label, caption, alt, draw: page.tag("figure", label, caption, alt))


@pytest.fixture(scope="module")
def text(results):
    return report.render(results)


def test_the_page_is_well_formed_and_loads_nothing_from_a_network(text):
    parsed = Balanced(text)
    assert len(set(parsed.ids)) == len(parsed.ids)
    for tag, name, value in parsed.addresses:
        assert value.startswith(("data:", "#")) or (tag, name, value) == ("a", "href", report.PAPER)
    assert "@import" not in text and "url(" not in text and "<script" not in text
    assert {value[1:] for tag, _, value in parsed.addresses if value.startswith("#")} <= set(parsed.ids)


def test_sections_come_in_the_papers_order(text):
    headings = [h for h in Balanced(text).headings if h.startswith(("Data", "Model", "Figure", "Table"))]
    assert [h.split(":")[0] for h in headings] == ["Data", "Model", "Figure 1", "Figure 2", "Table 1"]


def test_every_model_and_its_numbers_are_there(results, text):
    for scores in results["comparison"].values():
        for model in scores["models"]:
            assert f"{model['model']}</th>" in text
            assert number(model["per_observation"], 3) in text and number(model["mse"], 4) in text
    assert "−32.7" in text and "−174" in text and "order" in text
    plain = html.unescape(re.sub(r"<[^>]+>", "", text))
    for one in verdicts.summary(results):
        assert one.title in plain and one.found in plain


def test_names_are_escaped_everywhere(text):
    assert "&lt;Na&gt;" in text and "<Na>" not in text and "A &amp; B" in text


def test_the_five_findings_are_summed_up(results, text):
    assert len(verdicts.summary(results)) == 5
    assert text.count('class="mark"') == 5


@pytest.mark.parametrize("missing", sorted(made_up().keys() - ALWAYS))
def test_what_was_not_run_leaves_no_heading(results, missing, undrawn):
    text = report.render({key: value for key, value in results.items() if key != missing})
    parsed = Balanced(text)
    assert f'id="{missing}"' not in text and f'href="#{missing}"' not in text
    assert all(heading.strip() for heading in parsed.headings)


def test_a_run_of_the_data_alone_makes_a_page(results):
    text = report.render({key: value for key, value in results.items() if key in ALWAYS})
    assert "Figure 1</b>" not in text and "claims of the paper" not in text
    Balanced(text)


def test_results_read_from_json_make_the_same_page(results, undrawn):
    assert report.render(as_json(results)) == report.render(results)


def test_what_does_not_hold_is_said(results, undrawn):
    worse = copy.deepcopy(results)
    worse["gibbs"]["reach"] |= {
        "holds": False,
        "bbvi_seconds_to_gibbs_end": None,
        "share_of_budget": None,
        "bbvi_end": -0.95,
    }
    worse["variance"] |= {
        "ratios": {"Eq. 3 / Eq. 6": 40.0, "Eq. 6 / Eq. 10": 0.5},
        "holds": dict.fromkeys(worse["variance"]["holds"], False),
    }
    worse["comparison"]["Mayo PBC"]["pairs"][0] |= {"difference": -0.2, "holds": False}
    one, rao, control, time, normal = verdicts.summary(worse)
    assert not (one.holds or rao.holds or control.holds or time.holds) and normal.holds
    assert "never got where Gibbs ends" in one.found and "difference −0.070 ± 0.028" in one.found
    assert "40 times lower" in rao.found and "2 times higher" in control.found
    assert "in 3 of 4 pairs" in time.found and "−0.200 ± 0.020" in time.each[2]
    text = report.render(worse)
    assert text.count("does not hold</span>") == 4 and text.count("Does not hold.") == 4
    assert one.sentence().endswith(": does not hold.")


def test_a_difference_within_noise_is_called_so(results):
    near = results["comparison"]["Mayo PBC"]["pairs"][1]
    assert verdicts.difference(near) == "+0.010 ± 0.020, within two standard errors of 0"


def test_a_fit_worse_than_averages_does_not_recover_the_truth(results):
    assert verdicts.truth(results["truth"]).holds
    assert not verdicts.truth(results["truth"] | {"error_unmeasured": 0.7}).holds


def test_numbers_that_are_none_or_not_finite_are_shown_as_such(results, tmp_path):
    odd = copy.deepcopy(results)
    models = odd["comparison"]["simulated cohort"]["models"]
    models[2] |= {
        "per_observation": -np.inf,
        "per_observation_error": np.nan,
        "mse": None,
        "mse_error": None,
        "paper": None,
    }
    models[3]["history"]["elbo"][:] = np.nan
    odd["comparison"]["simulated cohort"]["averages"]["per_observation"] = None
    odd["gibbs"]["curves"][0]["per_observation"][3] = np.nan
    odd["gibbs"]["curves"][-1]["per_observation"][:] = -np.inf
    odd["gibbs"]["reach"] |= {"gibbs_end": np.nan, "bbvi_end_error": None}
    odd["variance"]["estimators"]["Eq. 3"][:] = np.inf
    odd["variance"]["estimators"]["Eq. 10"][4] = 0
    odd["variance"]["ratios"]["Eq. 3 / Eq. 6"] = np.inf
    odd["progress"]["runs"][0]["elbo"][:] = -np.inf
    odd["factors"]["Mayo PBC"]["patient"] |= {"truth": None}
    text = report.render(odd)
    Balanced(text)
    assert "−∞" in text and "± NaN" in text and ">None" not in text and "nan" not in re.sub(r"base64,\S+", "", text)
    figures.save_all(odd, tmp_path)
    tables.print_results(odd, Console(quiet=True))


def test_figures_are_svg_the_same_each_time_and_saved_as_files(results, tmp_path):
    one = figures.gibbs(results["gibbs"], narrow=True)
    assert ElementTree.fromstring(one).tag.endswith("svg") and "<text" not in one
    assert figures.gibbs(results["gibbs"], narrow=True) == one
    paths = figures.save_all(results, tmp_path / "figures")
    assert len(paths) == 2 * len(figures.drawings(results)) and all(path.stat().st_size > 1000 for path in paths)


def test_the_terminal_shows_models_and_verdicts(results):
    console = Console(record=True, width=160, file=open("/dev/null", "w"))  # noqa: SIM115
    tables.print_results(results, console)
    text = console.export_text()
    for name in MODELS:
        assert name in text
    assert with_error(-0.812, 0.021) in text and "holds" in text and duration(60.0) in text


def test_csv_files_hold_the_numbers_as_they_are(results, tmp_path):
    paths = tables.write_csv(results, tmp_path)
    assert [path.name for path in paths] == ["comparison.csv", "curves.csv", "variance.csv", "progress.csv"]
    rows = {path.stem: list(csv.DictReader(open(path, newline=""))) for path in paths}  # noqa: SIM115
    assert len(rows["comparison"]) == 2 * (len(MODELS) + 1) and rows["comparison"][0]["per_observation"] == "-0.812"
    assert (
        len(rows["curves"]) == 9 * 40
        and float(rows["curves"][0]["seconds"]) == results["gibbs"]["curves"][0]["seconds"][0]
    )
    assert len(rows["variance"]) == 5 * 20 and len(rows["progress"]) == 4 * 60
    assert tables.write_csv({"plan": {}}, tmp_path / "none") == []


def test_the_options_of_the_page_are_those_of_the_command():
    ours = {option.split()[0] for option in report_setting.OPTIONS} | set(
        re.findall(r"--\w+", report_setting.OPTIONS["--data FILE"])
    )
    assert ours == {option.opts[0] for option in study.params}


def test_every_setting_has_a_name_on_the_page():
    assert report_setting.LETTERS.keys() == asdict(Settings()).keys()
    assert report_setting.PROCESS.keys() == MODELS.keys()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_chromium_shows_the_page_without_errors(results, tmp_path):
    path = report.write(results, tmp_path / "deep" / "report.html")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    out = subprocess.run([BROWSER, *options, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0 and "</html>" in out.stdout and "Gamma-Normal-TS" in out.stdout
    assert "CONSOLE" not in out.stderr
