"""The loop on several devices: each runs it on its own groups, and what no group owns is the same on all."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from bbvi.families.abstract import Lambda
from bbvi.fitting.state import State
from bbvi.fitting.stop import AbstractStop
from bbvi.model.groups import AbstractGroups, Stream
from bbvi.model.model import Model
from bbvi.model.problem import Problem
from bbvi.numerics.mesh import AXIS, EVERYWHERE, IN_BLOCKS, Blocks, on_host

FirstState = Callable[[dict[str, Lambda]], State]
_PARAMS = {"globals": EVERYWHERE, "locals": IN_BLOCKS}


def first_on_devices(first: FirstState, blocks: Blocks) -> FirstState:
    """Make the state before the first step where it is going to be."""

    def init(params: dict[str, Lambda]) -> State:
        where = _parts_of_state(first, blocks, params)
        return jax.shard_map(first, mesh=blocks.mesh, in_specs=(_PARAMS,), out_specs=where, check_vma=False)(params)

    return init


def run_on_devices(run: Callable[..., Any], first: FirstState, blocks: Blocks) -> Callable[..., Any]:
    """Run steps on all devices, each with its own groups and its part of the state."""

    def shared(kept: tuple[Any, ...], state: State) -> Any:
        where = _parts_of_state(first, blocks, state.params)
        given = (EVERYWHERE, EVERYWHERE, IN_BLOCKS, EVERYWHERE, EVERYWHERE)
        return jax.shard_map(
            run, mesh=blocks.mesh, in_specs=(given, where), out_specs=(where, EVERYWHERE, EVERYWHERE), check_vma=False
        )(kept, state)

    return shared


def on_devices(back: Callable[..., Any], blocks: Blocks) -> Callable[..., Any]:
    """Let a function of parameters, of what the last step moved and of its number return other parameters, on all devices."""
    given = _PARAMS, IN_BLOCKS, EVERYWHERE
    return jax.jit(jax.shard_map(back, mesh=blocks.mesh, in_specs=given, out_specs=_PARAMS, check_vma=False))


def gathered(state: State, like: State, first: FirstState, blocks: Blocks) -> State:
    """Return a state with the rows of all groups as on one device, where it would look like that; it knows of no step to take back."""
    where = _parts_of_state(first, blocks, state.params)
    cut = jax.tree.map(lambda leaf, part: leaf[: blocks.num] if part == IN_BLOCKS else leaf, on_host(state), where)
    return cut._replace(previous=like.previous)


def shared(state: State, like: State, first: FirstState, blocks: Blocks) -> State:
    """Put the parts of a state of one device where they belong; the other way round to `gathered`."""
    where = _parts_of_state(first, blocks, state.params)
    parts = jax.tree.map(lambda leaf, part: blocks.put(leaf) if part == IN_BLOCKS else leaf, state, where)
    return parts._replace(previous=like.previous)


def _parts_of_state(first: FirstState, blocks: Blocks, params: dict[str, Lambda]) -> Any:
    """Tell which arrays of a state have a row for each group: those that are longer where there are more groups."""

    def shapes(rows: int) -> State:
        own = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype), params["locals"])
        return jax.eval_shape(first, {**params, "locals": own})

    some, more = shapes(blocks.size), shapes(2 * blocks.size)
    found = jax.tree.map(lambda one, other: EVERYWHERE if one.shape == other.shape else IN_BLOCKS, some, more)
    return found._replace(previous=(IN_BLOCKS, IN_BLOCKS))  # of the batch's groups, wherever these are


def check_mesh(mesh: Any, problem: Problem, groups: AbstractGroups | None) -> None:
    """Refuse devices that cannot share this model's groups."""
    if not isinstance(mesh, Mesh):
        raise TypeError(f'mesh= takes a jax.sharding.Mesh such as jax.make_mesh((2,), ("{AXIS}",)), got {mesh!r}')
    if mesh.axis_names != (AXIS,):
        raise ValueError(
            f"mesh= has the axes {mesh.axis_names}, and groups are shared out along one, {AXIS!r}: "
            f'jax.make_mesh(({mesh.size},), ("{AXIS}",))'
        )
    if isinstance(problem.model, Model) or groups is None:
        raise ValueError(
            "mesh= shares out groups, and a flat Model has none; write the model as a bbvi.HierarchicalModel with a likelihood per row"
        )
    if problem.opaque:
        raise ValueError(
            f"mesh= is for functions in JAX, and {next(iter(problem.opaque))} is opaque; spread its calls by bbvi.opaque(fn, executor=...)"
        )
    if isinstance(groups, Stream):
        raise ValueError("mesh= takes groups in arrays or bbvi.ragged(...), not yet those fetched from a source")
    if mesh.size > problem.num_groups:
        raise ValueError(f"mesh= has {mesh.size} devices, more than there are groups, {problem.num_groups}")


def check_sees_all(stops: tuple[AbstractStop, ...], problem: Problem, draws_state: Any) -> None:
    """Refuse rules and numbers of draws that would be decided by the rows of one device."""
    if not problem.locals:
        return
    for rule in stops:
        if not rule.on_mesh:
            raise ValueError(
                f"{type(rule).__name__} would see the rows of one device only, and mesh= has several; if it looks at globals and the "
                "ELBO alone, say on_mesh = True in its class"
            )
    if draws_state is not None:
        raise ValueError(
            "mesh= takes a fixed number of draws, such as draws=bbvi.MonteCarlo(100), where there are locals"
        )
