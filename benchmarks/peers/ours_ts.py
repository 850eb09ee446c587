"""bbvi on the model of cohort.py, driven as the peers' programs are."""

import cohort
import jax
import jax.numpy as jnp
import numpy as np
from worker import AbstractRun, serve

import bbvi

PARAMETERS = {
    "W_loc": ("W", "loc"), "W_scale": ("W", "scale"), "o_loc": ("o", "loc"), "o_scale": ("o", "scale"),
    "x_concentration": ("x", "concentration"), "x_mean": ("x", "mean"),
}  # fmt: skip


def patients_of(data):
    own = [(data["labs"][i, :n], data["observed"][i, :n]) for i, n in enumerate(data["length"])]
    return cohort.Patients([labs for labs, _ in own], [observed for _, observed in own], [])


class OurRun(AbstractRun):
    """bbvi.iterate with "method" score or pathwise."""

    def __init__(self, data, start, options):
        self.options, self.first = options, start
        self.model, self.cohort = cohort.ours(patients_of(data))
        raw = {name: (value if name.endswith("_loc") else np.log(value)) for name, value in start.items()}
        at = bbvi.fit(self.model, self.cohort, stop=bbvi.Budget(steps=0), progress=False)
        params = {latent: {} for latent in at.params}
        for theirs, (latent, parameter) in PARAMETERS.items():
            params[latent][parameter] = jnp.asarray(raw[theirs])
        self.at, self.made = at.replace(params), 0
        methods = {"score": lambda: bbvi.Score(), "pathwise": lambda: bbvi.Pathwise()}
        self.gradient = methods[options["method"]]()
        self.run = bbvi.iterate(
            self.model, self.cohort, gradient=self.gradient, draws=bbvi.MonteCarlo(options["draws"]),
            batch_size=min(options["batch"], len(data["length"])), optimizer=bbvi.adagrad(options["rate"]),
            stop=bbvi.Budget(steps=10_000_000), start=self.at,
        )  # fmt: skip

    def steps(self, num):
        """At least `num` steps: one call makes a whole compiled chunk."""
        before = self.made
        while self.made < before + num:
            self.at = next(self.run)
            self.made = len(self.at.history)
        return self.made - before

    def posterior(self):
        params = self.at.params
        raw = {theirs: np.asarray(params[latent][parameter]) for theirs, (latent, parameter) in PARAMETERS.items()}
        return {name: (value if name.endswith("_loc") else np.exp(value)) for name, value in raw.items()}

    def elbo(self, repeats):
        found = self.at.elbo(repeats)
        return float(found), float(found.standard_error)

    def gradients(self, repeats):
        found = bbvi.gradient_moments(
            self.model,
            self.cohort,
            self.at,
            gradient=self.gradient,
            draws=bbvi.MonteCarlo(self.options["draws"]),
            repeats=repeats,
        )
        # bbvi's parameters are unconstrained: what it calls a mean is a log mean
        named = {theirs: theirs if theirs.endswith("loc") else theirs.replace("_", "_log_") for theirs in PARAMETERS}
        return tuple(
            {named[theirs]: np.asarray(tree[latent][parameter]) for theirs, (latent, parameter) in PARAMETERS.items()}
            for tree in (found.mean, found.variance)
        )


if __name__ == "__main__":
    serve(OurRun, {"bbvi": bbvi.__version__, "jax": jax.__version__})
