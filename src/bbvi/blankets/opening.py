"""Section 3.1: sums inside loops, branches and products, brought to light."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.inline import Rewrite, retrace
from bbvi.blankets.jaxpr.primitives import scan_parts
from bbvi.blankets.jaxpr.products import along_common_axes
from bbvi.blankets.jaxpr.run import reached, run, scan_like
from bbvi.blankets.walk import Term, Walk, computed


def open_dot(eqn: Any, inputs: list[Any]) -> list[Any]:
    """Write a dot product as a product and a sum."""
    left, right = along_common_axes(eqn, inputs)
    product = left * right
    return [jnp.sum(product, axis=tuple(range(eqn.outvars[0].aval.ndim, product.ndim)))]


def open_cond(chosen: int | None) -> Rewrite:
    """Write a choice as a sum of its branches, each masked by whether it is chosen; or as the one that is known to be."""

    def rewrite(eqn: Any, inputs: list[Any]) -> list[Any]:
        branches = eqn.params["branches"]
        if chosen is not None:
            branch = branches[min(max(chosen, 0), len(branches) - 1)]
            return run(branch, inputs[1:], branch.jaxpr.outvars)
        index = jnp.clip(inputs[0], 0, len(branches) - 1)
        made = [run(branch, inputs[1:], branch.jaxpr.outvars) for branch in branches]
        masked = [[jnp.where(index == k, value, 0) for value in values] for k, values in enumerate(made)]
        return [sum(values[1:], values[0]) for values in zip(*masked, strict=True)]

    return rewrite


def open_branches(eqn: Any, inputs: list[Any]) -> list[Any]:
    """Write a choice as one between the results of all its branches."""
    *first, last = [run(branch, inputs[1:], branch.jaxpr.outvars) for branch in eqn.params["branches"]]
    for k, made in reversed(list(enumerate(first))):
        last = [jnp.where(inputs[0] <= k, one, other) for one, other in zip(made, last, strict=True)]
    return last


def open_map(eqn: Any) -> Rewrite | None:
    """Find how to write a loop that carries nothing as one step for all; None for what is no such loop."""
    if eqn.primitive.name != "scan" or scan_parts(eqn, eqn.invars)[1]:
        return None

    def rewrite(eqn: Any, inputs: list[Any]) -> list[Any]:
        body = eqn.params["jaxpr"]
        consts, _, xs = scan_parts(eqn, inputs)
        step = jax.vmap(lambda xs: run(body, [*consts, *xs], body.jaxpr.outvars), axis_size=eqn.params["length"])
        return list(step(xs))

    return rewrite


def open_scan(eqn: Any, which: int) -> Rewrite | None:
    """Find how to rewrite a loop so that the sum over its output `which` is a sum over all time steps.

    `which` is a number or an array that is only ever added to, or one number for each step. None if it is neither.
    """
    body = retrace(eqn.params["jaxpr"], {})
    out, (_, carry, _) = body.jaxpr.outvars[which], scan_parts(eqn, body.jaxpr.invars)
    is_carry = which < len(carry)
    is_float = not isinstance(out, Literal) and out.aval.dtype in (jnp.float32, jnp.float64)
    if not is_float or (out.aval.shape != () and not is_carry):
        return None
    summands = Walk(body.jaxpr, body.jaxpr.invars, elementwise=out.aval.shape != ()).pieces(out)
    if is_carry:
        held = carry[which]
        entered = reached(body.jaxpr, [held])
        own = [s for s in summands if s.atoms == [held]]
        summands = [s for s in summands if s.atoms != [held]]
        others = [v for k, v in enumerate(body.jaxpr.outvars) if k != which]
        used = [atom for atom in [*(a for s in summands for a in s.atoms), *others] if not isinstance(atom, Literal)]
        if len(own) != 1 or own[0].compute([1.0]) != 1.0 or any(atom in entered for atom in used):
            return None
    elif len(summands) == 1 and summands[0].atoms[0].aval.shape == ():
        return None
    return functools.partial(_run_open, body=body, which=which, summands=summands)


def _run_open(eqn: Any, inputs: list[Any], body: ClosedJaxpr, which: int, summands: list[Term]) -> list[Any]:
    consts, carry, xs = scan_parts(eqn, inputs)
    is_carry, aval = which < len(carry), body.jaxpr.outvars[which].aval
    absent = jnp.zeros(aval.shape, aval.dtype)
    others = [v for k, v in enumerate(body.jaxpr.outvars) if k != which]
    outputs = [*others, *(atom for summand in summands for atom in summand.atoms)]

    def step(held: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        before = [*held[:which], *[absent] * is_carry, *held[which:]]
        made = run(body, [*consts, *before, *x], outputs)
        terms = computed(summands, iter(made[len(others) :]))
        return made[: len(held)], (made[len(held) : len(others)], terms)

    init = [jnp.asarray(value) for k, value in enumerate(carry) if k != which]
    final, (rest, terms) = scan_like(eqn, step, init, xs)
    # a carry is summed over the steps too, what is stacked is one number for each of them
    sums = [jnp.sum(t, axis=tuple(range(0 if is_carry else 1, t.ndim - aval.ndim))) for t in terms]
    total = carry[which] + sum(sums, absent) if is_carry else sum(sums, jnp.zeros(eqn.params["length"], aval.dtype))
    results = [*final, *rest]
    results.insert(which, total.astype(aval.dtype))
    return results
