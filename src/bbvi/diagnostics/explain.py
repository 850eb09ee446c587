"""Section 3.1 made visible: the terms that were found in a log joint, who reads whom, and what was lost."""

import dataclasses
import html
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sparse

from bbvi.blankets.analysis import Analysis
from bbvi.blankets.blankets import Blankets, find_blankets
from bbvi.blankets.patterns import AbstractPattern, Reduction, Scattered
from bbvi.blankets.priors import without_prior
from bbvi.blankets.read_sets import MOST_PAIRS
from bbvi.blankets.reads import Lost
from bbvi.blankets.scope import Scope
from bbvi.diagnostics.plot_blankets import percent, plot_blankets
from bbvi.diagnostics.symmetries import Exchangeable, exchangeable
from bbvi.draws.draws import OfGroup, draw_values
from bbvi.draws.tilts import features_at
from bbvi.families.abstract import Lambda
from bbvi.gradients.structure import choose_structure
from bbvi.model.groups import AbstractGroups, Cohort, cut_rows
from bbvi.model.joint import Block
from bbvi.model.model import AnyModel, structured
from bbvi.model.problem import Problem, bind
from bbvi.model.start import starting_params
from bbvi.numerics.address import fold, seed_key
from bbvi.numerics.xla import for_one_run
from bbvi.posterior.posterior import Posterior
from bbvi.posterior.values import element_name

_NUM_DRAWS = 1000


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """What was found in a log joint: print it, `.plot()` it, or take `.matrix`.

    `.matrix` is a boolean scipy.sparse array, term elements by latent elements (globals, then the group's locals,
    in the order of their declaration, row-major); `.terms` and `.latents` name its rows and columns; `.lost` says
    where precision was lost and why, `.without_prior` which latents no prior term reads, `.structure` which latents share a factor of q, as they do by default or in the posterior, and
    `.exchangeable` which components can change places.
    """

    problem: Problem
    shapes: dict[str, tuple[int, ...]]
    readings: dict[str, dict[str, AbstractPattern]]
    lines: dict[str, str]
    shares: dict[str, float]
    lost: list[Lost]
    title: str
    estimators: dict[str, str]
    without_prior: list[str]
    structure: tuple[Block, ...]
    #: of latents in blocks, the name of their q
    families: dict[str, str]
    exchangeable: list[Exchangeable]

    @property
    def terms(self) -> list[str]:
        """The names of the rows of `.matrix`."""
        return _names(self.shapes)

    #: what `terms` was called first
    factors = terms

    @property
    def latents(self) -> list[str]:
        """The names of the columns of `.matrix`."""
        return _names({name: self.problem.shape(name) + x.event for name, x in self.problem.latents.items()})

    @property
    def matrix(self) -> sparse.csr_array:
        num = sum(int(_counts(r, 1).sum()) for readings in self.readings.values() for r in readings.values())
        if num > MOST_PAIRS:
            raise ValueError(f"the matrix would have {num:,} entries; print the table, or explain a smaller model")

        def block(term: str, name: str) -> sparse.csr_array:
            size = math.prod(self.shapes[term]), math.prod(self.problem.shape(name))
            reading = self.readings[term].get(name)
            pairs = sparse.csr_array(size, dtype=bool) if reading is None else reading.pairs()
            event = np.ones((1, math.prod(self.problem.latents[name].event)), bool)
            return sparse.csr_array(sparse.kron(pairs, event))

        grid = [[block(term, name) for name in self.problem.latents] for term in self.shapes]
        return sparse.csr_array(sparse.block_array(grid, dtype=bool))

    def __repr__(self) -> str:
        return "\n\n".join([self.title, _table(self._term_rows()), _table(self._latent_rows()), *self._warnings()])

    def _repr_html_(self) -> str:
        tables = [_html_table(rows) for rows in (self._term_rows(), self._latent_rows())]
        notes = [f"<pre>{html.escape(words)}</pre>" for words in self._warnings()]
        return "".join([f"<p>{html.escape(self.title)}</p>", *notes, *tables])

    def plot(self) -> Any:
        """Draw who reads whom, as a matplotlib figure."""
        return plot_blankets(self)

    def _term_rows(self) -> list[list[str]]:
        rows = [["terms", "shape", "line", "each reads", "variance"]]
        for term, shape in self.shapes.items():
            reads = [f"{_span(_counts(r, 1))} {name}" for name, r in self.readings[term].items()]
            share = percent(self.shares[term]) if reads else ""
            rows.append([term, str(shape), self.lines[term], ", ".join(reads) or "nothing", share])
        return rows

    def _latent_rows(self) -> list[list[str]]:
        total = sum(int(np.prod(s)) for term, s in self.shapes.items() if self.readings[term])
        rows = [["latent", "shape", "q", f"blanket, of {total:,} terms", "gradient"]]
        block = {name: block for block in self.structure for name in block.names}
        for name, latent in self.problem.latents.items():
            shape = self.problem.shape(name)
            counts = np.sum([_counts(read[name], 0) for read in self.readings.values() if name in read], axis=0)
            estimator = self.estimators.get("+".join(block[name].names) if name in block else name, "held")
            q = self.families.get(name, latent.family.name)
            rows.append([name, str(shape + latent.event), q, _span(counts), estimator])
        return rows if self.estimators else [row[:-1] for row in rows]

    def _warnings(self) -> list[str]:
        places = dict.fromkeys(f"  {lost.line or 'somewhere'}: {lost.why}" for lost in self.lost)
        heading = "Read with less precision than there is (more variance, no bias):"
        flat = [f"  {words}" for words in self.without_prior]
        joint = [f"  {_in_words(block, self.problem.model)}" for block in self.structure]
        swaps = [f"  the {one.num} components of {', '.join(one.latents)}" for one in self.exchangeable]
        lists = {
            "Latents that share a factor of q:": joint,
            "Can change places without changing log p, so that an optimum has copies:": swaps,
            heading: places,
            "Without a prior:": flat,
        }
        return ["\n".join([title, *lines]) for title, lines in lists.items() if lines]


def explain(model: AnyModel, data: Any = None, posterior: Posterior | None = None, group: int = 0) -> Explanation:
    """Show the terms of a log joint, which latents each reads, and where precision was lost.

    Of a hierarchical model, one group's terms are shown. The last column is each array's share of the variance of
    log p under q: the posterior's, or the starting q's. With a posterior, the estimator of each latent's gradient is
    shown.

    Examples:
        >>> import bbvi, jax.numpy as jnp, numpyro.distributions as dist
        >>> def log_joint(z, y):
        ...     walk = dist.Normal(z["x"][:-1], 1.0).log_prob(z["x"][1:]).sum()
        ...     return walk + dist.Normal(z["x"], 1.0).log_prob(y).sum()
        >>> found = bbvi.explain(bbvi.Model(log_joint, x=bbvi.real(4)), jnp.zeros(4))
        >>> found.matrix.astype(int).toarray()[:3]  # the walk
        array([[1, 1, 0, 0],
               [0, 1, 1, 0],
               [0, 0, 1, 1]])
    """
    problem, flat, groups = bind(model, data)
    row = None
    if groups is not None:
        if not 0 <= group < problem.num_groups:
            raise ValueError(f"explain: group must be in 0 .. {problem.num_groups - 1}, got {group}")
        problem, row = _one_group(model, groups, group)
    blankets = find_blankets(problem, flat, row)
    shapes = {term: shape for scope in blankets.scopes for term, shape in scope.shapes.items()}
    lines = {term: line for scope in blankets.scopes for term, line in scope.split.lines.items()}
    lost = [item for scope in blankets.scopes for item in scope.lost]
    readings = {term: _readings(scope, term, row) for scope in blankets.scopes for term in scope.shapes}
    drawn = problem if posterior is None else Problem(posterior.model, problem.lengths, problem.num_groups)
    params = _params(drawn, posterior, group)
    shares = _shares(drawn, problem, blankets, params, flat, row)
    elements = sum(int(np.prod(problem.shape(n) + latent.event)) for n, latent in problem.latents.items())
    num = sum(int(np.prod(shape)) for term, shape in shapes.items() if readings[term])
    title = f"{num:,} terms, {elements:,} latent elements" + ("" if groups is None else f" (group {group})")
    estimators = {} if posterior is None else posterior.estimators
    structure = _structure(problem, blankets) if posterior is None else posterior.structure
    families = {name: q for name, _, q in structured(problem.model, structure).families_in_blocks()}
    return Explanation(
        problem, shapes, readings, lines, shares, lost, title, estimators, without_prior(blankets), structure, families,
        exchangeable(problem, blankets, flat, row),
    )  # fmt: skip


def _structure(problem: Problem, blankets: Blankets) -> tuple[Block, ...]:
    is_open = problem.model.is_open
    return choose_structure(Analysis(problem, blankets, fit_globals=True)) if is_open else problem.model.structure


def _in_words(block: Block, model: AnyModel) -> str:
    if block.forest is not None:
        roots = block.forest.count(-1)
        return f"{block.names[0]}, a number given its parent: {len(block.forest) - roots} pairs in {roots} trees"
    names, parents = ", ".join(block.names), block.names[: block.parents]
    if block.given:
        names += f", given {', '.join(block.given)}"
    if block.axes:
        axes = (model.globals | model.locals)[block.names[0]].shape[: block.axes]
        names += f": one factor for each entry of {' by '.join(map(str, axes))}"
    found = names + (f"; the scales of the others depend on {', '.join(parents)}" if parents else "")
    if block.core is None:
        return found
    near = f", each other with those near it, in blocks of {block.width}" if block.width else ""
    return f"{found}; {block.core:,} numbers are linked with all{near}"


def _one_group(model: AnyModel, groups: AbstractGroups, group: int) -> tuple[Problem, Any]:
    """The problem of one group at its own length, and its row."""
    rows = groups.take(np.array([group]))
    own = {axis: max(1, int(length[0])) for axis, length in groups.lengths(np.array([group])).items()}
    if isinstance(groups, Cohort):
        rows = cut_rows(rows, groups.axes, own)
    return Problem(model, own, 1), jax.tree.map(lambda leaf: leaf[0], rows)


def _readings(scope: Scope, term: str, row: Any) -> dict[str, AbstractPattern]:
    found = {name: of[term] for name, of in scope.patterns.items() if term in of}
    for name, of in scope.look_ups.items():
        if term in of and name not in found:
            rows, columns = of[term].pairs(scope.indices(row)).nonzero()
            found[name] = Scattered(rows, columns, math.prod(scope.shapes[term]), scope.problem.shape(name))
    return {name: found[name] for name in scope.problem.latents if name in found}


def _params(problem: Problem, posterior: Posterior | None, group: int) -> Lambda:
    params = starting_params(problem, seed_key(0)) if posterior is None else posterior._params
    group = 0 if posterior is None else group
    corners = {name: (group, *map(slice, problem.shape(name))) for name in problem.locals}
    rows = {name: {key: leaf[at] for key, leaf in params["locals"][name].items()} for name, at in corners.items()}
    return {**params["globals"], **rows}


def _shares(
    drawn: Problem, problem: Problem, blankets: Blankets, params: Lambda, data: Any, row: Any
) -> dict[str, float]:
    """Each array's share of the sum of their variances under q, whose factors are those of `drawn`."""

    def as_seen(found: dict[str, Any]) -> dict[str, Any]:
        return _samples_last(problem.joined, _samples_last(drawn.members, found))

    def totals(params: Lambda) -> dict[str, Any]:
        samples = jnp.arange(_NUM_DRAWS, dtype=jnp.uint32)
        key = seed_key(0)
        of_globals, _ = draw_values(drawn, drawn.globals, params, key=key, samples=samples)
        beta = as_seen(of_globals)
        found = dict(blankets.prior.at_samples(beta, data, _NUM_DRAWS))
        if problem.num_groups:
            of = OfGroup(features=features_at(drawn, params, of_globals))
            z = as_seen(draw_values(drawn, drawn.locals, params, key=fold(key, 0), samples=samples, of=of)[0])
            found |= blankets.of_group.at_samples({**beta, **z}, row, _NUM_DRAWS)
        return {name: value.reshape(-1, _NUM_DRAWS).sum(0) for name, value in found.items()}

    sums = jax.jit(totals, **for_one_run())(params)
    variances = {name: float(np.var(np.asarray(value, np.float64))) for name, value in sums.items()}
    total = sum(variances.values())
    return {name: variance / total if total > 0 else 0.0 for name, variance in variances.items()}


def _samples_last(split: Callable[..., dict[str, Any]], arrays: dict[str, Any]) -> dict[str, Any]:
    return jax.vmap(split, in_axes=-1, out_axes=-1, axis_size=_NUM_DRAWS)(arrays)


def _counts(pattern: AbstractPattern, axis: int) -> np.ndarray:
    """How many factors of q each term element reads (axis 1), or how many term elements read each factor (axis 0)."""
    if not isinstance(pattern, Reduction):
        return pattern.pairs().sum(axis, dtype=int)
    # all the same, and there may be too many pairs to list
    sizes = [math.prod(pattern.term_shape), math.prod(pattern.factor_shape)]
    matched = math.prod(pattern.term_shape[k] for k in pattern.matched if k is not None)
    return np.full(sizes[1 - axis], sizes[axis] // matched)


def _names(shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """Name the elements of arrays of these shapes, array after array."""
    return [element_name(name, index) for name, shape in shapes.items() for index in np.ndindex(*shape)]


def _span(counts: np.ndarray) -> str:
    low, high = int(counts.min()), int(counts.max())
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


def _table(rows: list[list[str]]) -> str:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _html_table(rows: list[list[str]]) -> str:
    def row(tag: str, cells: list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return f"<table>{row('th', rows[0])}{''.join(row('td', cells) for cells in rows[1:])}</table>"
