"""Checkpoints: the loop's whole state in a file, so that a run can go on where it stopped, bit by bit."""

import contextlib
import dataclasses
import itertools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.fitting.state import State
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.ratios import Estimate
from bbvi.posterior.storage import check_same_model, describe, digest, flatten, read, unflatten, write

try:
    import fcntl
except ImportError:  # where there are no such locks
    fcntl = None  # type: ignore[assignment]

History = list[dict[str, np.ndarray]]
Restarts = tuple[Estimate, ...]


def fingerprint(settings: dict[str, Any], **arrays: Any) -> dict[str, str]:
    """Write down what two calls must share to be one run: settings as text, arrays by a checksum."""
    return {name: _text(value) for name, value in settings.items()} | {
        name: f"checksum {digest(map(np.asarray, filter(_is_number, jax.tree.leaves(tree))))[:12]}"
        for name, tree in arrays.items()
    }


def _text(value: Any) -> str:
    # every field, where equinox leaves out defaults: spelt out or not, they are the same setting
    if isinstance(value, type):
        return value.__name__
    if dataclasses.is_dataclass(value):
        fields = (f"{field.name}={_text(getattr(value, field.name))}" for field in dataclasses.fields(value))
        return f"{type(value).__name__}({', '.join(fields)})"
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, list) else repr(value)


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray, jax.Array))


class Checkpoint(NamedTuple):
    """The file of one run: where it is, how often it is written, and by what the run is known."""

    path: Any
    seconds: float
    model: Any
    settings: dict[str, str]

    def save(
        self, state: State, history: History, estimators: dict[str, str], outcome: Outcome, restarts: Restarts
    ) -> None:
        """Write the state and the estimators in use; the file at `path` is always a whole one."""
        if jax.process_index():
            return  # the first process writes
        leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        names = history[0].keys() if history else ()
        columns = {name: np.concatenate([record[name] for record in history]) for name in names}
        header = {
            "model": describe(self.model), "settings": self.settings, "estimators": estimators,
            "outcome": outcome.value, "restarts": [(float(one), one.standard_error) for one in restarts],
        }  # fmt: skip
        try:
            write(self.path, "checkpoint", header, flatten({**leaves, "history": columns}))
        except OSError as error:
            warnings.warn(
                f"the checkpoint {self.path} could not be written: {error}. The fit goes on; the file there, if any, is the last "
                "that could be", RuntimeWarning, stacklevel=2,
            )  # fmt: skip

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from this path; refuse it where it could not be written, and where another one has it."""
        folder = Path(self.path).absolute().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise OSError(f"checkpoint={str(self.path)!r}: the folder {folder} does not exist or cannot be written to")
        if fcntl is None or jax.process_index():
            yield
            return
        with open(folder / f".{Path(self.path).name}.lock", "w") as file:
            taken = False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                taken = not os.path.exists(file.name) or not os.path.samestat(
                    os.fstat(file.fileno()), os.stat(file.name)
                )
            except BlockingIOError:
                taken = True
            except OSError:  # a file system without locks
                yield
                return
            if taken:
                raise OSError(
                    f"another fit is writing the checkpoint {self.path}: wait until it has ended, or give another path"
                )
            try:
                yield
            finally:
                with contextlib.suppress(OSError):
                    os.unlink(file.name)

    def load(self, like: State) -> tuple[State, History, dict[str, str], Restarts] | None:
        """Read the state, history, estimators and restarts of an earlier call with the same settings; None if there are none."""
        if not os.path.exists(self.path):
            return None
        header, arrays = read(self.path, "checkpoint")
        check_same_model(self.path, header["model"], self.model)
        for name, value in self.settings.items():
            if header["settings"].get(name) != value:
                raise ValueError(
                    f"{self.path} belongs to a run with another {name}: {header['settings'].get(name)} there, {value} here; "
                    "repeat the same call to go on with it, or give another path"
                )
        tree = unflatten(arrays)
        history = tree.pop("history", {})
        leaves, structure = jax.tree.flatten(like)
        saved = [tree[f"leaf{i}"] for i in range(len(tree))]
        for mine, its in itertools.zip_longest(leaves, saved):
            if mine is None or its is None or its.shape != mine.shape or its.dtype != mine.dtype:
                raise ValueError(f"{self.path} belongs to a run with another optimizer or other stopping rules")
        state = jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in saved])
        restarts = tuple(Estimate(*pair) for pair in header["restarts"])
        return state, [history] if history else [], header["estimators"], restarts
