"""Outbreaks in households, with a likelihood in plain Python: there is no JAX in it and nothing to differentiate.

    log_rate_h ~ Normal(m, 0.5) for each household h, m ~ Normal(-1, 1)
    size of the outbreak in household h ~ a chain binomial (Reed and Frost) with that rate

The likelihood of an outbreak's size is worked out by a recursion over generations, with loops and branches that JAX
would not trace. `bbvi.opaque` hands the function to bbvi as it is. It returns one term for each household; by moving the
latents, bbvi finds that each term reads its own rate only. For comparison, a grid gives the exact posterior.
"""

import functools
import math

import numpy as np

import bbvi

MEMBERS = np.array([3, 4, 5, 4, 6, 3, 5, 4])
INFECTED = np.array([1, 3, 2, 4, 5, 2, 1, 2])
SPREAD = 0.5


def outbreak_probability(rate, members, infected):
    """Reed-Frost: one member brings the infection in; each later infects each other with probability 1 - exp(-rate)."""
    escape = math.exp(-rate)

    @functools.cache
    def reach(susceptible, infectious, left):
        """Return the probability that exactly `left` more fall ill."""
        if infectious == 0 or susceptible == 0:
            return float(left == 0)
        escapes = escape**infectious
        return sum(
            math.comb(susceptible, new)
            * (1 - escapes) ** new
            * escapes ** (susceptible - new)
            * reach(susceptible - new, new, left - new)
            for new in range(left + 1)
        )

    return reach(members - 1, 1, infected - 1)


def log_joint(z, data):
    outbreaks = [
        math.log(max(outbreak_probability(math.exp(log_rate), int(members), int(infected)), 1e-300))
        for log_rate, members, infected in zip(z["log_rate"], data["members"], data["infected"], strict=True)
    ]
    return {
        "m": -0.5 * (z["m"] + 1) ** 2,
        "log_rate": -0.5 * ((z["log_rate"] - z["m"]) / SPREAD) ** 2 - math.log(SPREAD),
        "outbreak": np.array(outbreaks),
    }


def exact(members, infected):
    """Compute posterior means and sds of m and of the log rates, on a grid: given m the households are independent."""
    m, rate = np.linspace(-5, 3, 201), np.linspace(-7, 5, 601)
    prior = np.exp(-0.5 * ((rate - m[:, None]) / SPREAD) ** 2)
    weight, first, second = np.exp(-0.5 * (m + 1) ** 2), [], []
    for size, ill in zip(members, infected, strict=True):
        likelihood = np.array([outbreak_probability(math.exp(r), int(size), int(ill)) for r in rate])
        evidence = prior @ likelihood
        first.append(prior @ (likelihood * rate) / evidence)
        second.append(prior @ (likelihood * rate**2) / evidence)
        weight = weight * evidence
    weight = weight / weight.sum()
    means, squares = np.vstack([m, *first]) @ weight, np.vstack([m**2, *second]) @ weight
    return means, np.sqrt(squares - means**2)


def main():
    """Fit, print the fit beside the exact posterior, and return it."""
    model = bbvi.Model(bbvi.opaque(log_joint), m=bbvi.real(), log_rate=bbvi.real(len(MEMBERS)))
    data = {"members": MEMBERS, "infected": INFECTED}
    posterior = bbvi.fit(model, data, draws=bbvi.MonteCarlo(30), stop=[bbvi.Converged(0.1), bbvi.Budget(steps=400)])

    mean, sd = exact(MEMBERS, INFECTED)
    print(posterior.summary().assign(**{"exact mean": mean, "exact sd": sd}).round(3))
    off = np.abs(np.concatenate([[posterior.mean()["m"]], posterior.mean()["log_rate"]]) - mean) / sd
    print(
        f"\nVerdict: every mean is within {off.max():.2f} exact sd of the exact one, after {len(posterior.history)} steps."
    )
    return posterior


if __name__ == "__main__":
    main()
