"""Is the noise that of Eq. 10? Variance of our gradient over that of the hand-derived estimator, component by component.

    python benchmarks/yardstick_variance.py [--quick]

Both are Rao-Blackwellized and have a control variate: the yardstick Eq. 10's plug-in scaling, derived by hand, ours the
default with blankets read off the user's function. The ratio of two variances over R repeats is off by sqrt(4 / R) by chance, more where
the gradient has heavy tails.
"""

import argparse

import cohort
import jax.numpy as jnp
import numpy as np
import yardstick

import bbvi

NAMES = {"W": ("loc", "scale"), "o": ("loc", "scale"), "x": ("concentration", "mean")}


def laid_out(posterior, visits: int):
    """Our lambda as the yardstick has it: pairs on the first axis, visits filled up."""
    out = {}
    for name, pair in NAMES.items():
        one, other = (np.asarray(posterior.params[name][p]) for p in pair)
        stacked = np.stack([one, other])
        if name == "x":
            fill = [(0, 0), (0, 0), (0, visits - stacked.shape[2]), (0, 0)]
            stacked = np.pad(stacked, fill)
        out[name] = jnp.asarray(stacked)
    return out


def ratios(posterior, model, groups, patients, *, draws: int, repeats: int) -> dict[str, np.ndarray]:
    """Our variance over the yardstick's, for all components that are not padding."""
    num = len(patients.labs)
    shape, _ = yardstick.prepare(patients, num, draws)
    hand = yardstick.gradient_variance(
        laid_out(posterior, shape.visits), patients, range(num), draws=draws, repeats=repeats
    )
    ours = bbvi.gradient_moments(
        model, groups, posterior, draws=bbvi.MonteCarlo(draws), repeats=repeats, seed=1
    ).variance
    lengths = np.array([len(labs) for labs in patients.labs])
    out = {}
    for name, pair in NAMES.items():
        for number, p in enumerate(pair):
            mine, its = np.asarray(ours[name][p], np.float64), np.asarray(hand[name][number], np.float64)
            if name == "x":
                keep = np.arange(mine.shape[1]) < lengths[:, None]
                mine, its = mine[keep], its[:, : mine.shape[1]][keep]
            out[f"{name} {p}"] = (mine / its).ravel()
    return out


def main(quick: bool) -> None:
    draws, repeats, steps = (50, 20, 20) if quick else (1000, 2000, 300)
    patients = cohort.simulate(3 if quick else 6, longest=9)
    model, groups = cohort.ours(patients)
    print(f"{len(patients.labs)} patients of up to 9 visits, S = {draws}, {repeats} repeats")
    print(f"by chance alone a ratio is off by {np.sqrt(4 / repeats):.3f}\n")
    print("| lambda | parameters | median | 5 % | 95 % | largest | by chance |\n|---|---|---|---|---|---|---|")
    for title, budget in (("at the start", 0), (f"after {steps} steps", steps)):
        posterior = bbvi.fit(
            model,
            groups,
            gradient=bbvi.Score(),
            optimizer=bbvi.adagrad(1.0),
            stop=bbvi.Budget(steps=budget),
            progress=False,
        )
        for name, found in ratios(posterior, model, groups, patients, draws=draws, repeats=repeats).items():
            low, middle, high = np.quantile(found, [0.05, 0.5, 0.95])
            chance = 1.645 * np.sqrt(4 / repeats)
            print(
                f"| {title} | {name} | {middle:.3f} | {low:.2f} | {high:.2f} | {found.max():.2f} "
                f"| {1 - chance:.2f} to {1 + chance:.2f} |"
            )  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="too few repeats to mean anything")
    main(parser.parse_args().quick)
