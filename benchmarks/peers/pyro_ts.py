"""The Gamma-Normal time series in Pyro: score gradients by TraceGraph_ELBO with vectorised particles.

Sites, plates and strata as in numpyro_ts.py. Pyro runs eagerly, so a stratum is cut to the longest patient of its batch, at
no cost of compiling. With "shared_batch", which is Pyro at its best, validation is off and W has Pyro's decaying average of
the cost as a baseline; a patient's sites have none, since Pyro keeps it by a site's place in the batch.
"""

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from cohort import FLOOR, NUM_FACTORS, NUM_LABS, SIGMA_L, VARIANCE_X
from pyro.infer import SVI, TraceGraph_ELBO
from strata import cut, join, sizes, split
from worker import AbstractRun, mean_and_error, serve

PARAMETERS = {
    "W_loc": ("W_loc", False), "W_scale": ("W_log_scale", True), "o_loc": ("o_loc", False), "o_scale": ("o_log_scale", True),
    "x_concentration": ("x_log_concentration", True), "x_mean": ("x_log_mean", True),
}  # fmt: skip
BASELINE = {"baseline": {"use_decaying_avg_baseline": True, "baseline_beta": 0.9}}


class ScoreNormal(dist.Normal):
    """A Normal whose draws carry no gradient."""

    has_rsample = False


class ScoreGamma(dist.Gamma):
    """A Gamma whose draws carry no gradient."""

    has_rsample = False


def labs_plate():
    return pyro.plate("labs", NUM_LABS, dim=-1)


def patients_plate(k, part, rows, size):
    chosen = {"subsample_size": size} if rows is None else {"subsample": rows[k]}
    return pyro.plate(f"patients_{k}", len(part["length"]), dim=-2, **chosen)


def not_padding(part, rows):
    """Which visits these patients have, up to the longest of them: patients by 1 by visits by 1."""
    length = part["length"][rows]
    return (torch.arange(int(length.max())) < length[:, None])[:, None, :, None]


def drift(before):
    mean = before.clamp(min=FLOOR)
    return dist.Gamma(mean**2 / VARIANCE_X, mean / VARIANCE_X)


class Programs:
    """The model and the guide of these strata, as functions of the rows of the batch."""

    def __init__(self, strata, first, take, *, baseline):
        self.strata, self.first, self.take, self.baseline = strata, first, take, baseline

    def model(self, rows):
        labs = labs_plate()
        with labs:
            weights = pyro.sample("W", dist.Normal(0.0, 1.0).expand([NUM_FACTORS]).to_event(1))
        for k, part in enumerate(self.strata):
            with patients_plate(k, part, rows, self.take[k]) as own:
                valid = not_padding(part, own)
                num_visits = valid.shape[-2]
                flat = dist.LogNormal(torch.zeros(len(own), 1, num_visits, NUM_FACTORS), 1.0).mask(False)
                x = pyro.sample(f"x_{k}", flat.to_event(2))
                before = torch.cat([torch.ones_like(x[..., :1, :]), x[..., :-1, :]], -2)
                moved = torch.where(valid, drift(before).log_prob(x), torch.zeros(()))
                pyro.factor(f"drift_{k}", moved.sum((-1, -2)))
                with labs:
                    offset = pyro.sample(f"o_{k}", dist.Normal(0.0, 1.0))
                    # (..., patients, 1, visits, factors) and (..., 1, labs, factors) to patients by labs by visits
                    loc = weights @ x.squeeze(-3).transpose(-1, -2) + offset[..., None]
                    observed = part["observed"][own][..., :num_visits]
                    measured = dist.Normal(loc, SIGMA_L).mask(observed).to_event(1)
                    pyro.sample(f"l_{k}", measured, obs=part["labs"][own][..., :num_visits])

    def guide(self, rows):
        labs = labs_plate()
        with labs:
            loc, log_scale = self.parameters("W", ("loc", "log_scale"), 1)
            pyro.sample("W", ScoreNormal(loc, log_scale.exp()).to_event(1), infer=BASELINE if self.baseline else {})
        for k, part in enumerate(self.strata):
            with patients_plate(k, part, rows, self.take[k]) as own:
                valid = not_padding(part, own)
                both = self.parameters(f"x_{k}", ("log_concentration", "log_mean"), 2)
                log_a, log_mean = (p[..., : valid.shape[-2], :] for p in both)
                q = ScoreGamma(log_a.exp(), (log_a - log_mean).exp()).mask(valid)
                pyro.sample(f"x_{k}", q.to_event(2))
                with labs:
                    loc, log_scale = self.parameters(f"o_{k}", ("loc", "log_scale"), 0)
                    pyro.sample(f"o_{k}", ScoreNormal(loc, log_scale.exp()))

    def parameters(self, site, which, event_dim):
        return [
            pyro.param(f"{site}_{p}", lambda p=p: self.first[f"{site}_{p}"].clone(), event_dim=event_dim) for p in which
        ]


def objective(draws):
    return TraceGraph_ELBO(num_particles=draws, vectorize_particles=True, max_plate_nesting=2)


class PyroRun(AbstractRun):
    """SVI with Pyro's own optimisers."""

    def __init__(self, data, start, options):
        self.host, self.start, self.draws = split(data, options["strata"]), start, options["draws"]
        self.shared, self.rng = options["shared_batch"], np.random.default_rng(0)
        pyro.set_rng_seed(0)
        pyro.enable_validation(not self.shared)
        strata = [{name: torch.as_tensor(part[name]) for name in ("labs", "observed", "length")} for part in self.host]
        self.take, first = sizes(self.host, options["batch"]), self.first_params()
        self.programs = Programs(strata, first, self.take, baseline=self.shared)
        self.whole = Programs(strata, first, [len(part["length"]) for part in self.host], baseline=False)
        optimizer = {"adagrad": pyro.optim.Adagrad, "adam": pyro.optim.Adam}[options["optimizer"]]
        step_size = optimizer({"lr": options["rate"]})
        self.svi = SVI(self.programs.model, self.programs.guide, step_size, objective(self.draws))

    def rows(self):
        if not self.shared:
            return None
        chosen = [
            self.rng.choice(len(p["length"]), n, replace=False) for p, n in zip(self.host, self.take, strict=True)
        ]
        return [torch.as_tensor(rows) for rows in chosen]

    def steps(self, num):
        for _ in range(num):
            self.svi.step(self.rows())
        return num

    def first_params(self):
        params = {}
        for theirs, (name, log) in PARAMETERS.items():
            value = np.log(self.start[theirs]) if log else self.start[theirs]
            if name.startswith("W"):
                params[name] = torch.as_tensor(value)
                continue
            for k, part in enumerate(self.host):
                rows = cut(value, part)
                params[f"{name[0]}_{k}{name[1:]}"] = torch.as_tensor(rows[:, None] if name[0] == "x" else rows)
        return params

    def gathered(self, params, *, outwards):
        """Our parameters by the judge's names or, as gradients, by our own; in the judge's shapes."""
        out = {}
        for theirs, (name, log) in PARAMETERS.items():
            like = self.start[theirs] if outwards else np.zeros_like(self.start[theirs])
            if name.startswith("W"):
                value = params[name]
            else:
                rows = [params[f"{name[0]}_{k}{name[1:]}"] for k in range(len(self.host))]
                value = join([r[:, 0] for r in rows] if name[0] == "x" else rows, self.host, like)
            out[theirs if outwards else name] = np.exp(value) if log and outwards else value
        return out

    def params(self):
        if not self.store():
            self.whole.guide(None)
        return {name: value.detach().numpy().copy() for name, value in self.store().items()}

    def store(self):
        return dict(pyro.get_param_store().items())

    def posterior(self):
        return self.gathered(self.params(), outwards=True)

    def elbo(self, repeats):
        loss = objective(100)
        return mean_and_error(
            [-loss.loss(self.whole.model, self.whole.guide, None) for _ in range(max(2, repeats // 100))]
        )

    def gradients(self, repeats):
        loss, kept = objective(self.draws), []
        self.params()
        for _ in range(repeats):
            loss.loss_and_grads(self.whole.model, self.whole.guide, None)
            kept.append({name: -value.grad.numpy().copy() for name, value in self.unconstrained()})
            for _, value in self.unconstrained():
                value.grad = None
        stacked = {name: np.stack([values[name] for values in kept]) for name in kept[0]}
        moments = ({n: v.mean(0) for n, v in stacked.items()}, {n: v.var(0, ddof=1) for n, v in stacked.items()})
        return tuple(self.gathered(moment, outwards=False) for moment in moments)

    def unconstrained(self):
        return pyro.get_param_store().named_parameters()


if __name__ == "__main__":
    serve(PyroRun, {"pyro": pyro.__version__, "torch": torch.__version__})
