"""Section 3.1: the rules by which blankets are found, one for each primitive of JAX.

The search for blankets goes forward over a trace and keeps, for each variable, its *reads* (`Reads`): for each element
of the array, the set of latent elements that its value can change with. None stands for an array that reads none.

- Order: one array's reads are below another's if every element's set is a subset. The join is the union, element by
  element (`read_sets.union`); the top is that every element reads all that the inputs read (`read_sets.everything`).
- A rule is called as `rule(interpreter, eqn, ins)`, with the equation and the reads of its inputs, of which at least one
  is not None. It returns a list: the reads of each output, of the output's shape or one that broadcasts to it.
- Soundness: reads may be too many, never too few. One too many costs variance; one too few would bias the gradient.
  A look-up, a comparison or a rounding reads its input, whatever its derivative.
- Monotone: more in the inputs never gives less in the outputs. Loops are solved by iteration and rely on it.

`read_sets` has what rules are made of: `union`, `reduce` over axes, `merge` by rows, `mix` by a mask, `stack` for moves
of data. The interpreter says more where a rule can use it: `known(atom)` and `value_of(atom)` are values that no latent
enters, such as masks and indices; `nested` goes on into a trace inside; `everything(eqn, ins, why)` gives up, and names
the line and the reason to the user.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from jax.extend.core import Primitive

from bbvi.blankets.read_sets import Reads

Rule: TypeAlias = Callable[[Any, Any, list[Reads]], list[Reads]]
RULES: dict[Primitive, Rule] = {}


def rule(*primitives: Primitive) -> Callable[[Rule], Rule]:
    """Teach the search for blankets what the elements of a primitive's results read; a later rule replaces an earlier one.

    A primitive without a rule is taken to read all of its inputs, which costs variance and never bias. The rule gets an
    interpreter, the equation, and for each input a table of which latent elements its elements read (None if none);
    it returns such a table for each output, which may hold too much and never too little.

    Examples:
        Without a rule, all elements of `halved(x)` would be taken to read all of x.

        >>> import bbvi, jax
        >>> from jax.extend.core import Primitive
        >>> from jax.interpreters import batching, mlir
        >>> halved_p = Primitive("halved")
        >>> _ = halved_p.def_impl(lambda x: x / 2), halved_p.def_abstract_eval(lambda x: x)
        >>> mlir.register_lowering(halved_p, mlir.lower_fun(lambda x: x / 2, multiple_results=False))
        >>> batching.defvectorized(halved_p)
        >>> @bbvi.rule(halved_p)
        ... def element_by_element(interpreter, eqn, ins):
        ...     return ins
        >>> model = bbvi.Model(lambda z, _: -(halved_p.bind(z["x"]) ** 2).sum(), x=bbvi.real(3))
        >>> bbvi.explain(model).matrix.astype(int).toarray()
        array([[1, 0, 0],
               [0, 1, 0],
               [0, 0, 1]])
    """
    for primitive in primitives:
        if not isinstance(primitive, Primitive):
            raise TypeError(f"a rule is for primitives of JAX such as jax.lax.add_p, got {primitive!r}")

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(primitives, function))
        return function

    return register
