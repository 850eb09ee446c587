"""Put groups of similar length into buckets, each padded to its longest group, so that a step pays for little padding."""

from collections.abc import Mapping

import numpy as np

_MOST_BUCKETS = 4
_MOST_CUTS = 200
# a further bucket has to be compiled: it must save this share of the rows
_WORTH = 0.04


def find_buckets(own: Mapping[str, np.ndarray]) -> tuple[tuple[dict[str, int], ...], np.ndarray]:
    """Choose the buckets: their padded lengths, the longest last, and the bucket of each group.

    `own` has each group's length of each axis. Groups are ordered by their total length and cut where the fewest
    rows are padding.
    """
    axes = list(own)
    lengths = np.stack([np.asarray(own[axis], int) for axis in axes])
    total = lengths.sum(0)
    cuts = np.unique(np.quantile(total, np.linspace(0, 1, _MOST_CUTS), method="inverted_cdf"))
    of_cut = np.searchsorted(cuts, total)
    longest = np.zeros((len(axes), len(cuts)), int)
    np.maximum.at(longest.T, of_cut, lengths.T)
    ends = _cut(np.bincount(of_cut, minlength=len(cuts)), longest)
    bucket = np.searchsorted(ends, of_cut)
    padded = [np.maximum(lengths[:, bucket == b].max(1), 1) for b in range(len(ends))]
    # the last is the longest of every axis: all groups fit into it
    padded[-1] = np.maximum(lengths.max(1), 1)
    return tuple({a: int(n) for a, n in zip(axes, row, strict=True)} for row in padded), bucket


def _cut(counts: np.ndarray, longest: np.ndarray) -> list[int]:
    """Choose the last cut of each bucket, with as few buckets as will do."""
    num = len(counts)
    cost = np.full((num, num), np.inf)
    for first in range(num):
        together = np.cumsum(counts[first:])
        cost[first, first:] = together * np.maximum.accumulate(longest[:, first:], axis=1).sum(0)
    best, back = [cost[0]], []
    for _ in range(min(_MOST_BUCKETS, num) - 1):
        # best[k][j]: the rows of k + 1 buckets that end with cut j
        options = np.concatenate([[np.inf], best[-1][:-1]])[:, None] + cost
        back.append(np.argmin(options, axis=0))
        best.append(np.min(options, axis=0))
    chosen = 0
    for k in range(1, len(best)):
        if best[k][-1] < (1 - _WORTH) * best[chosen][-1]:
            chosen = k
    ends = [num - 1]
    for k in range(chosen, 0, -1):
        ends.append(int(back[k - 1][ends[-1]]) - 1)
    return ends[::-1]
