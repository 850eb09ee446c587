"""`reads=`: the latents that an opaque function's terms read, as its author knows them."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sparse

from bbvi.model.opaque.moving import Probe, Slot, Term


def declared(reads: Mapping[str, Any], probe: Probe, label: str) -> np.ndarray:
    """Turn the declaration into a matrix, term elements by factors of q, and refuse one that does not fit."""
    names = [term.name for term in probe.terms]
    if set(reads) != set(names):
        raise ValueError(
            f"{label}: reads= must have an entry for each term and no other; the terms are {names}, it has {list(reads)}"
        )
    known = np.zeros((probe.num_elements, probe.num_factors), bool)
    by_name = {slot.name: slot for slot in probe.slots}
    for term in probe.terms:
        entry = [reads[term.name]] if isinstance(reads[term.name], str) else reads[term.name]
        for latent, given in (entry if isinstance(entry, Mapping) else dict.fromkeys(entry, True)).items():
            if latent not in by_name:
                raise ValueError(
                    f"{label}: reads={{{term.name!r}: ...}} names {latent!r}, but the function's latents are {list(by_name)}"
                )
            known[term.at, by_name[latent].at] = _block(given, term, by_name[latent], label)
    return known


def _block(given: Any, term: Term, slot: Slot, label: str) -> Any:
    """Return True for all, or a matrix; a factor of q that is a vector is read if one of its entries is."""
    if given is True:
        return True
    matrix = np.asarray(given.todense() if sparse.issparse(given) else given)
    count, size = slot.at.stop - slot.at.start, math.prod(slot.latent.event)
    expected = (math.prod(term.shape), count * size)
    if matrix.dtype != bool or matrix.shape != expected:
        raise ValueError(
            f"{label}: reads of {slot.name!r} by term {term.name!r} must be True or a boolean matrix of shape {expected}, "
            f"term elements by latent elements; got {matrix.dtype} of shape {matrix.shape}"
        )
    return matrix.reshape(expected[0], count, size).any(-1)
