"""The Gamma-Normal time series in PyMC: mean-field ADVI with minibatches, pathwise gradients.

PyMC's minibatches are of rows of observed data; latents belong to no minibatch. So the data are in long form, a row for each
measurement, a minibatch has as many of them as 25 patients have on average, and every step draws the o and x of all patients
and evaluates their priors. There is no padding. There is no score gradient that knows what reads what, and q(x) is a
log-Normal, since ADVI's q is Normal on the unconstrained space.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from cohort import FLOOR, NUM_FACTORS, NUM_LABS, SIGMA_L, VARIANCE_X
from judge import as_log_normal, visits
from worker import AbstractRun, mean_and_error, serve


def written(data, batch):
    """The model; `batch` measurements in a minibatch, or all of them if it is None."""
    valid = visits(data)
    patient, visit = np.nonzero(valid)
    row, lab = np.nonzero(data["observed"][valid])
    value = data["labs"][valid][row, lab].astype(float)
    columns = (value, row, patient[row], lab)
    with pm.Model() as model:
        weights = pm.Normal("W", 0, 1, shape=(NUM_LABS, NUM_FACTORS))
        offset = pm.Normal("o", 0, 1, shape=(len(valid), NUM_LABS))
        x = pm.HalfFlat("x", shape=(len(patient), NUM_FACTORS))
        before = pt.where((visit > 0)[:, None], pt.roll(x, 1, axis=0), 1.0)
        mean = pt.maximum(before, FLOOR)
        pm.Potential("drift", pm.logp(pm.Gamma.dist(mean**2 / VARIANCE_X, mean / VARIANCE_X), x).sum())
        y, v, p, d = columns if batch is None else pm.Minibatch(*columns, batch_size=batch)
        loc = (x[v] * weights[d]).sum(-1) + offset[p, d]
        pm.Normal("l", loc, SIGMA_L, observed=y, total_size=None if batch is None else len(value))
    return model


class PymcRun(AbstractRun):
    """ADVI's compiled step."""

    def __init__(self, data, start, options):
        self.data, self.valid = data, visits(data)
        self.first = as_log_normal(start, data)
        batch = int(data["observed"].sum() * options["batch"] / len(data["length"]))
        self.inference = self.started(written(data, batch))
        optimizer = {"adagrad": pm.adagrad, "adam": pm.adam}[options["optimizer"]](learning_rate=options["rate"])
        self.step = self.inference.objective.step_function(obj_n_mc=options["draws"], obj_optimizer=optimizer)

    def started(self, model):
        """ADVI of a model at the first q."""
        with model:
            inference = pm.ADVI(random_seed=1)
        group = inference.approx.groups[0]
        for parameter, values in (("mu", "loc"), ("rho", "scale")):
            flat = group.params_dict[parameter].get_value()
            for name, part in group.ordering.items():
                value = self.first[f"{name[0]}_{values}"]
                value = value[self.valid] if name[0] == "x" else value
                flat[part[1]] = np.ravel(value if parameter == "mu" else np.log(np.expm1(value.astype(float))))
            group.params_dict[parameter].set_value(flat)
        return inference

    def steps(self, num):
        for _ in range(num):
            self.step()
        return num

    def posterior(self):
        group, q = self.inference.approx.groups[0], {name: value.copy() for name, value in self.first.items()}
        for parameter, values in (("mu", "loc"), ("rho", "scale")):
            flat = group.params_dict[parameter].get_value()
            flat = flat if parameter == "mu" else np.logaddexp(0, flat)
            for name, part in group.ordering.items():
                target = q[f"{name[0]}_{values}"]
                target[self.valid if name[0] == "x" else ...] = flat[part[1]].reshape(part[2])
        return q

    def elbo(self, repeats):
        whole = self.started(written(self.data, None))
        for parameter, shared in self.inference.approx.groups[0].params_dict.items():
            whole.approx.groups[0].params_dict[parameter].set_value(shared.get_value())
        loss = pm.compile([], whole.objective(None))
        return mean_and_error([-float(loss()) for _ in range(repeats)])


if __name__ == "__main__":
    serve(PymcRun, {"pymc": pm.__version__, "pytensor": pytensor.__version__})
