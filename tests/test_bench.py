"""A smoke of the benchmark: it runs on small sizes and prints its table."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_bench_prints_a_row_for_each_size():
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "bench.py"),
        "--sizes",
        "40",
        "80",
        "--chunks",
        "1",
        "--draws",
        "10",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()[3:]]
    assert [row[0] for row in rows] == ["40", "80"]
    assert all(float(value) > 0 for row in rows for value in row[1:])


def test_the_benchmark_of_rao_blackwellization_runs():
    command = [sys.executable, str(ROOT / "benchmarks" / "rao_blackwell.py"), "--quick", "gain", "items", "chains"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()[1:]
    assert len(lines) == 6
    assert all(any(character.isdigit() for character in line) for line in lines)
