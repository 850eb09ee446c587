"""Section 5's claims, each with what was expected, what was found, and whether it holds."""

import math
from typing import Any, NamedTuple

from bbvi.study.numerals import duration, number, percent, significant, with_error


class Verdict(NamedTuple):
    """A claim of the paper and what the numbers say of it; `holds` is None where no yes or no was computed.

    `each` lists what was found case by case.
    """

    title: str
    expected: str
    found: str
    holds: bool | None
    each: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not hold", None: ""}[self.holds]

    def sentence(self) -> str:
        """Write the verdict in one line of plain words."""
        found = "; ".join([self.found, *self.each])
        return f"Expected: {self.expected}. Found: {found}" + (f": {self.word}." if self.word else ".")


def summary(results: dict[str, Any]) -> list[Verdict]:
    """Return the main findings of a run, in the paper's order, one for each claim that was tested."""
    return [
        *([gibbs(results["gibbs"])] if has_reach(results) else []),
        *(variance(results["variance"]) if results.get("variance") else []),
        *claims(results.get("comparison") or {}),
    ]


def has_reach(results: dict[str, Any]) -> bool:
    """Return whether Gibbs and BBVI were compared to the end."""
    return bool((results.get("gibbs") or {}).get("reach"))


def gibbs(section: dict[str, Any]) -> Verdict:
    """Judge Figure 1: BBVI is as high as Gibbs ends in a tenth of the time, and ends at least as high."""
    reach = section["reach"]
    when, share = reach.get("bbvi_seconds_to_gibbs_end"), reach.get("share_of_budget")
    ends = (
        f"BBVI ends at {with_error(reach['bbvi_end'], reach.get('bbvi_end_error'))} and Gibbs at "
        f"{with_error(reach['gibbs_end'], reach.get('gibbs_end_error'))} per held-out measurement"
    )
    if when is None:
        found = f"BBVI never got where Gibbs ends within {duration(section.get('budget'))}; {ends}"
    else:
        found = f"BBVI got where Gibbs ends after {duration(when)}, {percent(share)} of the time; {ends}"
    return Verdict(
        "BBVI predicts as well as Gibbs at its end, in a tenth of the time",
        "BBVI reaches the predictive likelihood that Gibbs ends with in at most a tenth of the time, and ends at least as high",
        f"{found}{_gap(reach)}",
        bool(reach["holds"]),
    )


def _gap(reach: dict[str, Any]) -> str:
    """Return the difference of the ends; the errors, of the same patients, are added as if independent."""
    errors = [reach[name] for name in ("bbvi_end_error", "gibbs_end_error") if reach.get(name) is not None]
    if len(errors) < 2:
        return ""
    difference = reach["bbvi_end"] - reach["gibbs_end"]
    return f" (difference {with_error(difference, math.hypot(*errors))})"


def variance(section: dict[str, Any]) -> list[Verdict]:
    """Judge Figure 2: the two reductions, each by its median ratio of variances over the iterations."""
    ratios, holds = section.get("ratios") or {}, section.get("holds") or {}
    rows = [
        ("Eq. 3 / Eq. 6", "two orders of magnitude", "Rao-Blackwellization lowers the variance by two orders of magnitude",
         "Rao-Blackwellization lowers the variance of the gradient at least 100-fold"),
        ("Eq. 6 / Eq. 10", "control variate lowers further", "The control variate lowers it further",
         "the control variate lowers the variance further"),
    ]  # fmt: skip
    return [
        Verdict(
            title,
            expected,
            f"a variance {_fold(ratios.get(ratio))} in the median over the iterations",
            _yes(holds, key),
        )
        for ratio, key, title, expected in rows
        if ratio in ratios or key in holds
    ]


def _yes(holds: dict[str, Any], key: str) -> bool | None:
    return None if holds.get(key) is None else bool(holds[key])


def _fold(ratio: float | None) -> str:
    if ratio is None or not math.isfinite(ratio) or ratio <= 0:
        return f"ratio of {number(ratio)}"
    return f"{significant(ratio)} times lower" if ratio >= 1 else f"{significant(1 / ratio)} times higher"


def claims(comparison: dict[str, Any]) -> list[Verdict]:
    """Judge Table 1: each claim on pairs of models, over all data sets; it holds if every pair agrees."""
    groups: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for data, scores in comparison.items():
        for pair in scores.get("pairs") or []:
            groups.setdefault(pair["expected"], []).append((data, pair))
    return [_claim(expected, pairs) for expected, pairs in groups.items()]


def _claim(expected: str, pairs: list[tuple[str, dict[str, Any]]]) -> Verdict:
    holds = [bool(pair["holds"]) for _, pair in pairs]
    count = f"in {sum(holds) or 'none'} of {len(holds)} pairs"
    if len(holds) == 1:
        count = "in the one pair tested" if holds[0] else "not in the one pair tested"
    each = tuple(f"{data}: {pair['better']} over {pair['worse']} by {difference(pair)}" for data, pair in pairs)
    found = f"{count} (differences in nats per held-out measurement)"
    return Verdict(expected[:1].upper() + expected[1:], expected, found, all(holds), each)


def difference(one: dict[str, Any]) -> str:
    """Say how much better, with its error, and whether that is within noise."""
    value, error = one["difference"], one.get("error")
    text = ("+" if value > 0 else "") + with_error(value, error)
    near = error is not None and math.isfinite(value) and abs(value) < 2 * error
    return f"{text}, within two standard errors of 0" if near else text


def truth(section: dict[str, Any]) -> Verdict:
    """Judge the fitted mean of W x + o against the simulated truth, beside each patient's own averages."""
    fitted, averages = section["error_measured"], section["averages_measured"]
    away, away_averages = section["error_unmeasured"], section["averages_unmeasured"]
    found = (
        f"root mean squared errors of {significant(fitted)} against {significant(averages)} where a lab was measured and "
        f"{significant(away)} against {significant(away_averages)} where it was not (noise of a measurement: "
        f"{significant(section.get('sigma_l'))})"
    )
    expected = "the fitted mean of W x + o is nearer to the truth than a patient's own averages"
    return Verdict("The truth is recovered", expected, found, bool(fitted < averages and away < away_averages))
