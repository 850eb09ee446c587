"""Patients sorted by length into strata, each padded to its own longest, and back."""

import numpy as np

Arrays = dict[str, np.ndarray]


def split(data: Arrays, num: int) -> list[Arrays]:
    """Strata of about equal numbers of patients, with labs before visits; one stratum keeps the order of the patients."""
    order = np.argsort(data["length"], kind="stable") if num > 1 else np.arange(len(data["length"]))
    return [stratum(data, index) for index in np.array_split(order, num)]


def stratum(data: Arrays, index: np.ndarray) -> Arrays:
    longest = data["length"][index].max()
    labs, observed = (np.swapaxes(data[name][index, :longest], 1, 2).copy() for name in ("labs", "observed"))
    return {"index": index, "length": data["length"][index], "labs": labs, "observed": observed}


def sizes(strata: list[Arrays], batch: int) -> list[int]:
    """How many patients of each stratum a batch takes."""
    if batch % len(strata):
        raise ValueError(f"a batch of {batch} cannot be shared among {len(strata)} strata")
    return [min(batch // len(strata), len(part["index"])) for part in strata]


def cut(array: np.ndarray, part: Arrays) -> np.ndarray:
    """The rows of one stratum, without the visits that it has not."""
    rows = array[part["index"]]
    return rows[:, : part["labs"].shape[-1]] if rows.ndim == 3 else rows


def join(rows: list[np.ndarray], strata: list[Arrays], like: np.ndarray) -> np.ndarray:
    """The rows of all strata in the order of the patients; padding as in `like`."""
    out = np.array(like)
    for values, part in zip(rows, strata, strict=True):
        if out.ndim == 3:
            out[part["index"], : values.shape[1]] = values
        else:
            out[part["index"]] = values
    return out
