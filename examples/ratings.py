"""Ratings of items by users, by matrix factorisation with 25 of 200 users a step.

    level_i ~ Normal(0, 1), V_i ~ Normal(0, 1), a vector of 2 tastes, for each item i
    mood_u ~ Normal(0, 1), u_u ~ Normal(0, 1), the same tastes, for each user u
    rating of item i by user u ~ Normal(3 + level_i + mood_u + V_i u_u, 0.5)

A user is a group. The data say which items a user rated: `beta["V"][row["item"]]`. So bbvi finds out in each batch which
items a term of log p reads; a rating then counts in the gradient of its own item and of no other. The ratings are
simulated from the model, and a fifth of them is held out. Run it with --quick for fewer steps.
"""

import argparse

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

NUM_USERS, NUM_ITEMS, RANK, SIGMA, CENTRE = 200, 60, 2, 0.5, 3.0


def simulate(seed):
    """Simulate, for each user, 15 to 40 items that were rated, and the ratings."""
    rng = np.random.default_rng(seed)
    level, tastes = rng.normal(size=NUM_ITEMS), rng.normal(size=(NUM_ITEMS, RANK))
    items, ratings = [], []
    for _ in range(NUM_USERS):
        items.append(rng.choice(NUM_ITEMS, rng.integers(15, 41), replace=False))
        mean = CENTRE + level[items[-1]] + rng.normal() + tastes[items[-1]] @ rng.normal(size=RANK)
        ratings.append(rng.normal(mean, SIGMA))
    return items, ratings


def log_prior(beta):
    return dist.Normal(0, 1).log_prob(beta["V"]).sum() + dist.Normal(0, 1).log_prob(beta["level"]).sum()


def log_local(beta, z, user):
    return dist.Normal(0, 1).log_prob(z["u"]).sum() + dist.Normal(0, 1).log_prob(z["mood"])


def log_likelihood(beta, z, user):
    mean = CENTRE + beta["level"][user["item"]] + z["mood"] + beta["V"][user["item"]] @ z["u"]
    return jnp.where(user["mask"]["rating"], dist.Normal(mean, SIGMA).log_prob(user["y"]), 0).sum()


MODEL = bbvi.HierarchicalModel(
    log_prior=log_prior,
    log_local=log_local,
    log_likelihood=log_likelihood,
    globals={"V": bbvi.real(NUM_ITEMS, RANK), "level": bbvi.real(NUM_ITEMS)},
    locals={"u": bbvi.real(RANK), "mood": bbvi.real()},
)


def root_mean_square(guesses, ratings):
    return float(np.sqrt(np.mean((np.concatenate(guesses) - np.concatenate(ratings)) ** 2)))


def main(*, quick=False):
    """Fit four fifths of the ratings, predict the rest, and return the posterior and the two errors."""
    items, ratings = simulate(seed=5)
    test_items, test = [i[: len(i) // 5] for i in items], [y[: len(y) // 5] for y in ratings]  # in random order
    train_items, train = [i[len(i) // 5 :] for i in items], [y[len(y) // 5 :] for y in ratings]
    data = bbvi.ragged(rating={"item": train_items, "y": train})
    print(bbvi.explain(MODEL, data), end="\n\n")
    steps = 400 if quick else 1500
    posterior = bbvi.fit(MODEL, data, batch_size=25, stop=[bbvi.Converged(0.1), bbvi.Budget(steps=steps)])

    item, mean = np.concatenate(train_items), posterior.mean()
    average = np.bincount(item, np.concatenate(train), NUM_ITEMS) / np.bincount(item, minlength=NUM_ITEMS)
    plain = root_mean_square([average[i] for i in test_items], test)
    users = zip(test_items, mean["mood"], mean["u"], strict=True)
    error = root_mean_square([CENTRE + mean["level"][i] + mood + mean["V"][i] @ u for i, mood, u in users], test)
    print(f"{len(posterior.history)} steps, {posterior.stopped}")
    print(
        f"held-out root mean square error {error:.2f}, of each item's average {plain:.2f}, of the truth about {SIGMA}"
    )
    verdict = "better" if error < plain else "NOT better"
    print(f"Verdict: the model predicts held-out ratings {verdict} than the items' averages do.")
    return posterior, {"error": error, "plain": plain}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    main(quick=parser.parse_args().quick)
