"""What ArviZ works with: draws, log densities, data and predictions, with the names of their axes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.model.groups import Cohort, Stream
from bbvi.model.labels import field_name
from bbvi.model.origin import Origin
from bbvi.model.problem import Problem, bind
from bbvi.numerics.address import fold, seed_key
from bbvi.posterior.arviz import coords_of, dims_of, inference_data
from bbvi.posterior.log_densities import LogDensities, at_draws, short_name
from bbvi.posterior.predictions import blocks_of_results, is_by_group
from bbvi.posterior.values import Ragged

Arrays = dict[str, np.ndarray]


class Results:
    """The groups of an InferenceData as they are collected, with the names of axes and the entries along them."""

    def __init__(self, posterior: Any, data: Any):
        self.posterior = posterior
        self.problem: Problem = posterior._problem
        self.data, self.groups = posterior._data, posterior._groups
        if data is not None:
            self.problem, self.data, self.groups = bind(posterior.model, data)
        self.labels = self.problem.labels
        self.has_data = data is not None or not posterior._without_data
        model = posterior.model
        self.of_groups = self._of_groups()
        self.dims: dict[str, Sequence[str]] = dict(dims_of(model, self.of_groups))
        self.coords: dict[str, Any] = {**self.labels.coords, **coords_of(model)}
        self.found: dict[str, Arrays] = {}
        self.notes: dict[str, str] = {}

    def _of_groups(self) -> str:
        """Name the axis of the groups, as the data name it."""
        firsts = {own[0] for own in self.labels.dims.values() if own}
        return self.labels.group if self.labels.group != "group" or len(firsts) != 1 else firsts.pop()

    def add(self, group: str, values: Mapping[str, Any], *, chain: bool = True) -> None:
        """Put arrays, if there are any, into a group; draws stand on the first axis, in a single chain."""
        if not values:
            return
        self.found[group] = {name: np.asarray(x)[None] if chain else np.asarray(x) for name, x in values.items()}

    def name_axes(self, name: str, shape: Sequence[int]) -> None:
        """Name the axes of an array after those of the field of this name; others by their number."""
        own = list(self.labels.dims.get(name, ()))
        lead = [] if self.groups is None else [self.of_groups]
        axes = own if len(own) == len(shape) else [*lead, *(f"{name}_dim_{k}" for k in range(len(shape) - len(lead)))]
        self.dims.setdefault(name, axes)

    def at_length(self, name: str, x: np.ndarray, axis: int = 0) -> np.ndarray:
        """Lay the real elements of a ragged field one after another; `axis` is that of the groups."""
        if not isinstance(self.groups, Cohort) or name not in self.groups.axes:
            self.name_axes(name, x.shape[axis:])
            return x
        ragged = self.groups.axes[name]
        rest = [f"{name}_dim_{k}" for k in range(x.ndim - axis - 2)]
        self.dims[name] = [self._along(ragged), *rest]
        return x[(slice(None),) * axis + (self.mask(ragged),)]

    def mask(self, axis: str) -> np.ndarray:
        """Tell which elements along a ragged axis are there."""
        assert isinstance(self.groups, Cohort)
        own = np.asarray(self.groups.own[axis])
        return np.arange(self.groups.padded()[axis]) < own[:, None]

    def _along(self, axis: str) -> str:
        """Name the axis on which the elements of all groups stand one after another, and its entries by group and place."""
        assert isinstance(self.groups, Cohort)
        places = np.argwhere(self.mask(axis))
        entries = self.coords.get(self.of_groups, np.arange(len(self.groups)))
        self.coords[f"{axis}_of_{self.of_groups}"] = [f"{entries[g]}, {k}" for g, k in places]
        return f"{axis}_of_{self.of_groups}"

    def fields(self) -> Arrays:
        """Return the arrays of the data by name."""
        given = self.data
        if isinstance(self.groups, Cohort):
            given = self.groups.fields
        elif self.groups is not None:
            given = self.groups.take(np.arange(len(self.groups)))
        leaves = jax.tree_util.tree_leaves_with_path(given)
        return {field_name(path): np.asarray(x) for path, x in leaves if hasattr(x, "shape")}


def to_inference_data(
    posterior: Any,
    n: int,
    seed: Any,
    *,
    data: Any = None,
    predict: Callable[..., Any] | None = None,
    prior: Mapping[str, Any] | None = None,
    log_likelihood: str | Sequence[str] | bool | None = None,
) -> Any:
    """Collect everything that ArviZ's statistics and plots ask for."""
    results = Results(posterior, data)
    drawn = {name: posterior._draw(name, n, seed, None) for name in results.problem.latents}
    members = posterior.sample(n, seed)
    results.add("posterior", {name: with_nan(x) if isinstance(x, Ragged) else x for name, x in members.items()})
    log_q = jax.jit(jax.vmap(posterior.log_prob))({name: _whole(x) for name, x in members.items()})
    results.add("sample_stats", {"log_q": np.asarray(log_q, np.float64)})
    origin = posterior.model.origin
    if origin is not None:
        if data is not None:
            raise ValueError(
                f"to_arviz: the model holds the data that from_{origin.library} was called with: leave data= out, or call that again"
            )
        if results.has_data:
            _densities(results, drawn, False)
        _from_origin(results, origin, members, seed, predict=predict, prior=prior, log_likelihood=log_likelihood)
    elif results.has_data:
        _densities(results, drawn, log_likelihood)
        _predictions(results, predict, prior, drawn, seed)
    found = inference_data(results.found, results.dims, results.coords)
    for part in (found, found["posterior"]):
        part.attrs.update(results.notes)
    return found


def _densities(results: Results, drawn: dict[str, Any], wanted: Any) -> None:
    if results.problem.opaque or (wanted is None and isinstance(results.groups, Stream)):
        results.notes["log_likelihood"] = "not computed: the model is opaque, or its data are a stream"
        return
    names = [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, (list, tuple)) else None
    found = at_draws(results.problem, results.data, results.groups, drawn, names, every=wanted is True)
    results.found["sample_stats"]["log_p"] = found.log_p[None]
    if found.refused:
        results.notes["log_likelihood"] = found.refused
    elif found.pointwise and wanted is not False:
        results.add("log_likelihood", dict(_observations(results, label, found) for label in found.pointwise))


def _observations(results: Results, label: str, found: LogDensities) -> tuple[str, np.ndarray]:
    """Lay the observations of a term one after another where some of its elements are none."""
    values, keep = found.pointwise[label], found.observed[label]
    name = short_name(label)
    name = "log_likelihood" if name == "log_joint" else name
    if keep.all():
        known = next((f for f in results.labels.dims if f == name or len(results.labels.dims[f]) == keep.ndim), name)
        results.name_axes(name, keep.shape) if known == name else results.dims.setdefault(
            name, results.labels.dims[known]
        )
        return name, values
    axes = results.groups.padded() if isinstance(results.groups, Cohort) else {}
    for axis in axes:
        if np.array_equal(keep, results.mask(axis)):
            results.dims[name] = [results._along(axis)]
            return name, values[:, keep]
    results.dims[name] = [f"{name}_observation"]
    return name, values[:, keep]


def _predictions(results: Results, predict: Any, prior: Any, drawn: dict[str, Any], seed: Any) -> None:
    fields = {} if isinstance(results.groups, Stream) else results.fields()
    observed = fields
    if predict is not None:
        values = _predicted(results, predict, drawn, seed)
        if len(values) == 1 and "data" in fields:
            # data that have no name are what is predicted
            fields = observed = {next(iter(values)): fields["data"]}
        observed = {name: x for name, x in fields.items() if name in values}
        results.add("posterior_predictive", {name: results.at_length(name, x, 1) for name, x in values.items()})
    if prior is not None:
        latents = {**results.posterior.model.globals, **results.posterior.model.locals}
        if missing := [name for name in latents if name not in prior]:
            raise ValueError(
                f"to_arviz: prior= takes draws of every latent, as posterior.sample gives them; it lacks {missing}"
            )
        results.add("prior", {name: with_nan(x) if isinstance(x, Ragged) else x for name, x in prior.items()})
        if predict is not None:
            whole = {
                name: np.nan_to_num(_whole(x)) if isinstance(x, Ragged) else np.asarray(x) for name, x in prior.items()
            }
            values = _predicted(results, predict, results.problem.joined(whole), seed)
            results.add("prior_predictive", {name: results.at_length(name, x, 1) for name, x in values.items()})
    constant = {name: x for name, x in fields.items() if name not in observed}
    for group, own in (("observed_data", observed), ("constant_data", constant)):
        if own:
            results.add(group, {name: results.at_length(name, x) for name, x in own.items()}, chain=False)


def _predicted(results: Results, predict: Any, drawn: Mapping[str, Any], seed: Any) -> Arrays:
    problem = results.problem

    def draw(name: str, own: np.ndarray) -> Any:
        return drawn[name][:, own] if name in problem.locals else drawn[name]

    numbers = np.arange(problem.num_groups)
    blocks = [
        jax.tree.map(np.asarray, block)
        for block in blocks_of_results(problem, (results.data, results.groups), draw, predict, seed, numbers)
    ]
    whole = jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *blocks)
    if not is_by_group(problem, predict):
        whole = jax.tree.map(lambda leaf: leaf[:, 0], whole)
    return {field_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(whole)}


def _from_origin(
    results: Results,
    origin: Origin,
    members: Mapping[str, Any],
    seed: Any,
    *,
    predict: Any,
    prior: Any,
    log_likelihood: Any,
) -> None:
    """Speak of the variables of the model as it was written for another library; so do `predict` and `prior`."""
    sites = origin.sites(members)
    results.dims.update({name: list(own) for name, own in origin.dims.items()})
    results.coords.update(origin.coords)
    results.add("posterior", sites)
    if log_likelihood is not False:
        found = {} if origin.log_likelihood is None else origin.log_likelihood(members)
        names = [log_likelihood] if isinstance(log_likelihood, str) else log_likelihood
        wanted = list(names) if isinstance(names, (list, tuple)) else [*found]
        if (log_likelihood is True and not found) or not {*wanted} <= {*found}:
            raise ValueError(f"to_arviz: log_likelihood={log_likelihood!r}, but the observed variables are {[*found]}")
        if found:
            results.add("log_likelihood", {name: found[name] for name in wanted})
    draw = origin.predict if predict is None else _of_sites(results, predict)
    key = jax.random.wrap_key_data(jnp.asarray(fold(seed_key(seed), "predictions")), impl="threefry2x32")
    if draw is not None:
        results.add("posterior_predictive", draw(sites, key))
    if prior is not None:
        if missing := [name for name in sites if name not in prior]:
            raise ValueError(
                f"to_arviz: prior= takes draws of the variables of the {origin.library} model; it lacks {missing}"
            )
        before = {name: jnp.asarray(prior[name]) for name in sites}
        results.add("prior", before)
        if draw is not None:
            results.add("prior_predictive", draw(before, key))
    if origin.observed:
        results.add("observed_data", origin.observed, chain=False)


def _of_sites(results: Results, predict: Callable[..., Any]) -> Callable[..., Any]:
    """Call a user's function for each draw of another library's variables."""
    data = results.data if results.groups is None else results.fields()

    def draw(sites: Mapping[str, Any], key: Any) -> Any:
        keys = jax.random.split(key, len(next(iter(sites.values()))))
        return jax.jit(jax.vmap(lambda z, own: predict(z, data, own)))(dict(sites), keys)

    return draw


def _whole(value: Any) -> Any:
    return value.padded if isinstance(value, Ragged) else value


def with_nan(value: Ragged) -> np.ndarray:
    """Return draws of a ragged local as one array, NaN where a group is shorter."""
    out = np.full(value.padded.shape, np.nan)
    for group, one in enumerate(value):
        corner: Any = tuple(map(slice, np.shape(one)[1:]))
        out[(slice(None), group, *corner)] = one
    return out
