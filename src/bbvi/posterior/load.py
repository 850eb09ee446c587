"""Read a posterior from a file."""

import os
from typing import Any

import jax
import jax.numpy as jnp

from bbvi.model.joint import read_block
from bbvi.model.model import AnyModel, structured
from bbvi.model.problem import Problem
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.pareto import Khat
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.ratios import Estimate, bind_again
from bbvi.posterior.storage import check_same_model, read, unflatten


def load(path: str | os.PathLike[str], model: AnyModel, data: Any = None) -> Posterior:
    """Read a posterior written by `Posterior.save`, for the same model.

    Examples:
        >>> import bbvi, tempfile, os, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
        >>> path = os.path.join(tempfile.mkdtemp(), "posterior.npz")
        >>> posterior.save(path)
        >>> bool(bbvi.load(path, model).mean()["mu"] == posterior.mean()["mu"])
        True
    """
    header, arrays = read(path, "posterior")
    if getattr(model, "is_open", False):
        model = structured(model, [read_block(block) for block in header.get("structure", ())])
    check_same_model(path, header["model"], model)
    tree = unflatten(arrays)
    problem = Problem(model, header["padded"], header["num_groups"])
    flat, groups = None, None
    if data is not None:
        problem, flat, groups = bind_again(path, problem, data)
    params = {part: jax.tree.map(jnp.asarray, tree["params"].get(part, {})) for part in ("globals", "locals")}
    for part, rows in (("globals", ()), ("locals", (problem.num_groups,))):
        entries = {name: x.family.parameters().items() for name, x in model.factors[part].items()}
        shapes = {n: {p: (*rows, *problem.shape(n), *x.raw_shape()) for p, x in own} for n, own in entries.items()}
        if jax.tree.map(jnp.shape, params[part]) != shapes:
            raise ValueError(f"{path} holds parameters of other names or shapes than those of this model")
    return Posterior(
        problem, params, data=flat, groups=groups, lengths=tree.get("lengths", {}), history=[tree["history"]],
        without_data=header["has_data"] and data is None, outcome=Outcome(header["outcome"]), stopped=header["stopped"],
        estimators=header["estimators"], khat=Khat(**header["khat"]) if header.get("khat") else None,
        restarts=[Estimate(*pair) for pair in header.get("restarts", ())],
    )  # fmt: skip
