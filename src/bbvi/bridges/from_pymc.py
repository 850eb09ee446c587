"""PyMC models: log p as a JAX function of the free variables, one term for each variable, by PyTensor's JAX linker."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bbvi.bridges.pymc_groups import Grouped
from bbvi.bridges.pymc_supports import latent_of
from bbvi.model.latents import Latent
from bbvi.model.model import AnyModel, Model
from bbvi.model.origin import Origin
from bbvi.numerics.xla import for_one_run


def from_pymc(model: Any, *, groups: str | None = None) -> tuple[AnyModel, Any]:
    """Bring a PyMC model: return a `Model` of its free variables, and None for the data, which it holds.

    `groups="patient"` makes the elements of that dimension the groups of a `HierarchicalModel`, to be fitted in batches, where every
    term splits along it; then the second is the data.

    Latents are the free variables, on their supports; one on a support that bbvi has not, such as the Cholesky factor of a
    covariance, is real, through PyMC's own transform and under that name (`chol_cholesky-cov-packed__`). Terms of log p are those of the
    variables and potentials, by their names. `posterior.to_arviz(n)` speaks of PyMC's variables, deterministic ones too, with its dims
    and coords, draws the observed ones and has the density of each observation.

    PyMC is not installed with bbvi: `pip install pymc`. It changes no setting of JAX: for 64 bits, set `jax_enable_x64`.

    Examples:
        >>> import bbvi, pymc as pm  # doctest: +SKIP
        >>> with pm.Model(coords={"lab": ["a", "b", "c"]}) as pymc_model:  # doctest: +SKIP
        ...     mu = pm.Normal("mu", dims="lab")
        ...     pm.Normal("y", mu, 1, observed=[0.3, 1.2, 0.8], dims="lab")
        >>> model, data = bbvi.from_pymc(pymc_model)  # doctest: +SKIP
        >>> bbvi.fit(model, data).to_arviz(1000)  # doctest: +SKIP
    """
    pymc = _pymc()
    if not isinstance(model, pymc.Model):
        raise TypeError(f"from_pymc takes a pymc.Model, got {type(model).__name__}")
    if not model.free_RVs:
        raise ValueError("from_pymc: the model has no free variables, so nothing to infer")
    start = model.initial_point(random_seed=0)
    latents: dict[str, Any] = {}
    declared: dict[str, Any] = {}
    plain: list[Any] = []
    for rv in model.free_RVs:
        value, transform = model.rvs_to_values[rv], model.rvs_to_transforms[rv]
        shape = np.shape(start[value.name])
        latent, is_plain = latent_of(rv, transform, shape, _draw_shape(pymc, rv))
        plain += [rv] if is_plain else []
        name = rv.name if is_plain else value.name
        latents[name], declared[name] = latent, (rv, transform, shape)
    own = _without_transforms(model, plain) if plain else model
    by_name = {value.name: value for value in own.value_vars}
    values = [by_name[name] for name in latents]
    named = [*own.basic_RVs, *own.potentials]
    terms = dict(zip((term.name for term in named), own.logp(sum=False), strict=True))
    origin = _origin(pymc, model, own, values)
    if groups is not None:
        grouped = Grouped(own, groups, values, terms, _jax_function)

        def of_group(name: str, axis: int) -> Latent:
            rv, transform, shape = declared[name]
            return latent_of(rv, transform, (*shape[:axis], *shape[axis + 1 :]), _draw_shape(pymc, rv))[0]

        cut = grouped.model(latents, of_group)
        cut.origin = grouped.origin(origin)
        return cut, grouped.data
    log_p = _jax_function(values, terms)

    def log_joint(z: Mapping[str, Any], data: Any) -> dict[str, Any]:
        # a discrete latent's density may come as an integer, a constant as a double
        return {name: jnp.asarray(term, float) for name, term in log_p([z[name] for name in latents]).items()}

    found = Model(log_joint, joint=None, **latents)
    found.origin = origin
    return found, None


def _pymc() -> Any:
    try:
        import pymc  # slow to import, and not everybody has it
    except ImportError:
        raise ImportError("bbvi.from_pymc needs PyMC, which is not installed: pip install pymc") from None
    return pymc


def _without_transforms(model: Any, variables: Sequence[Any]) -> Any:
    from pymc.model.transform.conditioning import remove_value_transforms

    # it copies no model that has starting values, which have no part in log p
    starts = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(starts))
        return remove_value_transforms(model, variables)
    finally:
        model.rvs_to_initial_values.update(starts)


def _draw_shape(pymc: Any, rv: Any) -> Callable[[Any], tuple[int, ...]]:
    """Give a function that finds the shape, or constant value, of an input of a variable."""
    return lambda variable: np.shape(pymc.draw(variable, random_seed=0))


def _jax_function(inputs: Sequence[Any], outputs: Mapping[str, Any]) -> Callable[[Sequence[Any]], dict[str, Any]]:
    """Turn a PyTensor graph into a function of a list of arrays; shared variables keep their values of now."""
    before = jax.config.read("jax_enable_x64")
    from pytensor.compile.mode import get_mode
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.fg import FunctionGraph
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.traversal import graph_inputs
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.tensor import constant

    # its linker switches JAX to 64 bits for the whole process as it is imported
    jax.config.update("jax_enable_x64", before)
    shared = [v for v in graph_inputs(list(outputs.values())) if isinstance(v, SharedVariable)]
    if any(isinstance(v.get_value(borrow=True), np.random.Generator) for v in shared):
        raise ValueError(
            "from_pymc: the density draws random numbers, as that of pm.Minibatch does: give the model all data, and bring it with "
            "groups= for minibatches"
        )
    graph = clone_replace(list(outputs.values()), {v: constant(v.get_value(borrow=True)) for v in shared})
    fgraph = FunctionGraph(inputs=list(inputs), outputs=graph, clone=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it leaves out checks of parameters
        get_mode("JAX").optimizer.rewrite(fgraph)
        function = jax_funcify(fgraph)

    def call(values: Sequence[Any]) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Explicitly requested dtype")
            return dict(zip(outputs, function(*values), strict=True))

    return call


def _origin(pymc: Any, model: Any, own: Any, values: Sequence[Any]) -> Origin:
    """Tell how draws of the latents become those of PyMC's variables."""
    shown = [*own.free_RVs, *own.deterministics]
    variables = _jax_function(values, {v.name: x for v, x in zip(shown, own.replace_rvs_by_values(shown), strict=True)})
    observed = {rv.name: rv for rv in own.observed_RVs}
    log_p = own.logp(vars=list(observed.values()), sum=False) if observed else []
    densities = _jax_function(values, dict(zip(observed, log_p, strict=True)))

    def at(function: Callable[[Sequence[Any]], dict[str, Any]], draws: Mapping[str, Any]) -> dict[str, Any]:
        return jax.jit(jax.vmap(lambda *z: function(z)), **for_one_run())(*[draws[v.name] for v in values])

    def predict(found: Mapping[str, Any], key: Any) -> dict[str, Any]:
        return _predicted(pymc, model, found, key)

    data = {name: np.asarray(_constant(own.rvs_to_values[rv])) for name, rv in observed.items()}
    dims = {name: tuple(own) for name, own in model.named_vars_to_dims.items() if None not in own}
    coords = {name: np.asarray(entries) for name, entries in model.coords.items() if entries is not None}
    return Origin(
        "pymc", functools.partial(at, variables), predict if observed else None,
        functools.partial(at, densities) if observed else None, data, dims, coords,
    )  # fmt: skip


def _predicted(pymc: Any, model: Any, found: Mapping[str, Any], key: Any) -> dict[str, Any]:
    import xarray

    free = {rv.name for rv in model.free_RVs}
    arrays = {
        name: (("chain", "draw", *(f"{name}_{k}" for k in range(np.ndim(x) - 1))), np.asarray(x)[None])
        for name, x in found.items()
        if name in free
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of potentials, which nothing is drawn from
        drawn = pymc.sample_posterior_predictive(
            xarray.Dataset(arrays), model=model, progressbar=False,
            random_seed=int(np.asarray(jax.random.key_data(key)).ravel()[-1]),
        )  # fmt: skip
    return {str(name): x.values[0] for name, x in drawn["posterior_predictive"].data_vars.items()}


def _constant(variable: Any) -> Any:
    return variable.get_value() if hasattr(variable, "get_value") else variable.eval()
