"""The fitted q(z | lambda) and what can be asked of it."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float

from bbvi.draws.draws import MonteCarlo, draw_latent, latent_values, log_q
from bbvi.families.abstract import Lambda
from bbvi.model.groups import AbstractGroups
from bbvi.model.latents import Latent
from bbvi.model.model import AnyModel
from bbvi.model.problem import Problem, bind
from bbvi.numerics.address import Key, fold, seed_key
from bbvi.posterior.khat import Khat, flat_khat, hierarchical_khat
from bbvi.posterior.plot import plot_history
from bbvi.posterior.ratios import Estimate, Ratios, elbo_samples, from_samples
from bbvi.posterior.storage import check_same_model, describe, flatten, read, unflatten, write
from bbvi.posterior.summary import summarise, to_inference_data
from bbvi.posterior.values import Ragged, Table

_DRAWS_FOR_MOMENTS = 8192


class Posterior:
    """A fitted variational distribution q(z | lambda).

    Attributes:
        model: the model it belongs to.
        converged: True only if a convergence rule stopped the fit.
        stopped: why the fit stopped, in words.
        estimators: the estimator of each latent's gradient.

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
        converged: bool = False,
        stopped: str = "",
        estimators: Mapping[str, str] | None = None,
    ):
        self._problem, self._params, self._data, self._groups = problem, params, data, groups
        self._lengths, self._records, self._without_data = lengths or {}, list(history), without_data
        self.model: AnyModel = problem.model
        self.converged, self.stopped, self.estimators = converged, stopped, dict(estimators or {})

    def __repr__(self) -> str:
        verdict = "converged" if self.converged else "not converged"
        return f"Posterior({self.model!r}; {verdict}: {self.stopped}; {self._num_steps()} steps)"

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
    def history(self) -> pd.DataFrame:
        """One row a step: ELBO and its Monte Carlo error, root mean square change, floored draws, draws, seconds.

        `history.attrs["estimators"]` names the estimator of each latent's gradient.
        """
        names = ("elbo", "elbo_error", "change", "floored", "draws", "seconds")
        columns = {n: np.concatenate([r[n] for r in self._records] or [np.zeros(0)]) for n in names}
        table = pd.DataFrame(columns, index=pd.RangeIndex(1, len(columns["elbo"]) + 1, name="step"))
        table.attrs["estimators"] = self.estimators
        return table

    def replace(self, params: Lambda) -> "Posterior":
        """The same q at another lambda; `log_prob` is differentiable in it."""
        shapes = [jax.tree.map(jnp.shape, dict(tree)) for tree in (params, self.params)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"replace: expected parameters of shapes {shapes[1]}, got {shapes[0]}")
        new = {part: {name: params[name] for name in latents} for part, latents in self._params.items()}
        return Posterior(
            self._problem, new, data=self._data, groups=self._groups, lengths=self._lengths,
            without_data=self._without_data, history=self._records, converged=self.converged, stopped=self.stopped,
            estimators=self.estimators,
        )  # fmt: skip

    def sample(self, n: int, seed: int | Array = 0, *, groups: Any = None) -> dict[str, Any]:
        """Draw n samples: `(n, ...)` for globals, `(n, group, ...)` for locals."""
        return self._problem.members({name: self._draw(name, n, seed, groups) for name in self._problem.latents})

    def _draw(self, name: str, n: int, seed: int | Array, groups: Any) -> Any:
        key, draws, padded = fold(seed_key(seed), "sample"), MonteCarlo(n), tuple(self._problem.lengths.items())
        latent = self._problem.latents[name]
        params, numbers = self._rows(name, groups)
        if name in self._problem.globals:
            return _sample(params, key, None, name, latent, draws, padded)
        return self._ragged(latent, _sample(params, key, jnp.asarray(numbers), name, latent, draws, padded), numbers, 1)

    def mean(self, *, groups: Any = None) -> Table:
        """Posterior mean of each latent."""
        return self._statistic(
            "mean", lambda latent, params: _first(latent.family.moments(params), 0), lambda x: x.mean(0), groups
        )

    def sd(self, *, groups: Any = None) -> Table:
        """Posterior standard deviation of each latent."""
        return self._statistic(
            "sd", lambda latent, params: _first(latent.family.moments(params), 1), lambda x: x.std(0), groups
        )

    def quantile(self, p: float, *, groups: Any = None) -> Table:
        """Marginal posterior quantile of each latent."""
        if not (isinstance(p, (int, float, np.number)) and 0 <= p <= 1):
            raise ValueError(f"quantile: p must be a number between 0 and 1, got {p!r}")
        return self._statistic(
            "quantile",
            lambda latent, params: latent.family.quantile(params, p),
            lambda x: np.quantile(x, p, axis=0),
            groups,
        )

    def probs(self, *, groups: Any = None) -> Table:
        """Probabilities of each value of binary, categorical and one-hot latents, on a last axis."""
        out, refused = {}, {}
        for name, latent in self._problem.latents.items():
            params, numbers = self._rows(name, groups)
            if latent.support in ("categorical", "one_hot") and "logits" in params:
                value = np.asarray(jax.nn.softmax(params["logits"]))
            elif latent.support == "binary" and "logits" in params:
                one = np.asarray(jax.nn.sigmoid(params["logits"]))
                value = np.stack([1 - one, one], -1)
            else:
                for member, own in self.model.blocks.get(name, {name: latent}).items():
                    refused[member] = (
                        f"{member!r} is {own.support}: it has no finite list of values; use mean() or quantile()"
                    )
                continue
            out[name] = self._ragged(latent, value, numbers, 0) if name in self._problem.locals else value
        return Table(out, refused)

    def log_prob(self, z: dict[str, Any]) -> Float[Array, ""]:
        """log q(z) of one draw of all latents, locals with all their groups; vmappable."""
        missing = [name for name in (*self.model.globals, *self.model.locals) if name not in z]
        if missing:
            raise ValueError(f"log_prob needs a value for every latent; {missing} are missing")
        z = self._problem.joined(z)
        value, padded = jnp.zeros(()), tuple(self._problem.lengths.items())
        for name, latent in self._problem.latents.items():
            z_i = z[name].padded if isinstance(z[name], Ragged) else jnp.asarray(z[name])
            local = name in self._problem.locals
            expected = ((self.num_groups,) if local else ()) + self._problem.shape(name) + latent.event
            if z_i.shape != expected:
                raise ValueError(f"log_prob: {name!r} has shape {z_i.shape}, expected {expected}")
            own = {axis: jnp.asarray(self._lengths[axis]) for axis in latent.ragged_axes}
            value = value + _log_prob(self.params[name], z_i, own, latent, padded, local)
        return value

    def elbo(self, n: int = 1000, *, data: Any = None, seed: int | Array = 0) -> Estimate:
        """The ELBO at n fresh draws, a float with a `.standard_error`."""
        ratios, flat, groups = self._ratios(data)
        return from_samples(elbo_samples(ratios, self._params, flat, groups, n, seed_key(seed)))

    def khat(self, n: int = 1000, *, data: Any = None, seed: int | Array = 0) -> Khat:
        """Pareto k-hat of q against the posterior: below 0.7 q is near enough for importance sampling.

        A float for the globals jointly (all latents of a flat model), with `.locals` for each group given the
        globals.
        """
        ratios, flat, groups = self._ratios(data)
        key = fold(seed_key(seed), "khat")
        if groups is None:
            return flat_khat(elbo_samples(ratios, self._params, flat, None, n, key))
        return hierarchical_khat(ratios, self._params, flat, groups, n, key, self._locate())

    def summary(self, *, limit: int = 100, groups: Any = None) -> pd.DataFrame:
        """A table of means, standard deviations and 90 % intervals; discrete latents by mode and probability."""
        return summarise(self, limit=limit, groups=groups)

    def plot(self) -> Any:
        """Plot the ELBO with its noise band and the step sizes; returns a matplotlib figure."""
        return plot_history(self)

    def to_arviz(self, n: int = 1000, seed: int | Array = 0) -> Any:
        """Draws as an ArviZ InferenceData with named dimensions; padding is NaN."""
        return to_inference_data(self, n, seed)

    def _repr_html_(self) -> str:
        verdict = "converged" if self.converged else "<b>not converged</b>"
        return f"<p>{verdict}: {self.stopped}; {self._num_steps()} steps</p>{self.summary()._repr_html_()}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write lambda, history and verdict to a file of plain arrays; read it with `bbvi.load`."""
        arrays = {"params": self._params, "lengths": self._lengths, "history": dict(self.history)}
        header = {
            "model": describe(self.model), "num_groups": self.num_groups, "padded": self._problem.lengths,
            "converged": self.converged, "stopped": self.stopped, "estimators": self.estimators,
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

    def _rows(self, name: str, groups: Any) -> tuple[Any, np.ndarray]:
        numbers = self._numbers(groups)
        if name in self._problem.globals:
            return self._params["globals"][name], numbers
        return jax.tree.map(lambda leaf: leaf[numbers], self._params["locals"][name]), numbers

    def _ragged(self, latent: Latent, values: Any, numbers: np.ndarray, group_axis: int) -> Any:
        if not latent.ragged_axes:
            return values
        own = {a: self._lengths[size][numbers] for a, size in enumerate(latent.shape) if isinstance(size, str)}
        return Ragged.of(values, own, group_axis)

    def _statistic(
        self, what: str, exact: Callable[[Latent, Any], Any], of_draws: Callable[[np.ndarray], np.ndarray], groups: Any
    ) -> Table:
        out, refused = {}, {}
        for name, latent in self._problem.latents.items():
            if latent.support == "categorical":
                refused[name] = (
                    f"{name!r} is categorical: a {what} of category codes means nothing; use posterior.probs()[{name!r}]"
                )
                continue
            params, numbers = self._rows(name, groups)
            value = exact(latent, params)
            local = name in self._problem.locals
            if value is None:
                drawn = self._draw(name, _DRAWS_FOR_MOMENTS, 0, groups)
                value = of_draws(np.asarray(drawn.padded if isinstance(drawn, Ragged) else drawn, np.float64))
            out[name] = self._ragged(latent, value, numbers, 0) if local else value
        return Table(self._problem.members(out), refused)

    def _locate(self) -> dict[str, Array]:
        """A central value of each global: its mean, or its most probable category."""
        means, centre = self._problem.joined(self.mean()), {}
        for name, latent in self._problem.globals.items():
            if latent.support == "categorical":
                centre[name] = jnp.argmax(self._params["globals"][name]["logits"], -1)
            elif latent.support == "one_hot":
                centre[name] = jax.nn.one_hot(jnp.argmax(jnp.asarray(means[name]), -1), *latent.event, dtype=int)
            elif latent.family.is_discrete():
                centre[name] = jnp.round(jnp.asarray(means[name])).astype(int)
            else:
                centre[name] = jnp.asarray(means[name], float)
        return centre

    def _ratios(self, data: Any) -> tuple[Ratios, Any, AbstractGroups | None]:
        problem, flat, groups = self._problem, self._data, self._groups
        if data is not None:
            problem, flat, groups = bind(self.model, data)
            if (problem.num_groups, problem.lengths) != (self.num_groups, self._problem.lengths):
                raise ValueError(
                    f"data has {problem.num_groups} groups padded to {problem.lengths}, "
                    f"but this posterior was fitted to {self.num_groups} padded to {self._problem.lengths}"
                )
        elif self._without_data:
            raise ValueError("this posterior was loaded without its data; pass data=")
        return Ratios(problem, flat, groups), flat, groups


# compiled once for a latent and a number of draws, however often they are asked for
@functools.partial(jax.jit, static_argnames=("name", "latent", "draws", "padded"))
def _sample(
    params: Any,
    key: Key,
    groups: Array | None,
    name: str,
    latent: Latent,
    draws: MonteCarlo,
    padded: tuple[tuple[str, int], ...],
) -> Array:
    """Draws of one latent, `(draws, ...)`, or of these groups' rows of it, `(draws, group, ...)`."""
    samples = jnp.arange(draws.num, dtype=jnp.uint32)

    def one(p: Any, at: Key) -> Array:
        u = draw_latent(draws, name, latent, p, key=fold(at, name), group=0, samples=samples, lengths=dict(padded))
        return jnp.moveaxis(latent_values(latent, u), -1, 0)

    if groups is None:
        return one(params, key)
    return jax.vmap(lambda p, group: one(p, fold(key, group)), out_axes=1)(params, groups)


@functools.partial(jax.jit, static_argnames=("latent", "padded", "local"))
def _log_prob(
    params: Any, z: Array, own: dict[str, Array], latent: Latent, padded: tuple[tuple[str, int], ...], local: bool
) -> Float[Array, ""]:
    """log q of one latent, summed over its factors that are not padding."""

    def one(p: Any, z_one: Array, lengths: dict[str, Array]) -> Array:
        inverse = latent.family.coordinates
        for _ in latent.shape:
            inverse = jax.vmap(inverse)
        log_density = log_q(latent, p, inverse(z_one)[..., None])[..., 0]
        keep = latent.mask(dict(padded), lengths) if lengths else True
        return jnp.where(keep, log_density, 0).sum()

    return jax.vmap(one)(params, z, own).sum() if local else one(params, z, own)


def own_lengths(groups: AbstractGroups | None) -> dict[str, np.ndarray]:
    """Every group's length of every ragged axis."""
    if groups is None:
        return {}
    return {axis: np.asarray(own) for axis, own in groups.lengths(np.arange(len(groups))).items()}


def load(path: str | os.PathLike[str], model: AnyModel, data: Any = None) -> Posterior:
    """Read a posterior written by `Posterior.save`, for the same model.

    Examples:
        >>> import bbvi, tempfile, os, numpyro.distributions as dist
        >>> model = bbvi.Model(lambda z, y: dist.Normal(0, 1).log_prob(z["mu"]), mu=bbvi.real())
        >>> posterior = bbvi.fit(model, None, stop=bbvi.Budget(steps=0))
        >>> path = os.path.join(tempfile.mkdtemp(), "posterior.npz")
        >>> posterior.save(path)
        >>> bool(bbvi.load(path, model).mean()["mu"] == posterior.mean()["mu"])
        True
    """
    header, arrays = read(path, "posterior")
    check_same_model(path, header["model"], model)
    tree = unflatten(arrays)
    problem = Problem(model, header["padded"], header["num_groups"])
    flat, groups = None, None
    if data is not None:
        bound, flat, groups = bind(model, data)
        if bound.num_groups != problem.num_groups or bound.lengths != problem.lengths:
            raise ValueError(f"{path} was fitted to {problem.num_groups} groups, the data have {bound.num_groups}")
        problem = bound
    params = {part: jax.tree.map(jnp.asarray, tree["params"].get(part, {})) for part in ("globals", "locals")}
    return Posterior(
        problem, params, data=flat, groups=groups, lengths=tree.get("lengths", {}), history=[tree["history"]],
        without_data=header["has_data"] and data is None, converged=header["converged"], stopped=header["stopped"],
        estimators=header["estimators"],
    )  # fmt: skip


def _first(pair: Any, index: int) -> Any:
    return None if pair is None else pair[index]
