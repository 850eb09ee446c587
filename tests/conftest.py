"""Compiled programs are kept between runs and shared with other processes: most of a small fit's time is its compilation."""

import gc
import getpass
import os
import tempfile
from pathlib import Path

import jax

KEPT = {
    "jax_compilation_cache_dir": str(Path(tempfile.gettempdir()) / f"bbvi-test-cache-{getpass.getuser()}"),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
for name, value in KEPT.items():
    jax.config.update(name, value)
    os.environ[name.upper()] = str(value)  # for what a test starts as a process of its own

# tracing makes objects by the million, which live on: to look for cycles among them as often as usual takes a tenth of the time
gc.set_threshold(100_000, 20, 20)
