"""Assign to each random number of each factor of q its dimension of the Sobol' net.

Of low dimensions a net is more even, and evenness counts only among latents that a term of log p reads together. So
others share dimensions, each with a scramble of its own: a colouring, as that by which Gibbs moves latents together.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal

from bbvi.blankets.blankets import Blankets
from bbvi.blankets.colouring import first_fit, possible_reads
from bbvi.blankets.jaxpr.inline import retrace
from bbvi.model.latents import Latent
from bbvi.model.problem import Problem
from bbvi.numerics.address import AbstractNet, Address

_NAMES = ("bbvi first word", "bbvi second word")


def dimensions(problem: Problem, blankets: Blankets) -> dict[str, np.ndarray]:
    """Give for each latent the dimensions of its elements' uniforms, `(elements, parts, words)`.

    Globals come first, then locals of fixed shape, then ragged ones, those of each axis taking turns with those of the
    others. Along an axis the first elements are coloured first: how far it is padded changes no dimension. All groups
    have the same, each scrambled on its own.
    """
    uniforms = {name: _num_uniforms(name, latent) for name, latent in problem.latents.items()}
    found: dict[str, np.ndarray] = {}
    first = 0
    fixed = [name for name, latent in problem.locals.items() if not latent.ragged_axes]
    for names in (list(problem.globals), fixed):
        made = _coloured(problem, blankets, names, uniforms)
        found |= {name: first + table for name, table in made.items()}
        first = 1 + max((int(table.max()) for table in found.values()), default=-1)
    axes = dict.fromkeys(latent.ragged_axes for latent in problem.locals.values() if latent.ragged_axes)
    for turn, of_axes in enumerate(axes):
        names = [name for name, latent in problem.locals.items() if latent.ragged_axes == of_axes]
        made = _coloured(problem, blankets, names, uniforms)
        found |= {name: first + turn + len(axes) * table for name, table in made.items()}
    return found


def _coloured(
    problem: Problem, blankets: Blankets, names: Sequence[str], uniforms: dict[str, tuple[int, int]]
) -> dict[str, np.ndarray]:
    """Colour the uniforms of latents that have the same ragged axes, so that those which meet in a term differ."""
    if not names:
        return {}
    latents = {name: problem.latents[name] for name in names}
    each = np.array([math.prod(uniforms[name]) for name in names])
    sizes = np.array([math.prod(s for s in latent.shape if isinstance(s, int)) for latent in latents.values()])
    numbers = [latent.elements(problem.lengths).ravel().astype(int) for latent in latents.values()]
    number, latent = np.concatenate(numbers), np.repeat(np.arange(len(names)), [len(n) for n in numbers])
    place, inside = np.divmod(number, sizes[latent])
    order = np.lexsort((inside, latent, place))
    # a column for each uniform; those of one element are read together
    columns = np.repeat(order, each[latent[order]])
    word = np.concatenate([np.arange(n) for n in each[latent[order]]])
    if len(next(iter(latents.values())).ragged_axes) > 1:
        # places along several axes come in no common order: to each its own
        begin = np.cumsum(each * sizes) - each * sizes
        colours = place[columns] * (each @ sizes) + (begin + inside[:, None] * each)[columns, latent[columns]] + word
    else:
        reads = possible_reads(problem, latents, blankets.scopes)
        both = sparse.vstack([reads, sparse.eye_array(len(number), dtype=bool)], format="csc")
        colours = first_fit(sparse.csr_array(both[:, columns]))
    found = {}
    for k, name in enumerate(names):
        of_latent = latent[columns] == k
        table = np.zeros((1 + int(numbers[k].max()), each[k]), int)
        table[number[columns[of_latent]], word[of_latent]] = colours[of_latent]
        found[name] = table.reshape(-1, *uniforms[name])
    return found


class _Count(AbstractNet):
    """A stand-in for a net that only counts which words a draw asks for."""

    def bits(self, key, element, sample, part):
        return checkpoint_name(part, _NAMES[0]), checkpoint_name(part, _NAMES[1])


def _num_uniforms(name: str, latent: Latent) -> tuple[int, int]:
    """Count the random numbers that a draw of one factor takes: the number of parts, and one or two words in each."""
    family, word = latent.family, jnp.uint32(0)
    params = {p: jnp.zeros(entry.raw_shape()) for p, entry in family.parameters().items()}
    address = Address(jnp.zeros(2, jnp.uint32), word, word, word, _Count())
    try:
        closed = retrace(jax.make_jaxpr(lambda p: family.sample(p, address))(params), {})
    except (NotImplementedError, ImportError):  # some of numpyro's need a package we do without
        raise ValueError(
            f"QuasiMonteCarlo: q of {name!r} is {family.name}, which cannot be drawn by inversion: numpyro has no "
            "icdf for it; choose another q, or draws=bbvi.MonteCarlo"
        ) from None
    used = {atom for eqn in closed.jaxpr.eqns for atom in eqn.invars if not isinstance(atom, Literal)}
    words = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive.name == "name" and eqn.outvars[0] in used]
    first, second = ([eqn.outvars[0].aval for eqn in words if eqn.params["name"] == n] for n in _NAMES)
    halves = 1 if jnp.result_type(float) == jnp.float32 else 2
    return sum(math.prod(aval.shape) for aval in first) // halves, 2 if second else 1
