"""Name what precision cannot hold: the first term of log p that is not finite, and a q narrower than rounding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.blankets.jaxpr.constants import blamed_constant
from bbvi.blankets.scope import Scope
from bbvi.draws.draws import OfGroup, draw_values
from bbvi.draws.tilts import features_at
from bbvi.families.abstract import Lambda
from bbvi.fitting.loop import Loop
from bbvi.model.groups import AbstractGroups
from bbvi.model.model import Values
from bbvi.model.opaque.host import CALL_SITE
from bbvi.model.problem import Terms
from bbvi.numerics.address import Key, fold


def raise_if_not_finite(
    loop: Loop, params: dict[str, Lambda], run_key: Key, data: Any, groups: AbstractGroups | None
) -> None:
    """Evaluate the first step's draws once more and raise at the first term that is not finite."""
    problem, draws, step = loop.analysis.problem, loop.draws, jnp.int32(0)
    blankets = loop.analysis.blankets
    batches = loop.batches.on_one_device()
    batch = batches.gather(params, run_key, step, batches.source(groups, run_key, 0, 1), step)
    key = loop.draws_key(run_key, step)
    samples = jnp.arange(min(draws.num, 1000), dtype=jnp.uint32)
    beta, _ = draw_values(problem, problem.globals, params["globals"], draws=draws, key=key, samples=samples)
    at_samples = functools.partial(jax.vmap, in_axes=-1, out_axes=-1, axis_size=len(samples))
    _check_finite(at_samples(lambda b: problem.prior_terms(b, data))(beta), blankets.prior, (beta,), data)
    if batch is None:
        return
    features = features_at(problem, params["globals"], beta)
    for i, group in enumerate(np.asarray(batch.groups).tolist()):
        row, own, local = jax.tree.map(lambda leaf, i=i: leaf[i], (batch.rows, batch.lengths, batch.params))
        at = fold(key, group)
        of = OfGroup(group, own, features)
        z, _ = draw_values(problem, problem.locals, local, draws=draws, key=at, samples=samples, of=of)
        terms = at_samples(lambda b, z, row=row: problem.group_terms(b, z, row))(beta, z)
        _check_finite(terms, blankets.of_group, (beta, z), row, f" in group {group}")


def _check_finite(terms: Terms, scope: Scope, latents: tuple[Values, ...], constants: Any, where: str = "") -> None:
    for name, term in terms.items():
        array = np.asarray(term)
        bad = ~np.isfinite(array)
        if not bad.any():
            continue
        index = np.argwhere(bad)[0]
        value, sample = array[tuple(index)], index[-1]
        element = [int(i) for i in index[:-1]] or ""
        drawn = tuple({latent: v[..., sample] for latent, v in part.items()} for part in latents)
        values = scope.problem.members({k: v for part in drawn for k, v in part.items() if k != CALL_SITE})
        at = ", ".join(f"{k} = {np.array2string(np.asarray(v), precision=4, threshold=6)}" for k, v in values.items())
        trace = scope.trace
        output = trace.inlined.jaxpr.outvars[trace.outputs.index(name)]
        always = bool(bad[tuple(index[:-1])].all())
        constant = blamed_constant(trace.inlined, trace.inputs(drawn, constants), output, always=always)
        if constant is not None:
            reason = f"{constant}: mask it, or pass the numbers as data, where bbvi.missing(...) masks them"
        elif value == -np.inf:
            reason = "q puts mass where p has none: declare a narrower support, or give an init= inside p's"
        else:
            reason = "check the function for divisions by zero, logs of negative numbers and overflow, or give an init="
        raise ValueError(f"{name}{element} is {value}{where} at a draw from the starting q ({at}); {reason}")


class PrecisionError(ValueError):
    """Floats are too coarse for the answer; `posterior` is what the fit had reached."""

    posterior: Any = None


def narrower_than_rounding(params: Lambda, share: float) -> str | None:
    """Name a latent with a Normal q whose location is rounded by more than a share of its scale; None if there is none."""
    for name, own in params.items():
        if set(own) >= {"loc", "scale"} and np.any(np.spacing(np.abs(own["loc"])) > share * np.exp(own["scale"])):
            return name
    return None
