"""`reads=`: the latents that an opaque function's terms read, as its author knows them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sparse

from bbvi.model.opaque.moving import Slot, Term


def declared(reads: Mapping[str, Any], terms: list[Term], slots: list[Slot], label: str) -> np.ndarray:
    """Turn the declaration into a matrix, term elements by factors of q, and refuse one that does not fit."""
    names = [term.name for term in terms]
    if set(reads) != set(names):
        raise ValueError(
            f"{label}: reads= must have an entry for each term and no other; the terms are {names}, it has {list(reads)}"
        )
    known = np.zeros((terms[-1].end, slots[-1].end if slots else 0), bool)
    by_name = {slot.name: slot for slot in slots}
    for term in terms:
        entry = reads[term.name]
        if isinstance(entry, str):
            entry = [entry]
        whole = entry if isinstance(entry, Mapping) else dict.fromkeys(entry, True)
        for latent, given in whole.items():
            if latent not in by_name:
                raise ValueError(
                    f"{label}: reads={{{term.name!r}: ...}} names {latent!r}, but the function's latents are {list(by_name)}"
                )
            slot = by_name[latent]
            known[term.begin : term.end, slot.begin : slot.end] = _block(given, term, slot, label)
    return known


def _block(given: Any, term: Term, slot: Slot, label: str) -> Any:
    """Return True for all, or a matrix; a factor of q that is a vector is read if one of its entries is."""
    if given is True:
        return True
    matrix = np.asarray(given.todense() if sparse.issparse(given) else given)
    count = slot.end - slot.begin
    size = int(np.prod(slot.latent.event))
    expected = (term.end - term.begin, count * size)
    if matrix.dtype != bool or matrix.shape != expected:
        raise ValueError(
            f"{label}: reads of {slot.name!r} by term {term.name!r} must be True or a boolean matrix of shape {expected}, "
            f"term elements by latent elements; got {matrix.dtype} of shape {matrix.shape}"
        )
    return matrix.reshape(expected[0], count, size).any(-1)
