"""A NumPyro function with its arguments, and the latents found in it at a draw from its prior."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

from bbvi.blankets.read_sets import empty, matrix
from bbvi.blankets.reads import reads
from bbvi.bridges.numpyro_sites import Plate, Replay, Site, Statement
from bbvi.bridges.numpyro_supports import Declared, declared, layers, leaves_of, mask_of
from bbvi.model.declare import real
from bbvi.model.latents import Latent

_AS_IT_IS = Declared(real)


class Function:
    """A NumPyro function with its arguments by name."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._fn, self._bound = fn, inspect.signature(fn).bind(*args, **kwargs)
        kinds = {name: p.kind for name, p in self._bound.signature.parameters.items()}
        self._rest = next((n for n, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
        named = dict(self._bound.arguments)
        #: what it was called with, by the names of its parameters
        self.arguments: dict[str, Any] = named | named.pop(self._rest, {})

    def replay(
        self,
        sites: Mapping[str, Site],
        arranged: Mapping[str, Any],
        dropped: Mapping[str, Any],
        *,
        given: Mapping[str, Any] | None = None,
        plate: Plate | None = None,
        key: Any = None,
    ) -> Replay:
        """Run it with these values of latents, some arguments replaced; a key draws the other latents from their prior."""
        now = self.arguments | dict(given or {})
        own = {name: now[name] for name in self._bound.arguments if name != self._rest}
        if self._rest in self._bound.arguments:
            own[self._rest] = {name: now[name] for name in self._bound.arguments[self._rest]}
        call = inspect.BoundArguments(self._bound.signature, own)
        replay = Replay(self._fn if key is None else handlers.seed(self._fn, key), sites, arranged, dropped, plate)
        replay(*call.args, **call.kwargs)
        return replay

    def at(self, values: Mapping[str, Any], dropped: Mapping[str, Any], **how: Any) -> Replay:
        """Run it with these values of statements, on their own supports."""
        return self.replay({name: Site(name, name, (), _AS_IT_IS) for name in values}, values, dropped, **how)


class Found(NamedTuple):
    """The latents of a function, the values of statements that are left out, and all statements with their log densities."""

    sites: dict[str, Site]
    latents: dict[str, Latent]
    dropped: dict[str, Any]
    statements: dict[str, Statement]
    terms: dict[str, Any]
    sizes: dict[str, int]

    @property
    def observed(self) -> list[str]:
        """The statements with data."""
        return [name for name, s in self.statements.items() if is_observation(s)]


def is_observation(statement: Statement) -> bool:
    """Tell whether a statement has data, and is no factor."""
    return statement.is_observed and not isinstance(list(layers(statement.fn))[-1], dist.Unit)


@contextmanager
def traced() -> Iterator[None]:
    """Say what to do where a function cannot be traced."""
    try:
        yield
    except jax.errors.JAXTypeError as error:
        raise TypeError(
            "from_numpyro: the function chooses what to do by the value of a latent, which JAX cannot trace: write jnp.where, "
            f"or lax.cond, in place of `if`, and jnp in place of np. JAX says: {str(error).splitlines()[0]}"
        ) from error


def find(function: Function, plate: str | None) -> Found:
    """Find the latents of a function; those in the plate are of one of its elements."""
    with traced():
        first = function.replay({}, {}, {}, key=jax.random.key(0))
    random = {
        name: statement
        for name, statement in first.statements.items()
        if statement.is_latent and not isinstance(list(layers(statement.fn))[-1], dist.Delta)
    }
    moving = _moving(function, random)
    masks = {name: mask_of(s.fn, np.shape(s.value)) for name, s in random.items()}
    partial = {n: m for n, m in masks.items() if m is not True and (not np.all(m) or n.endswith("_unobserved"))}
    needed, idle = _needed(function, random, partial) if partial else ({}, [])
    dropped = {name: np.asarray(random[name].value) for name in idle}
    sites, latents = {}, {}
    for name, statement in random.items():
        if name not in dropped:
            site, latent = _site(name, statement, needed.get(name), name in moving, plate)
            if site.latent in latents:
                raise ValueError(f"from_numpyro: {name!r} needs the name {site.latent!r}, which is taken; rename one")
            sites[name], latents[site.latent] = site, latent
    return Found(sites, latents, dropped, first.statements, first.terms, first.sizes)


def _site(name: str, s: Statement, needed: Any, moves: bool, plate: str | None) -> tuple[Site, Latent]:
    """Make a latent for a statement; `needed` marks the elements of a masked one that a density reads."""
    shape, batch_ndim = np.shape(s.value), np.ndim(s.value) - s.fn.event_dim
    support = declared(name, s.fn, shape, moves=moves)
    latent = name.replace("/", ".") + "_unconstrained" * support.transformed
    latent += "_" * (latent == "joint")  # a setting of bbvi.Model
    axis = batch_ndim + s.plates[plate] if plate is not None and plate in s.plates else None
    if support.transformed:
        shape = (*shape[:batch_ndim], *support.event)
    factors = shape[: len(shape) - len(support.event)]
    if needed is None or np.all(needed):
        own = tuple(size for k, size in enumerate(factors) if k != axis)
        return Site(name, latent, shape, support, axis), support.of_shape(*own)
    if support.transformed or axis is not None:
        where = f"inside the plate {plate!r} of groups" if axis is not None else "on a support without a latent of ours"
        raise ValueError(
            f"from_numpyro: {name!r} is masked in some of its elements, {where}, and other statements read it; give the missing "
            "values a statement of their own"
        )
    kept = np.flatnonzero(needed.reshape(int(np.prod(factors)), -1).any(1))
    filling = np.asarray(s.value)
    return Site(name, latent, shape, support, None, kept, filling), support.of_shape(len(kept))


def _moving(function: Function, random: Mapping[str, Statement]) -> set[str]:
    """Find the statements whose support depends on latents."""
    bounded = [name for name, s in random.items() if leaves_of(s.fn.support)]
    if not bounded:
        return set()

    def bounds(values: Mapping[str, Any], _: Any) -> dict[str, list[Any]]:
        found = function.at(values, {}).statements
        return {name: [jnp.asarray(leaf) for leaf in leaves_of(found[name].fn.support)] for name in bounded}

    with traced():
        found = reads(bounds, _values(random), known=True)
    owners = [name for name, leaves in sorted(found.shapes.items()) for _ in leaves]
    return {name for name, part in zip(owners, found.outputs, strict=True) if not np.all(empty(part))}


def _needed(
    function: Function, random: Mapping[str, Statement], masks: Mapping[str, Any]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Mark the elements of masked statements that a density reads, and list the statements that only their own reads."""

    def parts(values: Mapping[str, Any], _: Any) -> dict[str, dict[str, Any]]:
        replay = function.at(values, {})
        moving = {
            n: jnp.asarray(mask_of(replay.statements[n].fn, np.shape(s.value))) for n, s in random.items() if n in masks
        }
        return {"masks": moving, "terms": replay.terms}

    with traced():
        found = reads(parts, _values(random), known=True)
    ends = dict(zip(sorted(random), np.cumsum([np.size(random[n].value) for n in sorted(random)]), strict=True))
    outputs = dict(zip([*sorted(found.shapes["masks"]), *sorted(found.shapes["terms"])], [], strict=False))
    num_masks, width = len(masks), max(ends.values())
    for name, part in zip(sorted(masks), found.outputs[:num_masks], strict=True):
        if not np.all(empty(part)):
            raise ValueError(
                f"from_numpyro: {name!r} is masked by what depends on latents: where it has a density is not known"
            )
    outputs = dict(zip(sorted(found.shapes["terms"]), found.outputs[num_masks:], strict=True))
    needed, idle = {}, []
    for name in masks:
        size = np.size(random[name].value)
        columns = slice(ends[name] - size, ends[name])
        read = {t: np.zeros(width, bool) if p is None else _columns(p, width) for t, p in outputs.items()}
        needed[name] = np.any([row[columns] for row in read.values()], 0)
        if not any(row[columns].any() for term, row in read.items() if term != name):
            idle.append(name)
    return {n: m.reshape(np.shape(random[n].value)) for n, m in needed.items()}, idle


def _columns(part: Any, width: int) -> np.ndarray:
    return np.asarray(matrix(part, part.ids.size, width).sum(0) > 0).ravel()


def _values(random: Mapping[str, Statement]) -> dict[str, Any]:
    return {name: jnp.asarray(statement.value) for name, statement in random.items()}
