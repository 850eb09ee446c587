"""The gradient of a Markov tree by exact sums over single numbers and pairs (Saul and Jordan 1996; Titsias and Lazaro-Gredilla 2015).

With A_i(b, a) the expected sum of the terms that read number i at the value a, together with its parent at b or alone, the
ELBO is the sum over i of E_q[A_i - log q_i], and the part of its gradient in the logits of i given b is the probability of
(b, a) times the advantage of a: how much it raises that sum for i and all below it. The expectation over the other latents is by
draws; given these, a natural step of size 1 ends on the exact conditional posterior.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax
from jaxtyping import Array, Float

from bbvi.blankets.analysis import Analysis
from bbvi.draws.batch import Batch
from bbvi.draws.draws import AbstractDraws, MonteCarlo, cut_samples, only_counted
from bbvi.draws.layout import lay_out
from bbvi.families import Tree
from bbvi.families.abstract import Lambda
from bbvi.gradients.abstract import AbstractGradient, Estimate
from bbvi.gradients.evaluate import sum_chunks
from bbvi.gradients.tree_sums import Plan, plan_of
from bbvi.model.problem import Terms, total
from bbvi.numerics.address import Key, fold
from bbvi.numerics.xla import for_one_run, materialise, program

_TRIALS = 4  # draws of the other latents at all of which log p is -inf, if a value is impossible


class TreeExpectation(AbstractGradient):
    """The gradient of Markov trees over discrete latents, by exact sums over the values of single numbers and of pairs.

    A chain or tree whose numbers have k values takes k**2 evaluations of the log joint for a draw of the other latents, however
    long it is. Latents whose q is no `MarkovTree`, and log joints with a term that reads numbers which are not neighbours in it,
    are refused.

    Examples:
        >>> import bbvi, jax.numpy as jnp
        >>> def log_joint(z, field):
        ...     return {"field": field * z["x"], "pairs": 2.0 * (z["x"][1:] == z["x"][:-1])}
        >>> model = bbvi.Model(log_joint, x=bbvi.binary(3, q=bbvi.MarkovTree()))
        >>> field = jnp.array([3.0, 0.0, 0.5])
        >>> posterior = bbvi.fit(model, field, gradient=bbvi.TreeExpectation(), draws=bbvi.MonteCarlo(1))
        >>> print(posterior.mean()["x"].round(2))  # exact
        [0.96 0.89 0.84]
    """

    def evaluations(self, analysis):
        trees = [(_forest(analysis, name), _plan(analysis, name)) for name in _names(analysis)]
        return sum(plan.num_turns * family.chart.num_values**2 for family, plan in trees)

    def estimate(self, analysis, params, data, batch, *, draws, key, buffers=None):
        trees, sums, elbo, error = _expected(analysis, params, data, batch, draws=draws, key=key)
        gradient = {name: {"logits": tree.gradient(sums[name])} for name, tree in trees.items()}
        fisher = {"globals": {name: {"logits": tree.squared_score()} for name, tree in trees.items()}, "rows": {}}
        return Estimate(gradient, {}, fisher, elbo, error, jnp.int32(0))


class _Expected(NamedTuple):
    """The trees of a step, the expected sums of terms at their values, and the ELBO with its error."""

    trees: "dict[str, _Sums]"
    sums: dict[str, Array]
    elbo: Array
    error: Array


def _expected(
    analysis: Analysis, params: Lambda, data: Any, batch: Batch | None, *, draws: AbstractDraws, key: Key
) -> _Expected:
    """Evaluate the terms at all values of single numbers and of pairs, at draws of the other latents."""
    trees = {name: _Sums(analysis, name, params[name]["logits"]) for name in _names(analysis)}
    exact = all(tree.is_exact for tree in trees.values())
    cut = cut_samples(MonteCarlo(1) if exact else draws, analysis.floats_per_draw)
    layout = lay_out(analysis, draws, params, batch, key, cut, paths=False)

    def visit(samples: Array, counts: Array | None) -> tuple[dict[str, Array], Float[Array, " samples"]]:
        u = {name: layout.drawn(name, samples) for name in layout.tables}
        beta, logs = layout.global_values(u, samples)

        def terms(moved: dict[str, Array], wanted: Sequence[str]) -> Terms:
            def some(values: Any, logs: Any) -> Terms:
                made = analysis.blankets.prior.at_samples(values, data, len(samples), logs)
                return {term: made[term] for term in wanted}

            return materialise(layout.on, some, beta | moved, logs)

        found = {name: tree(terms, beta[name], counts) for name, tree in trees.items()}
        # the expectation over one of the trees is exact, and the entropy of all
        elbo = next(iter(found.values()))[1]
        log_q = {name: layout.total_log_q(name, u[name]) for name in layout.tables if name not in layout.fitted}
        return {name: sums for name, (sums, _) in found.items()}, layout.less_log_q(elbo, log_q)

    sums, elbo, error = sum_chunks(cut, visit)
    elbo = elbo + sum(tree.entropy() for tree in trees.values())
    return _Expected(trees, {name: leaf / cut.num for name, leaf in sums.items()}, elbo, error)


def without_impossible(analysis: Analysis, params: Lambda, data: Any, key: Key) -> Lambda:
    """Take values and pairs that log p rules out, where it is -inf whatever the other latents, out of the Markov trees."""
    latents = analysis.problem.globals.items()
    names = [n for n, latent in latents if isinstance(latent.family, Tree) and find_plan(analysis, n) is not None]
    if not names:
        return params
    own = analysis._replace(wanted=frozenset(names))

    def impossible(params: Lambda, data: Any, key: Key) -> dict[str, Array]:
        def one(number: Array) -> dict[str, Array]:
            return _expected(own, params, data, None, draws=MonteCarlo(1), key=fold(key, "possible", number)).sums

        found = jax.lax.map(one, jnp.arange(_TRIALS, dtype=jnp.uint32))
        return {name: jnp.all(jnp.isneginf(leaf), 0) for name, leaf in found.items()}

    new = dict(params)
    for name, never in program(impossible, **for_one_run())(params, data, key).items():
        logits = params[name]["logits"]
        never = never.reshape(logits.shape)
        if bool(never.any()):
            new[name] = {"logits": _forest(analysis, name).without(logits, never)}
    return new


class _Sums:
    """The terms that the numbers of one latent are in, at all their values, and what follows for its lambda.

    Numbers of all factors stand side by side: these are trees of one forest.
    """

    def __init__(self, analysis: Analysis, name: str, logits: Array):
        self.name, self._plan, self._family, self._shape = (
            name,
            _plan(analysis, name),
            _forest(analysis, name),
            logits.shape,
        )
        scope = analysis.blankets.prior
        self._others = [term for term in scope.shapes if term not in self._plan.cliques]
        #: whether no draw is used
        self.is_exact = self._plan.num_turns == 1 and {*scope.patterns, *scope.look_ups} == {name}
        self._logits = log_softmax(logits.reshape(-1, *logits.shape[-3:]))
        self._mass = jax.vmap(self._family.pairs)(self._logits)

    def __call__(self, terms: Callable[..., Terms], drawn: Array, counts: Array | None) -> tuple[Array, Array]:
        """Sum, for each number, value and value of the parent, the terms over samples; also give samples of log p."""
        plan, k = self._plan, self._shape[-1]
        samples = jnp.zeros(drawn.shape[-1])
        if self._others:
            samples = samples + total(terms({}, self._others))
        size = len(plan.turns)
        sums = jnp.zeros((size, k, k)), jnp.zeros((size, k))
        for turn in range(plan.num_turns):
            arrays = {term: cliques for term, of in plan.cliques.items() if (cliques := of[turn]).child.max() >= 0}
            step = functools.partial(self._step, terms, drawn.reshape(size, -1), counts, drawn.shape, turn)
            both = np.array(list(itertools.product(range(k), repeat=2)), np.int32)
            # terms of single numbers are known after one evaluation for each value
            of_pairs = [term for term, cliques in arrays.items() if cliques.with_parent.any()]
            alone = [term for term in arrays if term not in of_pairs]
            for wanted, values in ((of_pairs, both), (alone, both[:: k + 1])):
                if wanted:
                    (sums, samples), _ = jax.lax.scan(functools.partial(step, wanted), (sums, samples), values)
        pairs, singles = sums
        return (pairs + singles[:, None]).reshape(-1, *self._shape[-3:]), samples

    def _step(
        self,
        terms: Any,
        drawn: Array,
        counts: Array | None,
        shape: Any,
        turn: int,
        wanted: Sequence[str],
        carry: Any,
        values: Array,
    ) -> tuple[Any, None]:
        """Add the terms with the even numbers of all trees of this turn at one value, and the odd ones at another."""
        (pairs, singles), samples = carry
        plan, same = self._plan, values[0] == values[1]
        mass = self._mass.reshape(pairs.shape)
        at = values[plan.depth % 2].astype(drawn.dtype)
        moved = jnp.where((plan.turns == turn)[:, None], at[:, None], drawn).reshape(shape)
        for term, leaf in terms({self.name: moved}, wanted).items():
            flat, (child, with_parent) = leaf.reshape(-1, leaf.shape[-1]), plan.cliques[term][turn]
            number, is_read = np.maximum(child, 0), child >= 0
            own, above = values[plan.depth[number] % 2], values[1 - plan.depth[number] % 2]
            summed, alone = only_counted(counts, flat).sum(-1), same & is_read & ~with_parent
            pairs = pairs.at[number, above, own].add(jnp.where(with_parent, summed, 0))
            singles = singles.at[number, own].add(jnp.where(alone, summed, 0))
            # in the sum of all terms each counts once: in the first turn that it is in
            of_pair, of_single = mass[number, above, own], mass.sum(1)[number, own]
            weight = jnp.where(with_parent, of_pair, jnp.where(is_read, same * of_single, same / len(mass[0])))
            weight = jnp.where(plan.counted(term, turn), weight, 0)[:, None]
            samples = samples + jnp.where(weight > 0, weight * flat, 0).sum(0)
        return ((pairs, singles), samples), None

    def gradient(self, sums: Array) -> Array:
        """Return the gradient in the logits from the mean of these sums."""
        found = jax.vmap(self._family.advantage)(self._logits, self._mass, sums - self._logits)
        return (self._mass * found).reshape(self._shape)

    def squared_score(self) -> Array:
        """Return the diagonal of the Fisher information of the logits."""
        return (self._mass * (1 - jnp.exp(self._logits))).reshape(self._shape)

    def entropy(self) -> Float[Array, ""]:
        """Return the entropy of q."""
        return -jnp.where(self._mass > 0, self._mass * self._logits, 0).sum()


def _names(analysis: Analysis) -> list[str]:
    return analysis.fitted(bool(analysis.problem.num_groups))


def _forest(analysis: Analysis, name: str) -> Tree:
    family = analysis.problem.latents[name].family
    if not isinstance(family, Tree):
        raise ValueError(
            f"TreeExpectation is for latents with q=bbvi.MarkovTree(), and that of {name!r} is {family.name}; "
            "use gradient=bbvi.Auto()"
        )
    return family


def _plan(analysis: Analysis, name: str) -> Plan:
    if (plan := find_plan(analysis, name)) is None:
        raise ValueError(
            f"TreeExpectation: a term of log p reads numbers of {name!r} that are not neighbours in its tree, or those of a group; "
            "use gradient=bbvi.Score()"
        )
    return plan


def find_plan(analysis: Analysis, name: str) -> Plan | None:
    """Plan the evaluations of a latent with a Markov tree; None where a term reads others than neighbours, or a group does."""
    problem, parents = analysis.problem, _forest(analysis, name).parents
    if name in problem.locals or any(name in scope.numbers for scope in analysis.scopes[1:]) or problem.opaque:
        return None
    num = math.prod(problem.shape(name))
    side_by_side = [p + n * len(parents) if p >= 0 else -1 for n in range(num) for p in parents]
    return plan_of(tuple(side_by_side), analysis.blankets.prior.numbers[name])
