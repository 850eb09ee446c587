"""The other end of peers/worker.py: start a program, give it orders, and say why it failed if it did."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".venv-peers" / "bin" / "python"


class Failed(Exception):
    """A program that ended before it answered; the message is its last line."""


class Method(NamedTuple):
    """A program in `peers/` and what it is to do."""

    program: str
    options: dict[str, Any]

    def having(self, **options: Any) -> "Method":
        return self._replace(options={**self.options, **options})

    @property
    def python(self) -> str:
        return sys.executable if self.program in ("ours", "yardstick") else str(PEERS_PYTHON)


class Worker:
    """A running program; `patience` is how many seconds an answer may take."""

    def __init__(self, method: Method, data: Path, *, patience: float):
        self.patience, self.errors = patience, tempfile.TemporaryFile("w+")  # noqa: SIM115
        paths = [str(HERE), str(HERE.parent / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        command = [
            method.python,
            str(HERE / "peers" / f"{method.program}_ts.py"),
            str(data),
            json.dumps(method.options),
        ]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )  # fmt: skip
        except FileNotFoundError as error:
            raise Failed(f"{error.filename}: not installed; `make bench-peers` does that") from None
        self.greeting = self.answer()

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """Give an order and wait for the answer."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **order}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says why
        return self.answer()

    def answer(self) -> dict[str, Any]:
        timer = threading.Timer(self.patience, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        overdue = not timer.is_alive()
        timer.cancel()
        if line:
            return json.loads(line)
        code = self.process.wait()
        self.errors.seek(0)
        said = [text.strip() for text in self.errors if text.strip()]
        if overdue:
            raise Failed(f"no answer within {self.patience:.0f} s")
        raise Failed(said[-1] if said and code > 0 else f"ended with code {code}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.errors.close()
