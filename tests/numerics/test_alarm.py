"""XLA's alarm about slow compilations stays off the terminal, and nothing else does."""

import os
import subprocess
import sys
import time

from bbvi.numerics.alarm import without_alarm

ALARM = b"""2026-01-01 00:00:00.000000: E external/xla/xla/service/slow_operation_alarm.cc:73]
********************************
[Compiling module jit_run] Very slow compile? If you want to file a bug, run with envvar XLA_FLAGS and attach the results.
********************************
"""


def written(capfd, seconds):
    with without_alarm(seconds):
        time.sleep(0.3)
        os.write(2, b"before\n" + ALARM + b"after, and a bar without an end of line")
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write(' of a child')"], check=True)
    os.write(2, b"\nthe end\n")
    return capfd.readouterr().err


def test_the_alarm_is_left_out_of_what_is_written(capfd):
    assert written(capfd, 0.0) == "before\nafter, and a bar without an end of line of a child\nthe end\n"


def test_before_it_can_come_nothing_is_touched(capfd):
    assert (
        written(capfd, 100.0)
        == f"before\n{ALARM.decode()}after, and a bar without an end of line of a child\nthe end\n"
    )
