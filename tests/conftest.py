"""Compiled programs are kept between runs: most of a small fit's time is its compilation."""

import getpass
import tempfile
from pathlib import Path

import jax

jax.config.update(
    "jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / f"bbvi-test-cache-{getpass.getuser()}")
)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
