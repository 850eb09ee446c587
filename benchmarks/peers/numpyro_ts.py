"""The Gamma-Normal time series in NumPyro: score gradients by TraceGraph_ELBO, pathwise ones by Trace_ELBO.

Labs and patients are plates. Visits are not: with a plate or the axis of a `scan` along them TraceGraph_ELBO would be biased
(docs/numpyro-bias.md). So x of a patient is one site and its drift from visit to visit one `factor`; or, with "sites":
"visits", a Python loop writes a site for each visit, and TraceGraph_ELBO tells them apart.

A stratum is a set of patients padded to the longest of them, in a plate of its own. One stratum is what users write. Five, by
length, with a fifth of the batch from each, waste less on padding. With "shared_batch" all draws see the same batch, handed to
the plates; without it NumPyro's plates choose another batch for each draw.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from cohort import FLOOR, NUM_FACTORS, NUM_LABS, SIGMA_L, VARIANCE_X
from judge import as_log_normal
from numpyro.infer import SVI, Trace_ELBO, TraceGraph_ELBO
from numpyro.infer.autoguide import AutoNormal
from strata import cut, join, sizes, split
from worker import AbstractRun, mean_and_error, serve

GAUSSIANS = ("loc", "log_scale")
GAMMAS = ("log_concentration", "log_mean")


class ScoreNormal(dist.Normal):
    """A Normal whose draws carry no gradient."""

    reparametrized_params = ()


class ScoreGamma(dist.Gamma):
    """A Gamma whose draws carry no gradient."""

    reparametrized_params = ()


def each(strata, take):
    """Every stratum with its number and its plate of patients."""
    for k, (part, size) in enumerate(zip(strata, take, strict=True)):
        yield k, part, numpyro.plate(f"patients_{k}", len(part["length"]), subsample_size=size, dim=-2)


def labs_plate():
    return numpyro.plate("labs", NUM_LABS, dim=-1)


def drift(before):
    mean = jnp.maximum(before, FLOOR)
    return dist.Gamma(mean**2 / VARIANCE_X, mean / VARIANCE_X)


def not_padding(part, rows):
    """Which visits these patients have: patients by 1 by visits by 1."""
    return (jnp.arange(part["labs"].shape[-1]) < part["length"][rows][:, None])[:, None, :, None]


def model(strata, *, take, padding_has_prior):
    with labs_plate():
        weights = numpyro.sample("W", dist.Normal(0, 1).expand([NUM_FACTORS]).to_event(1))
    for k, part, patients in each(strata, take):
        with patients as rows:
            valid = not_padding(part, rows)
            # no density but, for a guide that cannot leave padding out, one on padding that this guide can match
            flat = dist.LogNormal(jnp.zeros((*valid.shape[:-1], NUM_FACTORS)), 1).mask(~valid & padding_has_prior)
            x = numpyro.sample(f"x_{k}", flat.to_event(2))
            before = jnp.concatenate([jnp.ones_like(x[..., :1, :]), x[..., :-1, :]], -2)
            numpyro.factor(f"drift_{k}", jnp.where(valid, drift(before).log_prob(x), 0).sum((-1, -2)))
            with labs_plate():
                offset = numpyro.sample(f"o_{k}", dist.Normal(0, 1))
                loc = x[..., 0, :, :] @ weights.T + offset[..., None, :]
                measured = dist.Normal(jnp.swapaxes(loc, -1, -2), SIGMA_L).mask(part["observed"][rows]).to_event(1)
                numpyro.sample(f"l_{k}", measured, obs=part["labs"][rows])


def model_by_visits(strata, *, take):
    with labs_plate():
        weights = numpyro.sample("W", dist.Normal(0, 1).expand([NUM_FACTORS]).to_event(1))
    for k, part, patients in each(strata, take):
        with patients as rows:
            valid = not_padding(part, rows)
            labs, observed = part["labs"][rows], part["observed"][rows]
            with labs_plate():
                offset = numpyro.sample(f"o_{k}", dist.Normal(0, 1))
            x = jnp.ones(NUM_FACTORS)
            for v in range(labs.shape[-1]):
                moved = drift(x).expand((take[k], 1, NUM_FACTORS)).mask(valid[..., v, :])
                x = numpyro.sample(f"x_{k}_{v}", moved.to_event(1))
                with labs_plate():
                    measured = dist.Normal(x[..., 0, :] @ weights.T + offset, SIGMA_L).mask(observed[..., v])
                    numpyro.sample(f"l_{k}_{v}", measured, obs=labs[..., v])


def parameters(name, which, shape, event_dim):
    return [numpyro.param(f"{name}_{p}", jnp.zeros(shape), event_dim=event_dim) for p in which]


def guide(strata, *, take, normal, gamma, by_visits):
    with labs_plate():
        loc, log_scale = parameters("W", GAUSSIANS, (NUM_LABS, NUM_FACTORS), 1)
        numpyro.sample("W", normal(loc, jnp.exp(log_scale)).to_event(1))
    for k, part, patients in each(strata, take):
        num, num_visits = len(part["length"]), part["labs"].shape[-1]
        with patients as rows:
            valid = not_padding(part, rows)
            log_a, log_mean = parameters(f"x_{k}", GAMMAS, (num, 1, num_visits, NUM_FACTORS), 2)
            a, rate = jnp.exp(log_a), jnp.exp(log_a - log_mean)
            if not by_visits:
                numpyro.sample(f"x_{k}", gamma(a, rate).mask(valid).to_event(2))
            for v in range(num_visits if by_visits else 0):
                at = (..., v, slice(None))
                numpyro.sample(f"x_{k}_{v}", gamma(a[at], rate[at]).mask(valid[at]).to_event(1))
            with labs_plate():
                loc, log_scale = parameters(f"o_{k}", GAUSSIANS, (num, NUM_LABS), 0)
                numpyro.sample(f"o_{k}", normal(loc, jnp.exp(log_scale)))


def seeing(program, **options):
    """The program with its options fixed, as a function of the batch's rows and the strata."""

    def run(rows, strata):
        with numpyro.handlers.substitute(data=rows):
            return program(strata, **options)

    return run


class NumpyroRun(AbstractRun):
    """SVI with one of three estimators: "score", "pathwise" or "auto", the pathwise one of AutoNormal."""

    def __init__(self, data, start, options):
        self.host, self.draws = split(data, options["strata"]), options["draws"]
        self.strata = [{name: jnp.asarray(part[name]) for name in ("labs", "observed", "length")} for part in self.host]
        self.shared, self.method, by_visits = options["shared_batch"], options["method"], options["sites"] == "visits"
        self.start = as_log_normal(start, data) if self.method == "auto" else start
        self.objective = TraceGraph_ELBO if self.method == "score" else Trace_ELBO
        score = self.method == "score"
        normal, gamma = (ScoreNormal, ScoreGamma) if score else (dist.Normal, dist.Gamma)

        def programs(take):
            if self.method == "auto":
                written = seeing(model, take=take, padding_has_prior=True)
                return written, AutoNormal(written)
            q = seeing(guide, take=take, normal=normal, gamma=gamma, by_visits=by_visits)
            if by_visits:
                return seeing(model_by_visits, take=take), q
            return seeing(model, take=take, padding_has_prior=False), q

        self.take = sizes(self.host, options["batch"])
        self.whole = programs([len(part["length"]) for part in self.host])
        optimizer = {"adagrad": lambda rate: numpyro.optim.Adagrad(rate, momentum=0.0), "adam": numpyro.optim.Adam}
        step_size = optimizer[options["optimizer"]](options["rate"])
        svi = SVI(*programs(self.take), step_size, self.objective(num_particles=self.draws))
        self.svi, self.key = svi, jax.random.key(1)
        update = svi.stable_update if self.shared else svi.update  # without a step where a gradient is not finite
        self.update = jax.jit(lambda key, state: update(state, self.rows(key), self.strata))
        self.state = svi.init(jax.random.key(0), {}, self.strata, init_params=self.first_params())

    def rows(self, key):
        """The patients of the batch, for each plate; none where the plates are to choose."""
        keys = jax.random.split(key, len(self.take)) if self.shared else []
        return {
            f"patients_{k}": jax.random.choice(own, len(self.host[k]["length"]), (self.take[k],), replace=False)
            for k, own in enumerate(keys)
        }

    def steps(self, num):
        for _ in range(num):
            self.key, now = jax.random.split(self.key)
            self.state, loss = self.update(now, self.state)
        loss.block_until_ready()
        return num

    def names(self):
        """The judge's name, our own name, and from one to the other and back."""
        if self.method == "auto":
            return [(f"{z}_{p}", (z, f"auto_{p}"), np.asarray, np.asarray) for z in "Wox" for p in ("loc", "scale")]
        logs = [("W_scale", ("W", "log_scale")), ("o_scale", ("o", "log_scale"))]
        logs += [("x_concentration", ("x", "log_concentration")), ("x_mean", ("x", "log_mean"))]
        return [(f"{z}_loc", (z, "loc"), np.asarray, np.asarray) for z in "Wo"] + [
            (*pair, np.log, np.exp) for pair in logs
        ]

    def first_params(self):
        params = {}
        for theirs, (latent, parameter), inwards, _ in self.names():
            if latent == "W":
                params[f"W_{parameter}"] = inwards(self.start[theirs])
                continue
            for k, part in enumerate(self.host):
                value = inwards(cut(self.start[theirs], part))
                params[f"{latent}_{k}_{parameter}"] = value[:, None] if latent == "x" else value
        return jax.tree.map(jnp.asarray, params)

    def gathered(self, params, outwards=True):
        """Our parameters, or their gradients, in the judge's shapes."""
        out = {}
        for theirs, (latent, parameter), _, back in self.names():
            name, back = (theirs, back) if outwards else (f"{latent}_{parameter}", np.asarray)
            if latent == "W":
                out[name] = back(params[f"W_{parameter}"])
                continue
            rows = [back(params[f"{latent}_{k}_{parameter}"]) for k in range(len(self.host))]
            rows = [values[:, 0] for values in rows] if latent == "x" else rows
            like = self.start[theirs] if outwards else np.zeros_like(self.start[theirs])
            out[name] = join(rows, self.host, like)
        return out

    def posterior(self):
        return self.gathered(self.svi.get_params(self.state))

    def elbo(self, repeats):
        loss, params = self.objective().loss, self.svi.get_params(self.state)
        keys = jax.random.split(jax.random.key(2), repeats)
        values = jax.jit(jax.vmap(lambda key: -loss(key, params, *self.whole, {}, self.strata)))(keys)
        return mean_and_error(np.asarray(values))

    def gradients(self, repeats):
        loss, params = self.objective(num_particles=self.draws).loss, self.svi.get_params(self.state)
        one = jax.grad(lambda params, key: -loss(key, params, *self.whole, {}, self.strata))
        keys = jax.random.split(jax.random.key(3), repeats)
        values = jax.jit(lambda keys: jax.lax.map(lambda key: one(params, key), keys))(keys)
        moments = (
            jax.tree.map(lambda v, of=of: np.asarray(of(v)), values)
            for of in (lambda v: v.mean(0), lambda v: v.var(0, ddof=1))
        )
        return tuple(self.gathered(moment, outwards=False) for moment in moments)


if __name__ == "__main__":
    serve(NumpyroRun, {"numpyro": numpyro.__version__, "jax": jax.__version__})
