"""The Gamma-Normal time series in PyMC: mean-field ADVI with minibatches, pathwise gradients.

PyMC's minibatches are of rows of observed data; latents belong to no minibatch. So the data are in long form, a row for each
measurement, a minibatch has as many of them as 25 patients have on average, and every step draws the o and x of all patients
and evaluates their priors. There is no padding. There is no score gradient that knows what reads what, and q(x) is a
log-Normal, since ADVI's q is Normal on the unconstrained space.

pm.Minibatch compiles with one draw a step and not with more, in PyMC 5.28, so the minibatch is drawn here and handed over in
shared variables.
"""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from cohort import FLOOR, NUM_FACTORS, NUM_LABS, SIGMA_L, VARIANCE_X
from judge import as_log_normal, visits
from worker import AbstractRun, mean_and_error, serve


def long_form(data):
    """A row for each measurement: its value, and the numbers of its visit among all visits, its patient and its lab."""
    valid = visits(data)
    patient, _ = np.nonzero(valid)
    row, lab = np.nonzero(data["observed"][valid])
    return data["labs"][valid][row, lab].astype(float), row, patient[row], lab


def written(data, columns, total):
    """The model of some measurements, `columns`, that stand for `total` of them."""
    valid = visits(data)
    _, visit = np.nonzero(valid)
    with pm.Model() as model:
        weights = pm.Normal("W", 0, 1, shape=(NUM_LABS, NUM_FACTORS))
        offset = pm.Normal("o", 0, 1, shape=(len(valid), NUM_LABS))
        x = pm.HalfFlat("x", shape=(len(visit), NUM_FACTORS))
        before = pt.where((visit > 0)[:, None], pt.roll(x, 1, axis=0), 1.0)
        mean = pt.maximum(before, FLOOR)
        pm.Potential("drift", pm.logp(pm.Gamma.dist(mean**2 / VARIANCE_X, mean / VARIANCE_X), x).sum())
        value, row, patient, lab = columns
        loc = (x[row] * weights[lab]).sum(-1) + offset[patient, lab]
        pm.Normal("l", loc, SIGMA_L, observed=value, total_size=total)
    return model


class PymcRun(AbstractRun):
    """ADVI's compiled step."""

    def __init__(self, data, start, options):
        self.data, self.valid = data, visits(data)
        self.first = as_log_normal(start, data)
        self.columns, self.rng = long_form(data), np.random.default_rng(0)
        self.total = len(self.columns[0])
        self.batch = int(self.total * options["batch"] / len(data["length"]))
        self.shared = [pytensor.shared(column) for column in self.minibatch()]
        self.inference = self.started(written(data, self.shared, self.total))
        optimizer = {"adagrad": pm.adagrad, "adam": pm.adam}[options["optimizer"]](learning_rate=options["rate"])
        # score=True as in pm.fit: a step without outputs draws the same random numbers over and over
        self.step = self.inference.objective.step_function(
            obj_n_mc=options["draws"], obj_optimizer=optimizer, score=True
        )

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

    def minibatch(self):
        chosen = self.rng.integers(self.total, size=self.batch)
        return [column[chosen] for column in self.columns]

    def steps(self, num):
        for _ in range(num):
            for variable, column in zip(self.shared, self.minibatch(), strict=True):
                variable.set_value(column)
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
        whole = self.started(written(self.data, self.columns, None))
        for parameter, shared in self.inference.approx.groups[0].params_dict.items():
            whole.approx.groups[0].params_dict[parameter].set_value(shared.get_value())
        loss = pm.compile([], whole.objective(None))
        return mean_and_error([-float(loss()) for _ in range(repeats)])


if __name__ == "__main__":
    serve(PymcRun, {"pymc": pm.__version__, "pytensor": pytensor.__version__})
