"""ELBOs of hidden Markov models with unknown means, states as latents, against those with the states summed out by hand.

    python benchmarks/hmm.py [seeds]

Of each case the gaps of the ELBO to that of the same model without states (the best of two fits, from quantiles of the data and from the
truth), and the largest distance of a state's probability to that of forward-backward at the fitted means.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import logsumexp

import bbvi

LENGTH, APART = 300, 3.0


def simulate(num_states, stay, seed):
    """Simulate values, and give them with the logarithms of the probabilities of moves."""
    generator = np.random.default_rng(seed)
    moves = np.full((num_states, num_states), (1 - stay) / (num_states - 1))
    np.fill_diagonal(moves, stay)
    states = [generator.integers(num_states)]
    for _ in range(LENGTH - 1):
        states.append(generator.choice(num_states, p=moves[states[-1]]))
    y = APART * (np.array(states) - (num_states - 1) / 2) + generator.normal(size=LENGTH)
    return jnp.asarray(y, float), jnp.asarray(np.log(moves), float)


def with_states(z, data):
    (y, moves), s = data, z["s"]
    prior = dist.Normal(0, 5).log_prob(z["mu"]).sum() - jnp.log(len(moves)) + moves[s[:-1], s[1:]].sum()
    return prior + dist.Normal(z["mu"][s], 1).log_prob(y).sum()


def summed_out(z, data):
    y, moves = data
    emission = dist.Normal(z["mu"], 1).log_prob(y[:, None])

    def step(before, now):
        return jax.nn.logsumexp(before[:, None] + moves, 0) + now, None

    last, _ = jax.lax.scan(step, emission[0] - jnp.log(len(moves)), emission[1:])
    return dist.Normal(0, 5).log_prob(z["mu"]).sum() + jax.nn.logsumexp(last)


def smoothed(mu, data):
    """Return the probabilities of states at these means, by forward-backward."""
    y, moves = (np.asarray(part, np.float64) for part in data)
    emission = -0.5 * (y[:, None] - mu) ** 2
    forward, backward = [emission[0]], [np.zeros(len(moves))]
    for t in range(1, len(y)):
        forward.append(logsumexp(forward[-1][:, None] + moves, 0) + emission[t])
    for t in range(len(y) - 1, 0, -1):
        backward.append(logsumexp(moves + emission[t] + backward[-1], 1))
    both = np.array(forward) + np.array(backward[::-1])
    return np.exp(both - logsumexp(both, 1, keepdims=True))


def main():
    """Print a line of the table for each case."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| states | stay | summed out | gaps of the ELBO | within 0.5 | probabilities |\n|---|---|---|---|---|---|")
    for k in (2, 3, 4, 5):
        for stay in (0.95, 0.6):
            data = simulate(k, stay, k)
            starts = np.quantile(data[0], (np.arange(k) + 0.5) / k), APART * (np.arange(k) - (k - 1) / 2)
            known = [bbvi.fit(bbvi.Model(summed_out, mu=bbvi.real(k, init=start)), data) for start in starts]
            best = max(float(posterior.elbo(4000)) for posterior in known)
            model = bbvi.Model(with_states, mu=bbvi.real(k), s=bbvi.categorical(k, LENGTH))
            fits = [bbvi.fit(model, data, seed=seed) for seed in range(seeds)]
            gaps = sorted(float(posterior.elbo(2000)) - best for posterior in fits)
            off = max(np.abs(p.probs()["s"] - smoothed(p.mean()["mu"], data)).max() for p in fits)
            near = sum(gap > -0.5 for gap in gaps)
            shown = ", ".join(f"{gap:.2f}" for gap in gaps)
            print(f"| {k} | {stay} | {best:.1f} | {shown} | {near} of {seeds} | {off:.3f} |", flush=True)


if __name__ == "__main__":
    main()
