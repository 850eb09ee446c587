"""Plant errors in the gradient, one at a time, and see that the exact tests notice each of them.

Run `make mutants`. Exit status 0 means that the tests pass on the library as it is and fail on every mutant.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent


class Mutant(NamedTuple):
    """An edit of one line of the source, and the tests that should see it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = {
    "one term dropped": Mutant(
        "blankets/scope.py",
        "for name, pattern in self.patterns.get(latent, {}).items():",
        "for name, pattern in list(self.patterns.get(latent, {}).items())[1:]:",
        "unbiased_by_enumeration or all_batches",
    ),
    "one term counted twice": Mutant(
        "blankets/scope.py",
        "found.append(pattern.arranged(sums[name][pattern.summed]))",
        "found.append(pattern.arranged(sums[name][pattern.summed]) * (1 + (name == next(iter(self.patterns[latent])))))",
        "unbiased_by_enumeration or all_batches",
    ),
    "N/B applied twice": Mutant(
        "gradients/evaluate.py",
        "own = own + layout.scale * of_globals[name]",
        "own = own + layout.scale * layout.scale * of_globals[name]",
        "all_batches or batches_by_repeats",
    ),
    "N/B applied to the rows": Mutant(
        "gradients/evaluate.py",
        "weight = materialise(layout.on, weigh, log_p, log_q_i)",
        "weight = layout.share(name) * materialise(layout.on, weigh, log_p, log_q_i)",
        "all_batches or row_in_the_batch",
    ),
    "PlugIn in place of LeaveOneOut": Mutant(
        "gradients/score.py",
        "variate = NoControlVariate() if self.control_variate is None else self.control_variate",
        "from bbvi.gradients.control_variates import PlugIn\n\n        variate = NoControlVariate() if self.control_variate is None else PlugIn()",
        "leave_one_out_has_no_bias or unbiased_by_enumeration or default_gradient_is_unbiased",
    ),
    "padding counted in the score": Mutant(
        "draws/rows.py",
        "return zero_padding(packing.real, places[jnp.minimum(at, len(places) - 1)])",
        "return places[jnp.minimum(at, len(places) - 1)]",
        "unbiased_by_enumeration or padding",
    ),
    "padding counted in log q": Mutant(
        "draws/layout.py",
        "return zero_padding(rows.real, table.drawer.density(self.on, rows.prepared, u)[0]).sum(0), ()",
        "return table.drawer.density(self.on, rows.prepared, u)[0].sum(0), ()",
        "unbiased_by_enumeration or padding",
    ),
    "a blanket that misses a broadcast": Mutant(
        "blankets/jaxpr/values.py",
        "return np.broadcast_to(np.expand_dims(array, new), shape)",
        "return np.full(shape, array.flat[0])",
        "reads_are_exact or unbiased_by_enumeration",
    ),
    "a look-up counted twice": Mutant(
        "blankets/look_ups.py",
        "        if self.may_repeat:\n",
        "        if False:\n",
        "unbiased_by_enumeration or all_batches",
    ),
    "a look-up that counts for all items": Mutant(
        "blankets/look_ups.py",
        '.at[targets].add(values, mode="drop")',
        '.at[jnp.zeros_like(targets)].add(values, mode="drop")',
        "unbiased_by_enumeration or all_batches",
    ),
    "a loop whose carry is forgotten": Mutant(
        "blankets/rules/loops.py",
        "        carry = [union([c, m]) for c, m in zip(carry, made, strict=True)]",
        "        return carry",
        "unbiased_by_enumeration or reads_are_exact",
    ),
    "a product of sums that loses its scale": Mutant(
        "blankets/walk.py",
        '    if b.kind == "mul":\n        return value * other',
        '    if b.kind == "mul":\n        return value',
        "unbiased_by_enumeration or add_up",
    ),
    "log q left out": Mutant(
        "gradients/evaluate.py",
        "only_counted(counts, log_p - log_q_i if rao_blackwell",
        "only_counted(counts, log_p if rao_blackwell",
        "unbiased_by_enumeration or default_gradient_is_unbiased",
    ),
}
TESTS = [
    "tests/gradients/test_score.py",
    "tests/draws/test_batch.py",
    "tests/families/test_families.py",
    "tests/blankets/test_reads.py",
]


def mutate(name: str, target: Path) -> None:
    """Write a copy of the source with this error in it."""
    mutant = MUTANTS[name]
    shutil.copytree(ROOT / "src" / "bbvi", target / "bbvi")
    path = target / "bbvi" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{name}: expected the text once in {mutant.file}, found it {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new))


def run(source: Path, selection: str) -> tuple[bool, str]:
    """Whether the tests pass, and pytest's last line."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-m", "pytest", *TESTS, "-q", "-q", "-k", selection, "-n", "2", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return done.returncode == 0, f"{len(failed)} tests failed" if failed else done.stdout.strip()[-300:]


def main() -> int:
    healthy = True
    everything = " or ".join(sorted({mutant.tests for mutant in MUTANTS.values()}))
    passed, line = run(ROOT / "src", everything)
    print(f"{'passes' if passed else 'FAILS':9} the library as it is: {line}", flush=True)
    healthy &= passed
    for name, mutant in MUTANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            mutate(name, Path(folder))
            passed, line = run(Path(folder), mutant.tests)
        print(f"{'SURVIVES' if passed else 'caught':9} {name}: {line}", flush=True)
        healthy &= not passed
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
