"""The 312 Mayo patients with a random intercept and slope for each lab: processor seconds to fit, to predict and for k-hat.

python benchmarks/prediction.py              a fit with the defaults in batches of 25, then predictions and k-hat
python benchmarks/prediction.py --steps 4000     of a fit of so many steps
"""

import argparse
import contextlib
import time
from collections.abc import Iterator

import hierarchies
import numpy as np

import bbvi


@contextlib.contextmanager
def clocked(what: str) -> Iterator[None]:
    began = time.process_time(), time.monotonic()
    yield
    print(
        f"{what:40} {time.process_time() - began[0]:7.1f} s of the processor, {time.monotonic() - began[1]:7.1f} s",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int)
    options = parser.parse_args()
    model, kept, held = hierarchies.mayo_split(0)
    stop = None if options.steps is None else bbvi.Budget(steps=options.steps)
    with clocked("fit, batches of 25"):
        posterior = bbvi.fit(model, kept, batch_size=hierarchies.BATCH, stop=stop, progress=False)
    print(f"{len(posterior.history)} steps; {posterior.stopped}")
    with clocked("fit of the locals, globals held"):
        held_fit = bbvi.fit(model, kept, hold=posterior, progress=False)
    print(f"{len(held_fit.history)} steps; {held_fit.stopped}")
    with clocked("predictive_log_likelihood"):
        score = bbvi.predictive_log_likelihood(posterior, kept, held, observed="observed")
    print(
        f"{len(score.pointwise)} entries, {score.per_observation!r} each; Monte Carlo error {np.sqrt((score.pointwise_error**2).mean()):.3f}"
    )
    with clocked("khat"):
        khat = posterior.khat()
    print(repr(khat), np.quantile(khat.locals, [0.1, 0.5, 0.9]).round(2))
    with clocked("khat again"):
        posterior.khat(seed=1)


if __name__ == "__main__":
    main()
