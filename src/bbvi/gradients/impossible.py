"""Values of discrete latents that log p rules out: where it is -inf whatever the other latents are, q leaves them out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.draws import MonteCarlo, cut_samples
from bbvi.draws.layout import lay_out
from bbvi.families import Bernoulli, Categorical, OneHot
from bbvi.families.abstract import Lambda
from bbvi.families.tree import NEVER
from bbvi.gradients.every_value import EveryValue
from bbvi.gradients.local_expectation import ValueTable
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run, program

_TRIALS = 64  # draws of all other latents at which log p is -inf, if a value is impossible
_OURS = (Bernoulli, Categorical, OneHot)


def without_impossible_values(
    analysis: Analysis, params: dict[str, Lambda], data: Any, key: Key, batches: Iterable[Batch | None] = (None,)
) -> dict[str, Lambda]:
    """Take impossible values out of independent discrete factors: of globals, or of the groups in these batches.

    So a site that was seen to be occupied is occupied in all draws of q. What only some values of others rule out stays.
    """
    problem, found = analysis.problem, {part: dict(own) for part, own in params.items()}
    compiled: dict[str, Callable[..., Lambda]] = {}
    for part, latents in (("globals", problem.globals), ("locals", problem.locals)):
        if names := [name for name, latent in latents.items() if isinstance(latent.family, _OURS)]:
            compiled[part] = program(_impossible(analysis._replace(wanted=frozenset(names)), names), **for_one_run())
    for batch in batches if compiled else ():
        part, rows = ("globals", ...) if batch is None else ("locals", batch.groups)
        if part not in compiled:
            continue
        for name, of_latent in compiled[part](params["globals"], data, batch, key).items():
            logits = found[part][name]["logits"]
            found[part][name] = {"logits": logits.at[rows].set(_without(logits[rows], of_latent["never"]))}
    return found


def _impossible(analysis: Analysis, names: Sequence[str]) -> Callable[..., Lambda]:
    """Return a function that tells which values of these latents are impossible at all of many draws of the others."""
    one_draw = MonteCarlo(1)
    cut = cut_samples(one_draw, analysis.floats_per_draw)

    def impossible(params: Lambda, data: Any, batch: Batch | None, key: Key) -> Lambda:
        every = EveryValue(analysis, data, names, joint=False)

        def at_draw(number: Array) -> Lambda:
            at = fold(key, "possible", number)
            layout = lay_out(analysis, one_draw, params, batch, at, cut, paths=False)
            log_q = {n: ValueTable(t.drawer.latent.family, t.rows).log_q for n, t in layout.fitted.items()}
            samples = jnp.zeros(1, jnp.uint32)
            u = {name: layout.drawn(name, samples) for name in layout.tables}
            # differences from the value that was drawn, which may be impossible itself
            sums = every(layout, u, log_q, samples, None)[2]
            rises = {name: jnp.isposinf(leaf) for name, leaf in sums.items()}
            never = {n: jnp.isneginf(sums[n]) | (up.any(-1, keepdims=True) & ~up) for n, up in rises.items()}
            shaped = layout.in_shape({name: {"never": leaf} for name, leaf in never.items()})
            return shaped["globals" if batch is None else "rows"]

        return jax.tree.map(lambda leaf: leaf.all(0), jax.lax.map(at_draw, jnp.arange(_TRIALS, dtype=jnp.uint32)))

    return impossible


def _without(logits: Array, never: Bool[Array, "*factors values"]) -> Array:
    """Give these values no probability, in every factor that has others."""
    never &= ~never.all(-1, keepdims=True)
    if logits.shape == never.shape:
        return jnp.where(never, NEVER, logits)
    return jnp.where(never[..., 1], NEVER, jnp.where(never[..., 0], -NEVER, logits))  # of a binary latent
