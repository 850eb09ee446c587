"""Tables for people and draws for ArviZ."""

import html
from typing import Any

import numpy as np
import pandas as pd

from bbvi.posterior.arviz import dims_of, inference_data
from bbvi.posterior.values import Ragged, element_name


def summarise(posterior: Any, *, limit: int, groups: Any) -> pd.DataFrame:
    """Make a table with one row for each element, at most `limit` for a latent; what was left out is in `.attrs["note"]`."""
    latents = posterior.model.globals | posterior.model.locals
    numbers = posterior._numbers(groups) if posterior.model.locals else np.arange(0)
    shown: Any = numbers[: max(1, limit)] if len(numbers) else None
    tables = {
        "mean": posterior.mean(groups=shown), "sd": posterior.sd(groups=shown),
        "5%": posterior.quantile(0.05, groups=shown), "95%": posterior.quantile(0.95, groups=shown),
    }  # fmt: skip
    probs = posterior.probs(groups=shown)
    rows, notes = {}, []
    for name in latents:
        local = name in posterior.model.locals
        source = probs if name in probs else tables["mean"]
        names = list(_elements(source[name], shown if local else None, name, discrete=name in probs))
        total = len(names) if not local else len(names) * len(numbers) // max(1, len(shown))
        for label, index in names[:limit]:
            if name in probs:
                p = _at(probs[name], index)
                rows[label] = {"mode": int(np.argmax(p)), **{f"p({k})": float(v) for k, v in enumerate(p)}}
            else:
                rows[label] = {column: float(_at(table[name], index)) for column, table in tables.items()}
        if total > min(limit, len(names)):
            notes.append(f"{name}: {min(limit, len(names))} of {total} elements shown; use limit= or groups=")
    frame = pd.DataFrame.from_dict(rows, orient="index")
    order = [*tables, "mode", *(c for c in frame.columns if c.startswith("p("))]
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


def _elements(value: Any, groups: Any, name: str, *, discrete: bool):
    """Yield a label such as theta[3] and the index of each element."""
    parts = [((), (), value)] if groups is None else [((g,), (i,), value[i]) for i, g in enumerate(groups)]
    for group, place, one in parts:
        shape = np.shape(one)[:-1] if discrete else np.shape(one)
        for index in np.ndindex(*shape):
            yield element_name(name, (*group, *index)), (*place, *index)


def _at(value: Any, index: tuple[int, ...]) -> Any:
    if isinstance(value, Ragged):
        return np.asarray(value[index[0]])[index[1:]]
    return np.asarray(value)[index]


def to_inference_data(posterior: Any, n: int, seed: Any) -> Any:
    """Draws with dimensions named after the latents, "group" for groups and ragged axes by their own names."""
    draws = posterior.sample(n, seed)
    values: dict[str, Any] = {}
    dims: dict[str, list[str]] = {}
    for name, latent in (posterior.model.globals | posterior.model.locals).items():
        dims[name] = dims_of(name, latent, name in posterior.model.locals)
        value = draws[name]
        values[name] = np.asarray(_with_nan(value) if isinstance(value, Ragged) else value)[None]
    return inference_data({"posterior": values}, dims)


def _with_nan(value: Ragged) -> np.ndarray:
    out = np.full(value.padded.shape, np.nan)
    for group, one in enumerate(value):
        corner: Any = tuple(map(slice, np.shape(one)[1:]))
        out[(slice(None), group, *corner)] = one
    return out
