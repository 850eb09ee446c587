"""Finished stages of a study, kept in a folder: an interrupted run goes on where it stopped."""

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import bbvi

_ARRAY = "__array__"
Report = Callable[[float], None]


def uninterrupted(posterior: bbvi.Posterior) -> bbvi.Posterior:
    """The same posterior; a fit that Ctrl-C stopped, which says so and returns, must not count as a finished stage."""
    if posterior.outcome is bbvi.Outcome.INTERRUPTED:
        raise KeyboardInterrupt
    return posterior


class Stages:
    """A folder of results, each of a stage that was finished under the plan with this fingerprint.

    A result is made of dicts with string keys, lists, strings, numbers, booleans, None and arrays. A stage is two files,
    `name.npz` with the arrays and then `name.json` with the rest; each is written whole or not at all, and the JSON,
    which tells that the stage is finished, holds the fingerprint of the plan and the sha256 of the arrays. A stage of
    another plan, or with a file that is damaged, is run again.

    Examples:
        >>> import tempfile
        >>> stages = Stages(tempfile.mkdtemp(), fingerprint({"seed": 0}))
        >>> stages.run("squares", lambda: {"values": np.arange(3) ** 2})
        {'values': array([0, 1, 4])}
        >>> stages.run("squares", lambda: print("not run again"))
        {'values': array([0, 1, 4])}
    """

    def __init__(self, folder: str | os.PathLike[str], plan_fingerprint: str):
        self.folder, self.fingerprint = Path(folder), plan_fingerprint
        self.folder.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, function: Callable[[], Any]) -> Any:
        """Return the stored result of a stage that was finished, or else call the function and store its result."""
        stored = self._load(name)
        if stored is not None:
            return stored["result"]
        result = function()
        self._store(name, result)
        # what is read back, so that a run in one go and one with an interruption see the same
        loaded = self._load(name)
        assert loaded is not None
        return loaded["result"]

    def finished(self, name: str) -> bool:
        """Return whether a stage was finished under this plan."""
        return self._load(name) is not None

    def _paths(self, name: str) -> tuple[Path, Path]:
        if not name or name.startswith(".") or set(name) & set('/\\:*?"<>|\0'):
            raise ValueError(
                f"the name of a stage is the name of a file, without slashes or a leading dot; got {name!r}"
            )
        return self.folder / f"{name}.json", self.folder / f"{name}.npz"

    def _store(self, name: str, result: Any) -> None:
        paths = self._paths(name)
        arrays: dict[str, np.ndarray] = {}
        body = _without_arrays(name, result, arrays, "")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, allow_pickle=False, **{f"a{i}": array for i, array in enumerate(arrays.values())})
        content = buffer.getvalue()
        record = {"plan": self.fingerprint, "arrays": hashlib.sha256(content).hexdigest(), "result": body}
        _write(paths[1], content)
        _write(paths[0], json.dumps(record, indent=1).encode())

    def _load(self, name: str) -> dict[str, Any] | None:
        """Load the record of a finished stage, None if there is none that can be used."""
        document, archive = self._paths(name)
        try:
            record = json.loads(document.read_bytes())
            content = archive.read_bytes()
            if record["plan"] != self.fingerprint or record["arrays"] != hashlib.sha256(content).hexdigest():
                return None
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return {"result": _with_arrays(record["result"], dict(arrays))}
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error):
            return None


def fingerprint(plan: Any) -> str:
    """Return the sha256 of a plan that JSON can hold: another plan, another fingerprint.

    Examples:
        >>> fingerprint({"seed": 0, "models": ["Gamma"]}) == fingerprint({"models": ["Gamma"], "seed": 0})
        True
        >>> fingerprint({"seed": 0}) == fingerprint({"seed": 1})
        False
    """
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _without_arrays(stage: str, tree: Any, arrays: dict[str, np.ndarray], path: str) -> Any:
    """Replace each array of a tree by a number, and put the array into `arrays`."""
    if isinstance(tree, dict):
        if not all(isinstance(key, str) and key != _ARRAY for key in tree):
            raise TypeError(f"stage {stage!r}: keys of a result are strings, got {list(tree)} at {path or 'the top'}")
        return {key: _without_arrays(stage, value, arrays, f"{path}.{key}") for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_arrays(stage, value, arrays, f"{path}[{i}]") for i, value in enumerate(tree)]
    if tree is None or isinstance(tree, (str, bool, int)):
        return tree
    if isinstance(tree, (float, np.floating, np.integer, np.bool_)):
        return np.asarray(tree).item()  # subclasses of float too: a number with an error stays a number
    array = np.asarray(tree)
    if array.dtype == object:
        raise TypeError(f"stage {stage!r}: {type(tree).__name__} at result{path} cannot be stored; make it an array")
    arrays[path] = array
    return {_ARRAY: len(arrays) - 1}


def _with_arrays(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, dict):
        if _ARRAY in tree:
            return arrays[f"a{tree[_ARRAY]}"]
        return {key: _with_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_arrays(value, arrays) for value in tree]
    return tree


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.writing")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
