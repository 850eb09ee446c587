"""A NumPyro function with its arguments, and the latents that are found in it by a trial."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from bbvi.blankets.read_sets import Reads, empty, everything
from bbvi.blankets.reads import reads
from bbvi.bridges.numpyro_sites import Give, Replay, Site, Statement
from bbvi.bridges.numpyro_supports import declared, layers, leaves_of, mask_of, some_value
from bbvi.model.latents import Latent
from bbvi.numerics.xla import for_one_run


class Function:
    """A NumPyro function with its arguments by name."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._fn, self._bound = fn, inspect.signature(fn).bind(*args, **kwargs)
        kinds = {name: p.kind for name, p in self._bound.signature.parameters.items()}
        self._rest = next((n for n, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), "")
        named = dict(self._bound.arguments)
        #: what it was called with, by the names of its parameters
        self.arguments: dict[str, Any] = named | named.pop(self._rest, {})

    def replay(self, give: Give, *, given: Mapping[str, Any] | None = None, **how: Any) -> Replay:
        """Run it with the values that `give` tells, and other arguments in the place of these; `how` is for the replay."""
        now = self.arguments | dict(given or {})
        own = {name: now[name] for name in self._bound.arguments if name != self._rest}
        if self._rest in self._bound.arguments:
            own[self._rest] = {name: now[name] for name in self._bound.arguments[self._rest]}
        call, replay = inspect.BoundArguments(self._bound.signature, own), Replay(self._fn, give, **how)  # type: ignore[arg-type]
        replay(*call.args, **call.kwargs)
        return replay

    def at(self, values: Mapping[str, Any], **how: Any) -> Replay:
        """Run it with these values of statements, on their own supports."""
        return self.replay(lambda msg: values.get(msg["name"]), **how)


class Found(NamedTuple):
    """The latents of a function, and all its statements with arbitrary values and what follows from these.

    `idle` are statements without data that no other one reads, and that have no density in some of their elements.
    """

    sites: dict[str, Site]
    latents: dict[str, Latent]
    idle: dict[str, Any]
    statements: dict[str, Statement]
    supports: dict[str, Any]
    terms: dict[str, Any]
    sizes: dict[str, int]

    def replay(self, function: Function, z: Mapping[str, Any], idle: Any = None, **how: Any) -> Replay:
        """Run the function at one draw of the latents."""
        values = {name: site.arranged(z[site.latent]) for name, site in self.sites.items()} | (idle or self.idle)
        return function.at(values, sites=self.sites, silent=self.idle, **how)

    @property
    def axes(self) -> dict[str, int]:
        """The axis of the groups in the values that locals stand for."""
        return {site.latent: site.axis for site in self.sites.values() if site.axis is not None}

    @property
    def observed(self) -> list[str]:
        """The statements with data, factors aside."""
        return [name for name, s in self.statements.items() if s.is_observed and not _is(s.fn, dist.Unit)]


def _is(fn: Any, kind: type) -> bool:
    return isinstance(list(layers(fn))[-1], kind)


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
        statements, supports, masks, terms, sizes = _trial(function)
        random = {name: statements[name].value for name in supports}
        moving = _moving(function, random, [name for name, support in supports.items() if leaves_of(support)])
        needed, unread = _needed(function, random, list(masks)) if masks else ({}, [])
    idle = [name for name in unread if not np.all(masks[name]) or name.endswith("_unobserved")]
    sites: dict[str, Site] = {}
    latents: dict[str, Latent] = {}
    for name in [name for name in random if name not in idle]:
        kept = needed.get(name, np.ones((), bool))
        site, latent = _site(name, statements[name], supports[name], kept, name in moving, plate)
        if site.latent in latents:
            raise ValueError(f"from_numpyro: {name!r} needs the name {site.latent!r}, which is taken; rename one")
        sites[name], latents[site.latent] = site, latent
    return Found(sites, latents, {name: random[name] for name in idle}, statements, supports, terms, sizes)


def _trial(
    function: Function,
) -> tuple[dict[str, Statement], dict[str, Any], dict[str, Any], dict[str, Any], dict[str, int]]:
    """Run a function with arbitrary values: its statements; of those that are latents the supports and masks; terms and sizes."""
    generator = np.random.default_rng(0)
    kept: dict[str, Any] = {}

    def give(msg: Any) -> Any:
        return some_value(msg["name"], msg["fn"], (*msg["kwargs"]["sample_shape"], *msg["fn"].shape()), generator)

    def run() -> Any:
        replay = function.replay(give)
        kept.update(statements=replay.statements, sizes=replay.sizes)
        random = {n: s for n, s in replay.statements.items() if s.is_latent and not _is(s.fn, dist.Delta)}
        masks = {name: mask_of(s.fn, np.shape(s.value)) for name, s in random.items()}
        masks = {name: jnp.asarray(mask) for name, mask in masks.items() if mask is not True}
        values = {name: jnp.asarray(s.value) for name, s in replay.statements.items()}
        return values, {name: s.fn.support for name, s in random.items()}, masks, replay.terms

    closed, shapes = jax.make_jaxpr(run, return_shape=True)()
    # one program of which the data are arguments, not constants
    flat = jax.jit(lambda consts: jax.core.eval_jaxpr(closed.jaxpr, consts), **for_one_run())(closed.consts)
    values, supports, masks, terms = jax.tree.unflatten(jax.tree.structure(shapes), jax.device_get(flat))
    statements = {name: s._replace(value=values[name]) for name, s in kept["statements"].items()}
    return statements, {n: supports[n] for n in statements if n in supports}, masks, terms, kept["sizes"]


def _site(name: str, s: Statement, support: Any, needed: Any, moves: bool, plate: str | None) -> tuple[Site, Latent]:
    """Make a latent for a statement; `needed` marks the elements of a masked one that a density reads."""
    shape, batch_ndim = np.shape(s.value), np.ndim(s.value) - s.fn.event_dim
    made = declared(name, s.fn, support, shape, moves=moves)
    latent = name.replace("/", ".") + "_unconstrained" * made.transformed
    latent += "_" * (latent == "joint")  # a setting of bbvi.Model
    axis = batch_ndim + s.plates[plate] if plate is not None and plate in s.plates else None
    if made.reals is not None:
        shape = (*shape[:batch_ndim], *made.reals)
    factors = shape[: len(shape) - len(made.event)]
    if np.all(needed):
        own = tuple(size for k, size in enumerate(factors) if k != axis)
        return Site(name, latent, shape, made, axis), made.of_shape(*own)
    if made.transformed or axis is not None:
        where = f"inside the plate {plate!r} of groups" if axis is not None else "on a support without a latent of ours"
        raise ValueError(
            f"from_numpyro: {name!r} is masked in some of its elements, {where}, and other statements read it; give the missing "
            "values a statement of their own"
        )
    kept = np.flatnonzero(needed.reshape(int(np.prod(factors)), -1).any(1))
    return Site(name, latent, shape, made, None, kept, s.value), made.of_shape(len(kept))


def _moving(function: Function, random: Mapping[str, Any], bounded: list[str]) -> set[str]:
    """Find those of the statements whose support depends on latents."""

    def bounds(values: Mapping[str, Any], _: Any) -> dict[str, list[Any]]:
        found = function.at(values).statements
        return {name: [jnp.asarray(leaf) for leaf in leaves_of(found[name].fn.support)] for name in bounded}

    if not bounded:
        return set()
    found = reads(bounds, dict(random), known=True)
    owners = [name for name, leaves in sorted(found.shapes.items()) for _ in leaves]
    return {name for name, part in zip(owners, found.outputs, strict=True) if not np.all(empty(part))}


def _needed(
    function: Function, random: Mapping[str, Any], masked: list[str]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Mark the elements of masked statements that a density reads, and list the statements that only their own reads."""

    def parts(values: Mapping[str, Any], _: Any) -> dict[str, dict[str, Any]]:
        replay = function.at(values)
        masks = {name: jnp.asarray(mask_of(replay.statements[name].fn, np.shape(random[name]))) for name in masked}
        return {"masks": masks, "terms": replay.terms}

    found = reads(parts, dict(random), known=True)
    names = [*sorted(masked), *sorted(found.shapes["terms"])]
    read = [_columns(part) for part in found.outputs]
    for name, columns in zip(names, read[: len(masked)], strict=False):
        if len(columns):
            raise ValueError(
                f"from_numpyro: {name!r} is masked by what depends on latents: where it has a density is not known"
            )
    ends = dict(zip(sorted(random), np.cumsum([np.size(random[name]) for name in sorted(random)]), strict=True))
    needed, unread = {}, []
    for name in masked:
        own = np.arange(ends[name] - np.size(random[name]), ends[name])
        needed[name] = np.isin(own, np.concatenate(read)).reshape(np.shape(random[name]))
        others = [columns for term, columns in zip(names, read, strict=True) if term != name]
        if not np.isin(own, np.concatenate([[-1], *others])).any():
            unread.append(name)
    return needed, unread


def _columns(part: Reads) -> np.ndarray:
    """List the latent elements that any element reads."""
    whole = everything([part], (1,))
    return np.zeros(0, int) if whole is None else whole.sets.indices
