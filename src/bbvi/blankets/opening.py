"""Section 3.1: sums inside loops, branches and products, brought to light."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal

from bbvi.blankets.jaxpr.inline import Rewrite, retrace
from bbvi.blankets.jaxpr.primitives import scan_sizes
from bbvi.blankets.jaxpr.products import along_common_axes
from bbvi.blankets.jaxpr.run import reached, run
from bbvi.blankets.walk import Term, Walk


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


def open_scan(eqn: Any, which: int) -> Rewrite | None:
    """Find how to rewrite a loop so that the sum over its output `which` is a sum over all time steps.

    `which` is a number or an array that is only ever added to, or one number for each step. None if it is neither.
    """
    params = eqn.params
    num_consts, num_carry = scan_sizes(eqn)
    body = retrace(params["jaxpr"], {})
    out = body.jaxpr.outvars[which]
    is_carry = which < num_carry
    if isinstance(out, Literal) or out.aval.dtype not in (jnp.float32, jnp.float64):
        return None
    if out.aval.shape != () and not is_carry:
        return None
    summands = Walk(body.jaxpr, body.jaxpr.invars, elementwise=out.aval.shape != ()).pieces(out)
    if is_carry:
        held = body.jaxpr.invars[num_consts + which]
        entered = reached(body.jaxpr, [held])
        own = [s for s in summands if s.atoms == [held]]
        summands = [s for s in summands if s.atoms != [held]]
        others = [v for k, v in enumerate(body.jaxpr.outvars) if k != which]
        used = [atom for atom in [*(a for s in summands for a in s.atoms), *others] if not isinstance(atom, Literal)]
        if len(own) != 1 or own[0].compute([1.0]) != 1.0 or any(atom in entered for atom in used):
            return None
    elif len(summands) == 1 and summands[0].atoms[0].aval.shape == ():
        return None

    def rewrite(eqn: Any, inputs: list[Any]) -> list[Any]:
        return _run_open(eqn, inputs, body, which, summands)

    return rewrite


def _run_open(eqn: Any, inputs: list[Any], body: ClosedJaxpr, which: int, summands: list[Term]) -> list[Any]:
    params = eqn.params
    num_consts, num_carry = scan_sizes(eqn)
    consts, xs = inputs[:num_consts], inputs[num_consts + num_carry :]
    carried = [k for k in range(num_carry) if k != which]
    kept = [k for k in range(len(body.jaxpr.outvars)) if k != which]
    atoms: list[Any] = [a for s in summands for a in s.atoms]
    outputs = [*(body.jaxpr.outvars[k] for k in kept), *atoms]
    aval = body.jaxpr.outvars[which].aval
    absent = jnp.zeros(aval.shape, aval.dtype)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], Any]:
        held = [absent] * num_carry
        for k, value in zip(carried, carry, strict=True):
            held[k] = value
        made = run(body, [*consts, *held, *x], outputs)
        values, rest = made[len(kept) :], made[len(carried) : len(kept)]
        terms = []
        for summand in summands:
            terms.append(summand.compute(values[: len(summand.atoms)]))
            values = values[len(summand.atoms) :]
        return made[: len(carried)], (rest, terms)

    init = [jnp.asarray(inputs[num_consts + k]) for k in carried]
    final, (rest, terms) = jax.lax.scan(
        step, init, list(xs), length=params["length"], reverse=params["reverse"], unroll=params["unroll"]
    )
    if which < num_carry:
        spread = (lambda t: jnp.sum(t)) if aval.shape == () else (lambda t: jnp.sum(t, axis=0))
        total = inputs[num_consts + which] + sum((spread(t) for t in terms), absent)
    else:
        total = sum(
            (jnp.sum(t, axis=tuple(range(1, t.ndim))) for t in terms), jnp.zeros(params["length"], absent.dtype)
        )
    results = [*final, *rest]
    results.insert(which, total.astype(aval.dtype))
    return results
