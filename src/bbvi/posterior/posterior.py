"""The fitted q(z | lambda) and what can be asked of it."""

import copy
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.draws.tilts import features_at, informed
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups, Stream
from bbvi.model.joint import Block
from bbvi.model.model import AnyModel
from bbvi.model.origin import origin_of
from bbvi.model.paired import in_order, is_paired
from bbvi.model.problem import Problem
from bbvi.numerics.address import fold, seed_key
from bbvi.posterior.khat import khat_of
from bbvi.posterior.outcome import Outcome
from bbvi.posterior.pareto import Khat
from bbvi.posterior.plot import plot_history
from bbvi.posterior.ratios import Densities, Estimate, Ratios, bind_again, from_samples
from bbvi.posterior.reweighted import Reweighted, reweight
from bbvi.posterior.storage import describe, flatten, write
from bbvi.posterior.values import Ragged, Table, log_q_at, of_discrete, of_draws, probabilities, sample_latent
from bbvi.posterior.verdict import verdict

if TYPE_CHECKING:
    import pandas as pd

_DRAWS_FOR_MOMENTS = 8192


class Posterior:
    """A fitted variational distribution q(z | lambda).

    Attributes:
        model: the model it belongs to.
        outcome: how the fit ended, a `bbvi.Outcome`.
        stopped: the same in words: the rule that stopped the fit, or what went wrong.
        estimators: the estimator of each latent's gradient.
        restarts: the ELBOs of all starts after their short runs, that of the one that went on first; empty if there was one.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
        >>> posterior.converged
        False
    """

    def __init__(
        self,
        problem: Problem,
        params: dict[str, Lambda],
        *,
        data: Any = None,
        groups: AbstractGroups | None = None,
        lengths: dict[str, np.ndarray] | None = None,
        without_data: bool = False,
        history: Sequence[dict[str, np.ndarray]] = (),
        outcome: Outcome = Outcome.RUNNING,
        stopped: str = "",
        estimators: Mapping[str, str] | None = None,
        khat: Khat | None = None,
        densities: Densities | None = None,
        restarts: Sequence[Estimate] = (),
    ):
        self._problem, self._params, self._data, self._groups = problem, params, data, groups
        self._lengths, self._records, self._without_data = lengths or {}, list(history), without_data
        self._khat, self._densities = khat, densities
        self.restarts = tuple(restarts)
        self.model: AnyModel = problem.model
        self.outcome, self.stopped, self.estimators = outcome, stopped, dict(estimators or {})

    @property
    def converged(self) -> bool:
        """Whether a rule that looks for convergence stopped the fit."""
        return self.outcome is Outcome.CONVERGED

    @property
    def structure(self) -> tuple[Block, ...]:
        """Which latents share a factor of q; all others have one for each of their numbers."""
        return self.model.structure

    @property
    def verdict(self) -> str:
        """How the fit ended, after how many steps, how near q is to the posterior, and what to do next, in one line.

        k-hat is computed when the line is first asked for, unless that takes long or calls opaque functions, and kept.
        """
        return verdict(self)

    def _ending(self) -> str:
        converged = "converged" if self.converged else "not converged"
        return f"{converged} after {self._num_steps():,} steps ({self.stopped})"

    def __repr__(self) -> str:
        return f"Posterior({self.model!r}; {self.verdict})"

    def _num_steps(self) -> int:
        return sum(len(record["elbo"]) for record in self._records)

    @property
    def params(self) -> Lambda:
        """lambda, unconstrained: `{latent: {parameter: array}}`, rows of locals on the first axis; a block by "mu+tau"."""
        return {**self._params["globals"], **self._params["locals"]}

    @property
    def num_groups(self) -> int:
        """Number of groups; 0 for a flat model."""
        return self._problem.num_groups

    @functools.cached_property
    def history(self) -> "pd.DataFrame":
        """One row a step: ELBO and its Monte Carlo error, root mean square change, floored draws, draws, setbacks, seconds.

        A setback is a step that was not finite and was taken back.

        `history.attrs["estimators"]` names the estimator of each latent's gradient.
        """
        import pandas as pd  # slow to import

        names = ("elbo", "elbo_error", "change", "floored", "draws", "setbacks", "seconds")
        # files written before there were setbacks have no such column
        columns = {n: np.concatenate([r.get(n, 0 * r["draws"]) for r in self._records] or [np.zeros(0)]) for n in names}
        table = pd.DataFrame(columns, index=pd.RangeIndex(1, len(columns["elbo"]) + 1, name="step"))
        table.attrs["estimators"] = self.estimators
        return table

    def replace(self, params: Lambda) -> "Posterior":
        """Return the same q at another lambda; `log_prob` is differentiable in it."""
        shapes = [jax.tree.map(jnp.shape, dict(tree)) for tree in (params, self.params)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"replace: expected parameters of shapes {shapes[1]}, got {shapes[0]}")
        new = copy.copy(self)
        new._khat = None
        new._params = {part: {name: params[name] for name in latents} for part, latents in self._params.items()}
        return new

    def sample(self, n: int, seed: int | Array = 0, *, groups: Any = None) -> dict[str, Any]:
        """Draw n samples: `(n, ...)` for globals, `(n, group, ...)` for locals."""
        drawn = {name: self._draw(name, n, seed, groups) for name in self._problem.latents}
        return self._problem.members({name: self._ragged(name, value, groups, 1) for name, value in drawn.items()})

    def _draw(self, name: str, n: int, seed: int | Array, groups: Any) -> Array:
        params, latent = self._rows(name, groups), self._problem.latents[name]
        of_groups = jnp.asarray(self._numbers(groups)) if name in self._problem.locals else None
        key, padded = fold(seed_key(seed), "sample"), tuple(self._problem.lengths.items())
        features = None
        if (leading := self._problem.leading) is not None and name in self._problem.locals:
            # those of the globals that have the same numbers
            beta = {leading: jnp.moveaxis(self._draw(leading, n, seed, None), 0, -1)}
            features = features_at(self._problem, self._params["globals"], beta)
        return sample_latent(params, key, of_groups, name, latent, n, padded, features)

    def mean(self, *, groups: Any = None) -> Table:
        """Return the posterior mean of each latent."""
        return self._statistic("mean", lambda marginals: marginals.mean(), groups)

    def sd(self, *, groups: Any = None) -> Table:
        """Return the posterior standard deviation of each latent."""
        return self._statistic("sd", lambda marginals: marginals.std(), groups)

    def quantile(self, p: float, *, groups: Any = None) -> Table:
        """Return the marginal posterior quantile of each latent."""
        if not (isinstance(p, (int, float, np.number)) and 0 <= p <= 1):
            raise ValueError(f"quantile: p must be a number between 0 and 1, got {p!r}")
        return self._statistic("quantile", lambda marginals: marginals.ppf(p), groups)

    def probs(self, *, groups: Any = None) -> Table:
        """Return the probability of each value of binary, categorical and one-hot latents, on a last axis."""
        found = {}
        for name, latent in self._problem.latents.items():
            if (value := probabilities(latent, self._rows(name, groups))) is not None:
                own, value = of_discrete(self._problem, name, value)
                found[own] = self._ragged(name, value, groups, 0)
        why = "{name!r} is {support}: it has no finite list of values; use mean() or quantile()"
        return self._table(found, why)

    def log_prob(self, z: dict[str, Any]) -> Float[Array, ""]:
        """Evaluate log q(z) at one draw of all latents, locals with all their groups; vmappable."""
        if missing := [name for name in (*self.model.globals, *self.model.locals) if name not in z]:
            raise ValueError(f"log_prob needs a value for every latent; {missing} are missing")
        return log_q_at(self._problem, self._params, z, self._lengths)

    def elbo(self, n: int = 1000, *, data: Any = None, seed: int | Array = 0) -> Estimate:
        """Estimate the ELBO from n fresh draws: a float with a `.standard_error`."""
        return from_samples(self._ratios(data).of_all(n, seed_key(seed)))

    def khat(self, n: int | None = None, *, data: Any = None, seed: int | Array = 0) -> Khat:
        """Compute Pareto k-hat of q against the posterior: below 0.7 q is near enough for importance sampling.

        A float with a `.standard_error`, for the globals jointly (all latents of a flat model), with `.locals` for each group
        given the globals. Without n, draws are doubled from 1,000 until the standard error is below 0.05, to 100,000 at the
        most, fewer where a draw is expensive; opaque functions and streams get 1,000.
        """
        ratios, is_own = self._ratios(data), n is None and data is None
        if n is None and (ratios.problem.opaque or isinstance(ratios.groups, Stream)):
            n = 1000
        khat = khat_of(self, ratios, n, seed)
        if is_own:
            self._khat = khat
        return khat

    def reweighted(self, n: int = 10_000, seed: int | Array = 0) -> Reweighted:
        """Draw n samples with importance weights, by which their means, sds and quantiles are those of the posterior.

        For flat models. The largest weights are smoothed, and above a k-hat of 0.7 no weights are given.
        """
        return reweight(self._ratios(None), n, seed_key(seed))

    def summary(self, *, limit: int = 100, groups: Any = None) -> "pd.DataFrame":
        """Tabulate means, standard deviations and 90 % intervals; discrete latents by mode and probability."""
        from bbvi.posterior.summary import summarise  # imports pandas

        return summarise(self, limit=limit, groups=groups)

    def plot(self) -> Any:
        """Plot the ELBO with its noise band and the step sizes as a matplotlib figure."""
        return plot_history(self)

    def to_arviz(
        self,
        n: int = 1000,
        seed: int | Array = 0,
        *,
        data: Any = None,
        predict: Callable[..., Any] | None = None,
        prior: Mapping[str, Any] | None = None,
        log_likelihood: str | Sequence[str] | bool | None = None,
    ) -> Any:
        """Give n draws to ArviZ, with all that its statistics and plots ask for: an InferenceData, from ArviZ 1 on a DataTree.

        `predict(z, data, key)` draws what is observed, given one draw of the latents: it fills `posterior_predictive`, and
        `prior_predictive` if `prior=` has draws from the prior. For a `HierarchicalModel` it is that of one group. The fields of the
        data that it returns are `observed_data`, the others `constant_data`.

        `log_likelihood` has the density of each observation, read off `log_likelihood` of a `HierarchicalModel`; of a flat
        model, off the terms that read data, or off those that `log_likelihood="y"` names. False leaves it out.
        `data` are those of the fit unless given; data from pandas and xarray name the axes. Padding is NaN.
        A model from NumPyro or PyMC has all groups without these; `predict` and `prior`, if given, speak of its variables there.
        """
        from bbvi.posterior.results import to_inference_data

        return to_inference_data(self, n, seed, data=data, predict=predict, prior=prior, log_likelihood=log_likelihood)

    def to_numpyro(self, n: int = 1000, seed: int | Array = 0) -> dict[str, Array]:
        """Draw n samples of the sites of a `bbvi.from_numpyro` model, as `numpyro.infer.Predictive` takes them."""
        return origin_of(self.model, "numpyro").sites(self.sample(n, seed))

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write lambda, history and verdict to a file of plain arrays; read it with `bbvi.load`."""
        arrays = {"params": self._params, "lengths": self._lengths, "history": dict(self.history)}
        header = {
            "model": describe(self.model), "structure": self.structure, "num_groups": self.num_groups, "padded": self._problem.lengths,
            "converged": self.converged, "outcome": self.outcome.value, "stopped": self.stopped,
            "estimators": self.estimators, "khat": None if self._khat is None else self._khat.as_dict(),
            "restarts": [(float(one), one.standard_error) for one in self.restarts],
            "has_data": self._without_data or self._data is not None or self._groups is not None,
        }  # fmt: skip
        write(path, "posterior", header, flatten(arrays))

    def _numbers(self, groups: Any) -> np.ndarray:
        if groups is None:
            return np.arange(self.num_groups)
        numbers = np.atleast_1d(np.asarray(groups))
        if not self._problem.locals:
            raise ValueError("groups= restricts local latents, and this model has none")
        if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
            raise TypeError(f"groups= takes a group's number or a list of them, got {groups!r}")
        if numbers.size and (numbers.min() < 0 or numbers.max() >= self.num_groups):
            raise IndexError(f"groups={groups!r}: there are {self.num_groups} groups, numbered from 0")
        return numbers

    def _rows(self, name: str, groups: Any) -> Any:
        numbers = self._numbers(groups)
        if name in self._problem.globals:
            return self._params["globals"][name]
        return jax.tree.map(lambda leaf: leaf[numbers], self._params["locals"][name])

    def _ragged(self, name: str, values: Any, groups: Any, group_axis: int) -> Any:
        latent, numbers = self._problem.latents[name], self._numbers(groups)
        ragged = [(axis, size) for axis, size in enumerate(latent.shape) if isinstance(size, str)]
        own = tuple((axis, tuple(self._lengths[size][numbers].tolist())) for axis, size in ragged)
        return Ragged(values, own, group_axis) if own else values

    def _table(self, whole: dict[str, Any], why: str) -> Table:
        """Make a table by latents, which says `why` of those that are not there."""
        latents = self.model.globals | self.model.locals
        refused = {name: why.format(name=name, support=x.support) for name, x in latents.items() if name not in whole}
        return Table(whole, refused)

    def _statistic(self, what: str, ask: Callable[[Any], Any], groups: Any) -> Table:
        out, latents = {}, self.model.globals | self.model.locals
        families = informed(self._problem, self._params["globals"])
        for name, latent in self._problem.latents.items():
            if latent.support == "categorical":
                continue
            try:
                out[name] = ask(families[name].marginals(self._rows(name, groups)))
                if what == "quantile" and latent.family.chart.is_discrete:
                    out[name] = out[name].astype(int)
            except (NotImplementedError, ImportError):  # some of numpyro's need a package we do without
                x = np.asarray(self._draw(name, _DRAWS_FOR_MOMENTS, 0, groups), np.float64)
                out[name] = ask(of_draws(x))
        why = f"{{name!r}} is {{support}}: a {what} of category codes means nothing; use posterior.probs()[{{name!r}}]"
        whole = self._problem.taken_apart({name: self._ragged(name, x, groups, 0) for name, x in out.items()})
        paired = [in_order(pair)[0] for pair in self.model.blocks.values() if is_paired(pair)]
        whole |= {n: jax.tree.map(lambda x: x.astype(int), whole[n]) for n in paired if what == "quantile"}
        return self._table({n: x for n, x in whole.items() if latents[n].support != "categorical"}, why)

    def _ratios(self, data: Any) -> Ratios:
        if data is not None:
            problem, flat, groups = bind_again("this posterior", self._problem, data)
            return Ratios(problem, self._params, flat, groups)
        if self._without_data:
            raise ValueError("this posterior was loaded without its data; pass data=")
        return Ratios(self._problem, self._params, self._data, self._groups, self._densities)
