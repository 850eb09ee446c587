"""Other uses of components: take all that a component has from it, and give it half of what another has.

Optima of mixtures, topics, hidden Markov models and block models differ by this more than by anything else: two components share a
cluster, and one has two clusters. No value by itself leads from one of these to another (Ueda et al. 2000, "SMEM algorithm for
mixture models").
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.families.charts import Categories
from bbvi.families.tree import CodeVectors
from bbvi.model.latents import Latent

_FEWEST_ROWS = 8  # of a component that is parted, and for each component on average
_SURE = 2.0  # times the logits of a centred start: how sure q is of the values after a split
_LEAST = 1e-13  # probabilities are compared by their logarithms


class Split(NamedTuple):
    """The component that loses its rows, the one that is parted, and the values of all rows after both."""

    emptied: int
    parted: int
    values: np.ndarray


def has_components(latent: Latent) -> bool:
    """Tell whether a latent's values may be names of components."""
    return isinstance(latent.family.chart, (Categories, CodeVectors))


def find_splits(p: Float[np.ndarray, "... values"]) -> list[Split]:
    """List the splits of a latent with these probabilities of its values.

    First those that empty a component whose rows other components are nearly as likely to have, and part one whose rows fall into
    two heaps, by the odds of what else they could be.
    """
    log_p = np.log(np.maximum(p.reshape(-1, p.shape[-1]), _LEAST))
    k, value = log_p.shape[1], log_p.argmax(1)
    if len(log_p) < _FEWEST_ROWS * k:
        return []
    upper, gap = zip(*(_halves(log_p, value == own, own) for own in range(k)), strict=True)
    others = np.where(np.arange(k) == value[:, None], -np.inf, log_p)
    loss = np.bincount(value, log_p.max(1) - others.max(1), k)
    by_loss, by_gap = np.argsort(np.argsort(loss)), np.argsort(np.argsort(-np.array(gap)))
    pairs = [(a, b) for a in range(k) for b in range(k) if a != b and gap[b] > 0]
    found = []
    for emptied, parted in sorted(pairs, key=lambda pair: by_loss[pair[0]] + by_gap[pair[1]]):
        after = np.where(value == emptied, others.argmax(1), value)
        after[upper[parted]] = emptied
        found.append(Split(emptied, parted, after.reshape(p.shape[:-1])))
    return found


def at_values(latent: Latent, values: np.ndarray) -> dict[str, Array]:
    """Return parameters of q that are nearly sure of these values."""
    centred = latent.family.centred(jnp.asarray(values))
    assert centred is not None
    return {name: _SURE * leaf for name, leaf in centred.items()}


def _halves(log_p: np.ndarray, of_it: np.ndarray, own: int) -> tuple[np.ndarray, float]:
    """Part the rows of a component along the line on which they differ most; how much of the variance there is between the halves."""
    upper = np.zeros(len(log_p), bool)
    if (num := int(of_it.sum())) < _FEWEST_ROWS:
        return upper, 0.0
    odds = np.delete(log_p[of_it], own, 1) - log_p[of_it][:, [own]]
    odds = odds - odds.mean(0)
    score = odds @ np.linalg.svd(odds, full_matrices=False)[2][0]
    order, count = np.sort(score), np.arange(1, num)
    between = np.cumsum(order)[:-1] ** 2 * num / (count * (num - count))
    best = int(np.argmax(between))
    upper[of_it] = score > order[best]
    return upper, float(between[best] / max(float(order @ order), _LEAST))
