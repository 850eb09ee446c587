"""Fit two dozen small models at fixed seeds and print a digest of each lambda: moves and renames must leave all of them alone.

`python tools/digests.py > before` on the old code, `> after` on the new one, on the same machine; then compare the two.
"""

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import bbvi

SIGMA = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0], np.float32)
EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], np.float32)
LENGTHS = (2, 7, 3, 1, 9, 4, 4, 12, 5, 2, 3, 8)


def schools_log_joint(z, data):
    y, sigma = data
    return (
        dist.Normal(0, 5).log_prob(z["mu"])
        + dist.HalfCauchy(5).log_prob(z["tau"])
        + dist.Normal(z["mu"], z["tau"]).log_prob(z["theta"]).sum()
        + dist.Normal(z["theta"], sigma).log_prob(y).sum()
    )


def schools(**how):
    model = bbvi.Model(
        schools_log_joint, mu=bbvi.real(), tau=bbvi.positive(), theta=bbvi.real(8), joint=how.pop("joint", ())
    )
    return bbvi.fit(model, data=(EFFECT, SIGMA), seed=1, progress=False, **{"stop": bbvi.Budget(steps=60), **how})


def mixture(**how):
    y = np.random.default_rng(0).normal(size=30).astype(np.float32) * 0.5 + np.repeat([-2.0, 0.0, 3.0], 10)

    def log_joint(z, y):
        prior = dist.Normal(0, 3).log_prob(z["centre"]).sum() + dist.Dirichlet(jnp.ones(3)).log_prob(z["share"])
        return prior + jnp.log(z["share"])[z["k"]].sum() + dist.Normal(z["centre"][z["k"]], 0.5).log_prob(y).sum()

    model = bbvi.Model(log_joint, centre=bbvi.real(3), share=bbvi.simplex(3), k=bbvi.categorical(3, 30))
    return bbvi.fit(model, data=y, seed=2, progress=False, stop=bbvi.Budget(steps=60), **how)


def chain(**how):
    def log_joint(z, data):
        def step(previous, bit):
            return bit, jnp.where(previous == bit, 0.4, -0.4)

        _, ties = jax.lax.scan(step, z["bits"][0], z["bits"][1:])
        return ties.sum() + (z["bits"] * data).sum()

    model = bbvi.Model(log_joint, bits=bbvi.binary(12))
    return bbvi.fit(model, data=np.linspace(-1, 1, 12), seed=3, progress=False, stop=bbvi.Budget(steps=60), **how)


def supports(**how):
    def log_joint(z, data):
        return (
            dist.Gamma(2.0, z["rate"]).log_prob(data).sum()
            + dist.Gamma(1.0, 1.0).log_prob(z["rate"])
            + dist.Beta(2.0, 3.0).log_prob(z["unit"]).sum()
            + dist.Poisson(3.0 * z["unit"][0] + 1).log_prob(z["events"]).sum()
            - (z["cut"] ** 2).sum()
            + z["between"]
            + dist.StudentT(4.0).log_prob(z["tail"])
            + dist.Normal(0, 1).log_prob(z["full"]).sum()
            - (z["full"].sum() - z["tail"]) ** 2
            - (z["low"].sum() - z["between"]) ** 2
            - (z["low"] ** 2).sum()
        )

    model = bbvi.Model(
        log_joint,
        rate=bbvi.positive(q=dist.LogNormal),
        unit=bbvi.unit_interval(2),
        events=bbvi.count(2),
        cut=bbvi.ordered(3),
        between=bbvi.interval(-1, 2),
        tail=bbvi.real(q=dist.StudentT),
        full=bbvi.real(3, q=bbvi.FullRank()),
        low=bbvi.real(4, q=bbvi.LowRank(1)),
    )
    data = np.array([0.5, 1.2, 2.0], np.float32)
    return bbvi.fit(model, data=data, seed=4, progress=False, stop=bbvi.Budget(steps=40), **how)


def cohort():
    rng = np.random.default_rng(5)
    return bbvi.ragged(
        visit={"y": [rng.normal(1.0, 1.0, n).astype(np.float32) for n in LENGTHS]},
        group={"age": rng.normal(size=len(LENGTHS)).astype(np.float32)},
    )


def patients(joint=()):
    def log_likelihood(beta, z, row):
        mean = z["level"] + beta["slope"] * row["age"] + z["state"]
        return jnp.where(row["mask"]["visit"], dist.Normal(mean, beta["noise"]).log_prob(row["y"]), 0)

    def log_local(beta, z, row):
        before = jnp.concatenate([jnp.ones(1), z["state"][:-1]])
        walk = dist.Gamma(4.0, 4.0 / before).log_prob(z["state"])
        return dist.Normal(0, 1).log_prob(z["level"]) + jnp.where(row["mask"]["visit"], walk, 0).sum()

    return bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["slope"]) + dist.Gamma(2.0, 2.0).log_prob(beta["noise"]),
        log_local=log_local,
        log_likelihood=log_likelihood,
        globals={"slope": bbvi.real(), "noise": bbvi.positive()},
        locals={"level": bbvi.real(), "state": bbvi.positive("visit")},
        joint=joint,
    )


def ragged(joint=(), **how):
    how = {"batch_size": 4, "stop": bbvi.Budget(steps=50), **how}
    return bbvi.fit(patients(joint), data=cohort(), seed=6, progress=False, **how)


def rows(**how):
    x = np.random.default_rng(7).normal(size=(40, 3)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.float32)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        log_likelihood=lambda beta, z, row: dist.Bernoulli(logits=row["x"] @ beta["w"]).log_prob(row["y"]),
        globals={"w": bbvi.real(3)},
    )
    return bbvi.fit(model, data={"x": x, "y": y}, seed=8, progress=False, stop=bbvi.Budget(steps=50), **how)


def plain_python(**how):
    def log_joint(z, data):
        return {
            "prior": -0.5 * float(z["a"]) ** 2 - float(z["b"]),
            "seen": [-0.5 * (float(y) - float(z["a"]) - float(z["b"])) ** 2 for y in data],
        }

    model = bbvi.Model(bbvi.opaque(log_joint), a=bbvi.real(), b=bbvi.positive())
    return bbvi.fit(
        model, data=np.array([0.3, 1.4]), draws=bbvi.MonteCarlo(8), seed=9, progress=False,
        stop=bbvi.Budget(steps=20), **how,
    )  # fmt: skip


PAPER = {"gradient": bbvi.Score(control_variate=bbvi.PlugIn()), "optimizer": bbvi.adagrad(1.0)}
FITS = {
    "flat, defaults": schools,
    "flat, until converged": lambda: schools(stop=bbvi.Converged()),
    "flat, the paper's algorithm": lambda: schools(**PAPER, draws=bbvi.MonteCarlo(100)),
    "flat, Eq. 3": lambda: schools(gradient=bbvi.Score(False, None), draws=bbvi.MonteCarlo(50)),
    "flat, leave one out, in chunks": lambda: schools(
        gradient=bbvi.Score(control_variate=bbvi.LeaveOneOut()), draws=bbvi.MonteCarlo(50, chunk=20)
    ),
    "flat, joint": lambda: schools(joint=[("mu", "tau")]),
    "flat, nets": lambda: schools(draws=bbvi.QuasiMonteCarlo(64)),
    "flat, adaptive draws": lambda: schools(draws=bbvi.AdaptiveDraws()),
    "every support": supports,
    "every support, score": lambda: supports(gradient=bbvi.Score()),
    "mixture": mixture,
    "mixture, score": lambda: mixture(gradient=bbvi.Score()),
    "bits in a scan": chain,
    "bits in a scan, score": lambda: chain(gradient=bbvi.Score()),
    "ragged": ragged,
    "ragged, score": lambda: ragged(gradient=bbvi.Score(), optimizer=bbvi.natural()),
    "ragged, paths on nets": lambda: ragged(gradient=bbvi.Pathwise(), draws=bbvi.QuasiMonteCarlo(32)),
    "ragged, whole data": lambda: ragged(batch_size=None),
    "ragged, globals joint": lambda: ragged(joint=[("slope", "noise")]),
    "rows by minibatches": lambda: rows(batch_size=5),
    "rows": rows,
    "plain Python": plain_python,
}


def digest(tree):
    """A short name of all bits of a tree of arrays."""
    found = hashlib.sha256()
    for path, leaf in sorted(
        (jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ):
        found.update(path.encode() + np.ascontiguousarray(np.asarray(leaf)).tobytes())
    return found.hexdigest()[:16]


def main(wanted):
    for name, fit in FITS.items():
        if wanted in name:
            posterior = fit()
            draws = digest(posterior.sample(3, seed=0)) if name.startswith(("flat", "every")) else ""
            print(f"{name:34} {digest(posterior.params)} {draws}", flush=True)
    if wanted in "Gibbs":
        options = {"num_draws": 20, "num_burn_in": 20, "num_chains": 2, "seed": 1, "progress": False}
        draws = bbvi.metropolis_within_gibbs(patients(), cohort(), **options)
        print(f"{'Gibbs':34} {digest({name: np.asarray(draws.posterior[name]) for name in ('slope', 'noise')})}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
