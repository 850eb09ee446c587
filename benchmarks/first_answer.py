"""Time from `import` to the first answer, and to a second one: `python benchmarks/first_answer.py`, about five minutes.

bbvi with its defaults, to `print(posterior)`, and NumPyro's SVI (AutoNormal, 2,000 steps of Adam, `svi.run` without a bar), to the
medians of its guide, on five models of the same distributions. Each measurement is a process of its own, without JAX's
compilation cache; the two take turns. The second fit is of the same model in the same process, to other data.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time

NAMES = ["eight schools", "logistic regression", "radon-like hierarchy", "marginal mixture", "12 scalar latents"]
LIBRARIES = ["bbvi", "NumPyro"]


def clocks():
    """Return seconds of wall time and of the processor, of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def by_bbvi(name):
    """Return a function that fits a model by its defaults and prints the posterior."""
    from first_answer_models import MODELS

    import bbvi

    both = MODELS[name]
    model = bbvi.Model(both.log_joint, **both.latents(bbvi))
    return lambda seed: print(bbvi.fit(model, both.data(seed), progress=False), file=sys.stderr)


def by_numpyro(name):
    """Return a function that fits a model by SVI and prints the medians."""
    import jax
    import numpyro
    from first_answer_models import MODELS
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    both = MODELS[name]
    guide = AutoNormal(both.numpyro)
    svi = SVI(both.numpyro, guide, numpyro.optim.Adam(0.01), Trace_ELBO())

    def fit(seed):
        found = svi.run(jax.random.key(seed), 2000, both.data(seed), progress_bar=False)
        print(guide.median(found.params), file=sys.stderr)

    return fit


def measure(library, name):
    """Fit twice in this process; print the seconds of wall and of the processor for both fits."""
    begin = clocks()
    fit = (by_bbvi if library == "bbvi" else by_numpyro)(name)
    fit(0)
    first = clocks()
    fit(1)
    second = clocks()
    seconds = [[b - a for a, b in zip(*pair, strict=True)] for pair in ((begin, first), (first, second))]
    print(json.dumps(seconds))


def measured(library, name):
    """Measure in a fresh process: ((wall, processor) of import and first fit, and of the second)."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("JAX_COMPILATION_CACHE")}
    command = [sys.executable, __file__, "--measure", library, name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first of the models, once")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--measure", nargs=2, metavar=("LIBRARY", "MODEL"), help="what a fresh process is asked for")
    options = parser.parse_args()
    if options.measure:
        return measure(*options.measure)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpyro", "bbvi"))
    print(f"{versions}, Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores\n")
    print("| model | seconds of | bbvi: import + first fit | NumPyro | ratio | bbvi: second fit | NumPyro | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.models[:1] if options.quick else options.models:
        runs = {library: [] for library in LIBRARIES}
        for _ in range(1 if options.quick else options.repeats):
            for library in LIBRARIES:
                runs[library].append(measured(library, name))
        for clock, of in enumerate(("wall time", "processor")):
            cells = []
            for fit in range(2):
                ours, theirs = (statistics.median(run[fit][clock] for run in runs[library]) for library in LIBRARIES)
                cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.2f}"]
            print(f"| {name} | {of} | {' | '.join(cells)} |", flush=True)
    return None


if __name__ == "__main__":
    main()
