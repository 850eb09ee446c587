"""Spike and slab regression: inclusion probabilities by default against enumeration of all models.

    python benchmarks/spike.py [--seeds 5] [--only NAME]

Predictors are correlated as an autoregression, rho ** |i - j|. With known noise the probability of each of the 2 ** p models is a closed form;
where the noise or the share of predictors is unknown, too, so it is at each point of a grid over it. "best" is the factorised
q(g_i) q(b_i | g_i) of the highest ELBO that coordinate ascent in closed form (Titsias and Lázaro-Gredilla 2011) finds from 50 starts,
"reached" how far below its ELBO the worst of the fits is.
"""

import argparse
import itertools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import betaln, expit, logsumexp

import bbvi

SHARE, SLAB = 0.3, 1.0
SIGMAS = np.exp(np.linspace(np.log(0.5), np.log(2.0), 40))


def simulate(p, n, rho, strength, seed):
    """Return standardised predictors and an outcome that three of them move."""
    generator = np.random.default_rng(seed)
    chol = np.linalg.cholesky(rho ** np.abs(np.subtract.outer(range(p), range(p))))
    x = generator.normal(size=(n, p)) @ chol.T
    x = (x - x.mean(0)) / x.std(0)
    effects = np.zeros(p)
    effects[generator.choice(p, 3, False)] = strength * generator.choice([-1, 1], 3) * generator.uniform(0.5, 1.5, 3)
    return x, x @ effects + generator.normal(size=n)


def log_models(x, y, sigma):
    """Return all models as bits, and the log evidence of each."""
    p = x.shape[1]
    models, gram, moment = np.array(list(itertools.product([0, 1], repeat=p))), x.T @ x / sigma**2, x.T @ y / sigma**2
    found = np.zeros(len(models))
    for k, model in enumerate(models):
        on = np.flatnonzero(model)
        precision = gram[np.ix_(on, on)] + np.eye(len(on)) / SLAB**2
        found[k] = (moment[on] @ np.linalg.solve(precision, moment[on]) - np.linalg.slogdet(precision)[1]) / 2
        found[k] -= len(on) * np.log(SLAB)
    return models, found - 0.5 * y @ y / sigma**2 - len(y) * np.log(sigma * np.sqrt(2 * np.pi))


def exact(x, y, unknown):
    """Return the inclusion probabilities and the log evidence; `unknown` says whether the noise and the share of predictors are."""
    if not unknown:
        models, found = log_models(x, y, 1.0)
        found = found + models.sum(1) * np.log(SHARE) + (1 - models).sum(1) * np.log(1 - SHARE)
    else:
        # log sigma is Normal(0, 0.5), and the share Beta(2, 4)
        log_sigma, of_sigma = np.log(SIGMAS), []
        for sigma in SIGMAS:
            models, found = log_models(x, y, sigma)
            of_sigma.append(found - 0.5 * (np.log(sigma) / 0.5) ** 2 - np.log(0.5 * np.sqrt(2 * np.pi)))
        found = logsumexp(of_sigma, axis=0) + np.log(log_sigma[1] - log_sigma[0])
        on = models.sum(1)
        found += betaln(2 + on, 4 + x.shape[1] - on) - betaln(2, 4)
    evidence = logsumexp(found)
    return np.exp(found - evidence) @ models, evidence


def best_factorised(x, y):
    """Return the inclusion probabilities and the ELBO of the best q(g_i) q(b_i | g_i), of known noise."""
    gram, moment, p = x.T @ x, x.T @ y, x.shape[1]
    variance, found = 1 / (np.diag(gram) + 1 / SLAB**2), []
    for start in range(50):
        # undecided, and anything that may be in or out
        q, mean = np.random.default_rng(start).integers(0, 2, p) * 1.0 if start else np.full(p, 0.5), np.zeros(p)
        for _ in range(3000):
            before = q.copy()
            for i in range(p):
                mean[i] = variance[i] * (moment[i] - gram[i] @ (q * mean) + gram[i, i] * q[i] * mean[i])
                odds = (
                    np.log(SHARE / (1 - SHARE)) + 0.5 * np.log(variance[i] / SLAB**2) + 0.5 * mean[i] ** 2 / variance[i]
                )
                q[i] = expit(odds)
            if np.abs(q - before).max() < 1e-9:
                break
        effect, safe = q * mean, np.clip(q, 1e-12, 1 - 1e-12)
        second = q * (variance + mean**2)
        elbo = moment @ effect - 0.5 * (effect @ gram @ effect + np.diag(gram) @ (second - effect**2)) - 0.5 * y @ y
        elbo += (q * np.log(SHARE / safe) + (1 - q) * np.log((1 - SHARE) / (1 - safe))).sum() - len(y) * 0.5 * np.log(
            2 * np.pi
        )
        elbo += (q * (0.5 * np.log(variance / SLAB**2) + 0.5 - 0.5 * (variance + mean**2) / SLAB**2)).sum()
        found.append((elbo, q))
    elbo, q = max(found, key=lambda pair: pair[0])
    return q, elbo


def known(z, data):
    """The product spelling, of known noise."""
    x, y = data
    prior = dist.Bernoulli(SHARE).log_prob(z["g"]).sum() + dist.Normal(0, SLAB).log_prob(z["b"]).sum()
    return prior + dist.Normal(x @ (z["g"] * z["b"]), 1.0).log_prob(y).sum()


def chosen(z, data):
    """The same with a choice."""
    x, y = data
    prior = dist.Bernoulli(SHARE).log_prob(z["g"]).sum() + dist.Normal(0, SLAB).log_prob(z["b"]).sum()
    return prior + dist.Normal(x @ jnp.where(z["g"] == 1, z["b"], 0.0), 1.0).log_prob(y).sum()


def unknown(z, data):
    """The noise and the share of predictors are latents, too."""
    x, y = data
    prior = dist.Bernoulli(z["share"]).log_prob(z["g"]).sum() + dist.Normal(0, SLAB).log_prob(z["b"]).sum()
    prior += dist.LogNormal(0, 0.5).log_prob(z["sigma"]) + dist.Beta(2, 4).log_prob(z["share"])
    return prior + dist.Normal(x @ (z["g"] * z["b"]), z["sigma"]).log_prob(y).sum()


def model_of(log_joint, p, **joint):
    latents = {"g": bbvi.binary(p), "b": bbvi.real(p)}
    if log_joint is unknown:
        latents |= {"sigma": bbvi.positive(), "share": bbvi.unit_interval()}
    return bbvi.Model(log_joint, **joint, **latents)


CASES = {
    f"{name}, p {p}, n {n}, rho {rho}, effects {strength}": (log_joint, p, n, rho, strength)
    for name, log_joint, p, n, rho, strength in [
        *[("product", known, 10, n, rho, s) for rho in (0.0, 0.5, 0.7, 0.9) for n in (100, 300) for s in (0.15, 0.5)],
        ("product", known, 15, 200, 0.5, 0.3),
        ("choice", chosen, 12, 200, 0.0, 0.2), ("choice", chosen, 12, 200, 0.5, 0.3),
        *[("unknown noise and share", unknown, 10, 200, rho, 0.3) for rho in (0.0, 0.5, 0.8)],
    ]
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    print(
        "case | best | fits, largest error of an inclusion probability | reached | gap to the evidence | steps | converged | joint=()"
    )
    for name, (log_joint, p, n, rho, strength) in CASES.items():
        if arguments.only not in name:
            continue
        x, y = simulate(p, n, rho, strength, seed=1)
        truth, evidence = exact(x, y, log_joint is unknown)
        best, ceiling = (truth, np.nan) if log_joint is unknown else best_factorised(x, y)
        data, errors, elbos, steps, converged = (x.astype(np.float32), y.astype(np.float32)), [], [], [], 0
        for seed in range(arguments.seeds):
            posterior = bbvi.fit(model_of(log_joint, p), data, seed=seed, progress=False)
            errors.append(np.abs(posterior.probs()["g"][:, 1] - truth).max())
            elbos.append(float(posterior.elbo(4000)))
            steps.append(len(posterior.history))
            converged += posterior.converged
        alone = bbvi.fit(model_of(log_joint, p, joint=()), data, seed=0, progress=False).probs()["g"][:, 1]
        print(
            f"{name} | {np.abs(best - truth).max():.2f} | {' '.join(f'{e:.2f}' for e in errors)} | {ceiling - min(elbos):.2f} | "
            f"{evidence - min(elbos):.2f} | {min(steps)} to {max(steps)} | {converged} | {np.abs(alone - truth).max():.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
