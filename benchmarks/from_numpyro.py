"""Fits of NumPyro functions against NUTS on the same functions: how far the means are apart, in posterior sds.

Run from the root of the repository: `python benchmarks/from_numpyro.py [names]`. The functions are those of the tests.
"""

import importlib.util
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

import bbvi

MODELS = Path(__file__).parents[1] / "tests" / "bridges" / "numpyro_models.py"
#: those without discrete latents, which NUTS does not sample
NAMES = [
    "eight schools", "reparametrised schools", "regression", "GLMM", "GP", "stochastic volatility", "local level",
    "ragged plates", "subsampled logistic", "LKJ", "horseshoe", "missing data", "moving bounds", "ordered mixture", "ODE",
]  # fmt: skip


def compare(fn, args, kwargs, num):
    """Fit a function, and sample it; by site the largest distance of means, and the sds of q over those of the posterior."""
    model, data = bbvi.from_numpyro(fn, *args, **kwargs)
    begin = time.process_time()
    posterior = bbvi.fit(model, data)
    seconds = time.process_time() - begin
    draws = posterior.to_numpyro(20_000)
    whole = {**kwargs, "batch": len(args[0])} if fn.__name__ == "logistic" else kwargs
    # NUTS looks them up by traced indices
    args = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in args]
    chain = MCMC(
        NUTS(fn, target_accept_prob=0.95), num_warmup=num, num_samples=4 * num, num_chains=2, progress_bar=False
    )
    chain.run(jax.random.key(0), *args, **whole)
    truth = chain.get_samples()
    # a correlation matrix has entries that do not vary
    vary = {n: np.asarray(truth[n].std(0)) > 1e-5 for n in draws}
    off = {n: np.max((np.abs(x.mean(0) - truth[n].mean(0)) / truth[n].std(0))[vary[n]]) for n, x in draws.items()}
    ratio = {n: (x.std(0) / truth[n].std(0))[vary[n]] for n, x in draws.items()}
    return posterior, off, ratio, seconds


def main(names):
    """Print a line for each model."""
    spec = importlib.util.spec_from_file_location("numpyro_models", MODELS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in names or NAMES:
        fn, args, kwargs, _ = module.MODELS[name]
        posterior, off, ratio, seconds = compare(fn, args, kwargs, 1000)
        worst = max(off, key=off.get)
        sds = np.concatenate([*ratio.values()])
        print(
            f"{name:24s} {posterior.outcome.value:12s} k-hat {posterior.khat():5.2f}  largest distance {off[worst]:.3f} sd ({worst}), "
            f"sds {sds.min():.2f} to {sds.max():.2f}, {seconds:.0f} s of processor time",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
