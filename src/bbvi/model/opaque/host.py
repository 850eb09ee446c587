"""The host's side of an opaque function: what `jax.pure_callback` calls from inside the compiled loop.

No JAX computation may happen there: the loop that waits for the answer holds the device.
"""

import functools
import math
import operator
import threading
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse

from bbvi.model.latents import Latent
from bbvi.model.opaque.calls import Caller, Failure, Form, OpaqueError, Segment, run
from bbvi.model.opaque.declared import declared
from bbvi.model.opaque.function import Opaque
from bbvi.model.opaque.learn import check_vectorized, learn
from bbvi.model.opaque.moving import Probe, arguments, breach, check_declared, find, find_slots, observe, single_moves
from bbvi.model.opaque.workers import as_workers, in_workers

#: the name under which the site of a call travels beside the latents (a latent's own name has no slash)
CALL_SITE = "/call site"
#: its words: a random one for the seed, the sample's number, the group's number
CALL_SITE_WORDS = 3

#: values of the latents, by the arguments of a function
Parts = Sequence[dict[str, Any]]

_RECHECKED = 2
_MOST_PAIRS = 500_000_000


class Host:
    """An opaque function bound to data: what it returns, how it is called, what its terms read, what went wrong.

    `latents` are those of each of its arguments, `rows` the further argument of a few groups (one empty tuple if
    there is none), `constant` a last argument that is always the same.
    """

    def __init__(
        self,
        opaque: Opaque,
        name: str,
        latents: tuple[Mapping[str, Latent], ...],
        *,
        lengths: dict[str, int],
        rows: list[tuple[Any, ...]],
        constant: tuple[Any, ...],
        same_lengths: bool,
        lock: threading.Lock,
    ):
        self.label, self._lock = f"{name}, {opaque!r}", lock
        self._constant, self._reads, self._word = constant, opaque.reads, np.uint32(zlib.crc32(name.encode()))
        self._failure: OpaqueError | None = None
        self._seeds = np.arange(1, 3, dtype=np.uint32) if opaque.stochastic else None
        slots, generator = find_slots(latents, lengths), np.random.default_rng(0)
        first = Segment(arguments(latents, [slot.some(2, generator) for slot in slots]), rows[0], self._seeds, 2)
        terms, self._structure = learn(opaque.function, first, constant, self.label, vectorized=opaque.vectorized)
        shapes = tuple(term.shape for term in terms)
        self._form = Form(shapes, np.dtype(jnp.result_type(float)), opaque.vectorized)
        if opaque.vectorized:
            check_vectorized(opaque.function, first, constant, self.label, form=self._form)
        self._caller: Caller = functools.partial(run, opaque.function, constant)
        if opaque.executor is not None:
            self._caller = in_workers(as_workers(opaque.executor), opaque.function, constant, self.label)
            # start the workers here and now: a first call that cannot be made there is better known before the loop
            if isinstance(outcome := self._caller([first.cut(0, 1)], self._form), Failure):
                raise self._error(outcome)
        seed = None if self._seeds is None else self._seeds[:1]
        self._probe = Probe(latents, slots, terms, rows, same_lengths, self._one_by_one, seed)

    def traced(self, *given: Any) -> Any:
        """Stand for the function in a trace: return its terms, in the structure it returns."""
        num = len(self._probe.latents)
        values = functools.reduce(operator.or_, given[:num])
        site = values.get(CALL_SITE, jnp.zeros(CALL_SITE_WORDS, jnp.uint32))
        latents = arguments(self._probe.latents, self._in_slots(values))
        # what never changes stays here, and is not handed through the device at each step
        row = () if self._constant else given[num:]
        shapes = [jax.ShapeDtypeStruct(shape, self._form.dtype) for shape in self._form.shapes]
        terms = jax.pure_callback(self, shapes, site, latents, row, vmap_method="expand_dims")
        return jax.tree.unflatten(self._structure, terms)

    def __call__(self, site: Any, latents: Any, row: Any) -> list[np.ndarray]:
        """Answer the compiled loop: arrays with some axes in front, 1 long where an argument does not vary."""
        site, latents, row = jax.tree.map(np.asarray, (site, latents, row))
        num = site.ndim - 1
        batch = np.broadcast_shapes(*(leaf.shape[:num] for leaf in jax.tree.leaves((site, latents, row))))
        with self._lock:
            if self._failure is None:
                outcome = self._caller(self._segments(site, latents, row, batch), self._form)
                if not isinstance(outcome, Failure):
                    return [array.reshape((*batch, *array.shape[1:])) for array in outcome]
                self._failure = self._error(outcome)
        # the gradient is then not finite, and the loop stops at its last good step
        return [np.full((*batch, *shape), np.nan, self._form.dtype) for shape in self._form.shapes]

    def take_failure(self) -> OpaqueError | None:
        """Return what went wrong since this was last asked."""
        failure, self._failure = self._failure, None
        return failure

    @functools.cached_property
    def known(self) -> np.ndarray:
        """Which term elements read which factors of q, declared or found by moving them."""
        probe = self._probe
        if probe.num_elements * probe.num_factors > _MOST_PAIRS:
            raise ValueError(
                f"{self.label} returns {probe.num_elements} term elements, and its latents have {probe.num_factors}: too many "
                "pairs to keep; return fewer terms, for example sums of those that read the same latents"
            )
        if self._reads is None:
            return find(probe)
        known = declared(self._reads, probe, self.label)
        if (found := check_declared(probe, known)) is not None:
            raise ValueError(f"{self.label}: {found}, which reads= does not declare; add it there")
        return known

    @property
    def dependence(self) -> list[sparse.csr_array]:
        """Which elements of the callback's concatenated arguments the elements of each result read."""
        of_slots = [np.repeat(self.known[:, slot.at], math.prod(slot.latent.event), 1) for slot in self._probe.slots]
        row = 0 if self._constant else sum(np.size(leaf) for leaf in jax.tree.leaves(self._probe.rows[0]))
        before, after = (sparse.csr_array((len(self.known), num), dtype=bool) for num in (CALL_SITE_WORDS, row))
        whole = sparse.csr_array(sparse.hstack([before, *map(sparse.csr_array, of_slots), after]))
        return [sparse.csr_array(whole[term.at]) for term in self._probe.terms]

    def recheck(self, base: Parts, other: Parts, row: Any, seed: int) -> str | None:
        """Move one or two factors between these values; describe a change of a term that does not read them, if any."""
        moves = single_moves(self._probe, self.known, np.random.default_rng(seed), _RECHECKED)
        if not len(moves):
            return None
        rows = () if self._constant or len(self._probe.latents) == 1 else (row,)
        one, two = (self._in_slots(functools.reduce(operator.or_, parts)) for parts in (base, other))
        return breach(self._probe, self.known, observe(self._probe, rows, one, two, moves), moves)

    def _in_slots(self, values: Mapping[str, Any]) -> list[Any]:
        return [values[slot.name] for slot in self._probe.slots]

    def _one_by_one(self, segment: Segment) -> np.ndarray:
        """Call one by one, `(calls, term elements)`: batches could round otherwise, and exact equality is asked here."""
        single = [segment.cut(i, i + 1) for i in range(segment.num)] if self._form.vectorized else [segment]
        with self._lock:
            outcome = self._caller(single, self._form)
        if isinstance(outcome, Failure):
            raise self._error(outcome)
        return np.concatenate([array.reshape(len(array), -1) for array in outcome], axis=1)

    def _segments(self, site: np.ndarray, latents: Any, row: Any, batch: tuple[int, ...]) -> list[Segment]:
        """Cut a batch into one segment for each group."""
        num = site.ndim - 1
        # the axis of samples is the last, if the rows do not vary along it
        if not num or any(leaf.shape[num - 1] > 1 for leaf in jax.tree.leaves(row)):
            site, latents, row = jax.tree.map(lambda leaf: np.expand_dims(leaf, num), (site, latents, row))
            batch = (*batch, 1)
        segments = []
        for group in np.ndindex(batch[:-1]):

            def own(leaf: np.ndarray, group: tuple[int, ...] = group) -> np.ndarray:
                return leaf[tuple(i if size > 1 else 0 for i, size in zip(group, leaf.shape, strict=False))]

            sites, z, of_row = jax.tree.map(own, (site, latents, row))
            seeds = None if self._seeds is None else sites[:, 0] ^ self._word
            segments.append(Segment(z, jax.tree.map(lambda leaf: leaf[0], of_row), seeds, batch[-1], sites))
        return segments

    def _error(self, failure: Failure) -> OpaqueError:
        one = failure.call
        values = {name: leaf[0] for part in one.latents for name, leaf in part.items()}
        at = ", ".join(f"{n} = {np.array2string(value, precision=4, threshold=6)}" for n, value in values.items())
        where = ""
        if one.sites is not None:
            _, sample, group = one.sites[0]
            where = f"in sample {sample}" + (f" of group {group}, " if one.row else ", ")
        error = OpaqueError(f"{self.label} failed {where}at {at}: {failure.reason}")
        error.add_note(failure.trace)
        return error
