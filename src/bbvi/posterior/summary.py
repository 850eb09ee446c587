"""Tables for people."""

import html
from typing import Any

import numpy as np
import pandas as pd

from bbvi.posterior.values import element_name

_MOST_VALUES = 10  # of a discrete latent, whose probabilities have a column each


def summarise(posterior: Any, *, limit: int, groups: Any) -> pd.DataFrame:
    """Make a table with one row for each element, at most `limit` for a latent; what was left out is in `.attrs["note"]`."""
    model = posterior.model
    numbers = posterior._numbers(groups) if model.locals else np.arange(0)
    shown: Any = numbers[: max(1, limit)] if len(numbers) else None
    tables = {
        "mean": posterior.mean(groups=shown), "sd": posterior.sd(groups=shown),
        "5%": posterior.quantile(0.05, groups=shown), "95%": posterior.quantile(0.95, groups=shown),
    }  # fmt: skip
    probs = posterior.probs(groups=shown)
    rows: dict[str, Any] = {}
    notes = []
    for name in model.globals | model.locals:
        columns = [probs[name]] if name in probs else [table[name] for table in tables.values()]
        found = _elements(name, columns, shown if name in model.locals else None, last=int(name in probs))
        for label, cells in found[:limit]:
            if name in probs:
                mode, few = int(np.argmax(cells)), len(cells[0]) <= _MOST_VALUES
                shares = (
                    {f"p({k})": float(p) for k, p in enumerate(cells[0])} if few else {"p(mode)": float(cells[0][mode])}
                )
                rows[label] = {"mode": mode, **shares}
            else:
                rows[label] = dict(zip(tables, map(float, cells), strict=True))
        if name in probs and found and (num := len(found[0][1][0])) > _MOST_VALUES:
            notes.append(f"{name}: posterior.probs() has the probabilities of all {num} values")
        total = len(found) * len(numbers) // max(1, len(shown)) if name in model.locals else len(found)
        if total > len(found[:limit]):
            notes.append(f"{name}: {len(found[:limit])} of {total} elements shown; use limit= or groups=")
    frame = pd.DataFrame.from_dict(rows, orient="index")
    order = [*tables, "mode", "p(mode)", *(c for c in frame.columns if c.startswith("p(") and c != "p(mode)")]
    frame = frame[[c for c in order if c in frame.columns]]
    if "mode" in frame:
        frame["mode"] = frame["mode"].astype("Int64")
    summary = _Summary(frame)
    summary.attrs |= {"verdict": posterior.verdict, "note": "; ".join(notes)}
    return summary


class _Summary(pd.DataFrame):
    """A DataFrame that prints the verdict above itself and its note below."""

    @property
    def _constructor(self):
        return pd.DataFrame

    def _as_text(self) -> pd.DataFrame:
        def text(value: Any) -> str:
            if pd.isna(value):
                return ""
            return f"{value:.4g}" if isinstance(value, float) else str(value)

        return pd.DataFrame(self).astype(object).map(text)

    def __repr__(self) -> str:
        text = f"{self.attrs['verdict']}\n{self._as_text().to_string()}"
        return text + (f"\n({self.attrs['note']})" if self.attrs.get("note") else "")

    def _repr_html_(self) -> str:
        verdict, note = html.escape(self.attrs["verdict"]), self.attrs.get("note")
        return f"<p>{verdict}</p>{self._as_text().to_html()}" + (f"<p>{note}</p>" if note else "")


def _elements(name: str, columns: list[Any], groups: Any, last: int) -> list[tuple[str, list[Any]]]:
    """List each element with a label such as theta[3] and its entries in the columns; these may have last axes of their own."""
    parts = [((), columns)] if groups is None else [((g,), [x[i] for x in columns]) for i, g in enumerate(groups)]
    return [
        (element_name(name, (*group, *index)), [np.asarray(x)[index] for x in own])
        for group, own in parts
        for index in np.ndindex(np.shape(own[0])[: np.ndim(own[0]) - last])
    ]
