"""Major earthquakes of the world, by a hidden Markov model: a Poisson rate for each hidden state of a year.

    P_j ~ Dirichlet(1 + 9 [j = k]), rate_k ~ Gamma(2, 0.1), state_1 uniform, state_t ~ Categorical(P_state_t-1)
    count_t ~ Poisson(rate_state_t)

The counts are of earthquakes of magnitude 7 or more in the years 1900 to 2006, as in Zucchini and MacDonald (2009). Terms of
log p read single states and neighbours, a chain. So the default q is a Markov chain over the states beside the other latents:
their probabilities are those of forward-backward, and draws are whole paths.
"""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

COUNTS = np.array([
    13, 14, 8, 10, 16, 26, 32, 27, 18, 32, 36, 24, 22, 23, 22, 18, 25, 21, 21, 14, 8, 11, 14, 23, 18, 17, 19, 20, 22, 19, 13,
    26, 13, 14, 22, 24, 21, 22, 26, 21, 23, 24, 27, 41, 31, 27, 35, 26, 28, 36, 39, 21, 17, 22, 17, 19, 15, 34, 10, 15, 22, 18,
    15, 20, 15, 22, 19, 16, 30, 27, 29, 23, 20, 16, 21, 21, 25, 16, 18, 15, 18, 14, 10, 15, 8, 15, 6, 11, 8, 7, 18, 16, 13, 12,
    13, 20, 15, 16, 12, 18, 15, 16, 13, 15, 16, 11, 11,
])  # fmt: skip
NUM_STATES = 3


def log_joint(z, counts):
    state = z["state"]
    return {
        "moves": dist.Dirichlet(1 + 9 * jnp.eye(NUM_STATES)).log_prob(z["moves"]),
        "rate": dist.Gamma(2, 0.1).log_prob(z["rate"]),
        "state": jnp.log(z["moves"])[state[:-1], state[1:]],
        "counts": dist.Poisson(z["rate"][state]).log_prob(counts),
    }


def main():
    """Fit the counts, print the rates and the years of each state, and return the fit."""
    model = bbvi.Model(
        log_joint,
        moves=bbvi.simplex(NUM_STATES, NUM_STATES),
        rate=bbvi.positive(NUM_STATES, init=np.quantile(COUNTS, [0.2, 0.5, 0.8])),
        state=bbvi.categorical(NUM_STATES, len(COUNTS)),
    )
    posterior = bbvi.fit(model, COUNTS)
    print(posterior.verdict)
    mean, sd = posterior.mean()["rate"], posterior.sd()["rate"]
    most_likely = posterior.probs()["state"].argmax(1)
    for k in range(NUM_STATES):
        print(f"state {k}: {mean[k]:.1f} +- {sd[k]:.1f} a year, in {(most_likely == k).sum()} of {len(COUNTS)} years")
    paths = posterior.sample(1000)["state"]
    changes = (np.diff(paths, axis=1) != 0).sum(1)
    print(f"changes of state in {len(COUNTS)} years: {changes.mean():.0f} +- {changes.std():.0f}")
    return posterior


if __name__ == "__main__":
    main()
