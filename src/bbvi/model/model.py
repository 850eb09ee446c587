"""Section 2 and Eq. 12: the log joint that a person writes, flat or in groups."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Array

from bbvi.model.joint import Block, Blocks, as_blocks, find_blocks, in_blocks
from bbvi.model.latents import Latent
from bbvi.model.origin import Origin

Values = Mapping[str, Array]


class _InFactors:
    """A model whose latents are put into factors of q."""

    globals: dict[str, Latent]
    locals: dict[str, Latent]
    #: where it came from, if another library's model was brought here
    origin: Origin | None = None

    def _put_in_factors(self, joint: Any) -> None:
        for name, latent in self.globals.items():
            if latent.ragged_axes:
                raise ValueError(
                    f"latent {name!r} has the ragged axis {latent.ragged_axes[0]!r}; only locals of a HierarchicalModel can"
                )
        #: whether `fit` is to choose the structure of q
        self.is_open = joint is None
        self.structure = as_blocks(() if joint is None else joint)
        self.blocks: Blocks = find_blocks(self.structure, [self.globals, self.locals])
        parts = {"globals": self.globals, "locals": self.locals}
        self.factors = {part: in_blocks(own, self.blocks, self.structure) for part, own in parts.items()}

    def _listed(self, latents: dict[str, Latent]) -> str:
        joined = {name: f"{x.support}{x.shape} ~ {own}" for name, x, own in self.families_in_blocks()}
        return ", ".join(f"{name}: {joined.get(name, latent)}" for name, latent in latents.items())

    def families_in_blocks(self) -> list[tuple[str, Latent, str]]:
        """List the latents in blocks, each with the name of its q."""
        found, latents = [], {**self.globals, **self.locals}
        for block, members in self.blocks.items():
            family = next(part[block] for part in self.factors.values() if block in part).family.name
            found += [(name, latents[name], family) for name in members]
        return found


class Model(_InFactors):
    """A flat model: `log_joint(z, data)` is log p(x, z) for one sample z of the latents.

    The function returns a number, or any pytree of unsummed terms whose total is the value. Which latents share a factor of
    q, a joint Normal through the bijections of their supports, `fit` reads off the function; `joint=[("mu", "tau")]` says so by
    hand, and `joint=()` gives every number a factor of its own.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> def log_joint(z, y):
        ...     return dist.Normal(0, 1).log_prob(z["mu"]) + dist.Normal(z["mu"], 1).log_prob(y).sum()
        >>> bbvi.Model(log_joint, mu=bbvi.real())
        Model(mu: real() ~ Normal)
    """

    def __init__(
        self,
        log_joint: Callable[[Values, Any], Any],
        /,
        *,
        joint: Sequence[Sequence[str]] | None = None,
        **latents: Latent,
    ):
        self.log_joint = _callable("log_joint", log_joint)
        self.globals = _latents("Model", latents)
        self.locals = {}
        if not latents:
            raise ValueError("Model needs at least one latent, for example Model(log_joint, mu=bbvi.real())")
        self._put_in_factors(joint)

    def __repr__(self) -> str:
        return f"Model({self._listed(self.globals)})"


class HierarchicalModel(_InFactors):
    """Eq. 12: global latents beta, and local latents z_i for each group i; functions see one group.

    `log_prior(beta)` is log p(beta), `log_local(beta, z, row)` is log p(z_i | beta) and
    `log_likelihood(beta, z, row)` is log p(x_i | z_i, beta). Which globals share a factor of q, a joint Normal through the
    bijections of their supports, and which locals of each group, `fit` reads off the functions; `joint=[("a", "b")]` says so by hand, and `joint=()` gives every number a factor of its own.

    Examples:
        >>> import bbvi, numpyro.distributions as dist
        >>> bbvi.HierarchicalModel(
        ...     log_prior=lambda beta: dist.Normal(0, 1).log_prob(beta["w"]),
        ...     log_likelihood=lambda beta, z, row: dist.Normal(beta["w"], 1).log_prob(row["y"]),
        ...     globals={"w": bbvi.real()},
        ... )
        HierarchicalModel(globals: w: real() ~ Normal; locals: none)
    """

    def __init__(
        self,
        *,
        log_prior: Callable[[Values], Any],
        log_likelihood: Callable[[Values, Values, Any], Any],
        globals: Mapping[str, Latent],
        log_local: Callable[[Values, Values, Any], Any] | None = None,
        locals: Mapping[str, Latent] | None = None,
        joint: Sequence[Sequence[str]] | None = None,
    ):
        self.log_prior = _callable("log_prior", log_prior)
        self.log_likelihood = _callable("log_likelihood", log_likelihood)
        self.log_local = None if log_local is None else _callable("log_local", log_local)
        self.globals = _latents("globals", globals)
        self.locals = _latents("locals", locals or {})
        if (log_local is None) != (not self.locals):
            raise ValueError("HierarchicalModel: locals and log_local come together: give both or neither")
        if not self.globals and not self.locals:
            raise ValueError('HierarchicalModel needs latents, for example globals={"w": bbvi.real()}')
        if twice := set(self.globals) & set(self.locals):
            raise ValueError(f"HierarchicalModel: {sorted(twice)} stand in globals and in locals; rename one")
        self._put_in_factors(joint)

    def __repr__(self) -> str:
        listed = [self._listed(kind) for kind in (self.globals, self.locals)]
        return f"HierarchicalModel(globals: {listed[0] or 'none'}; locals: {listed[1] or 'none'})"


AnyModel = Model | HierarchicalModel


def structured(model: Any, structure: Sequence[Block]) -> Any:
    """Copy the model with these blocks of latents; with none q is factorised fully, and a sampler has no q."""
    if not isinstance(model, _InFactors):
        return model
    other = copy.copy(model)
    other._put_in_factors(structure)
    return other


def _callable(name: str, function: Any) -> Any:
    if not callable(function):
        raise TypeError(f"{name} must be a function, got {type(function).__name__}")
    return function


def _latents(where: str, latents: Mapping[str, Any]) -> dict[str, Latent]:
    if not isinstance(latents, Mapping):
        raise TypeError(f'{where} must be a dict such as {{"w": bbvi.real(3)}}, got {type(latents).__name__}')
    for name, latent in latents.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"{where}: a latent's name is a string without a slash, got {name!r}")
        if not isinstance(latent, Latent):
            raise TypeError(
                f"{where}: unknown keyword or wrong declaration {name}={latent!r}; "
                "a latent is declared by its support, for example bbvi.real(8) or bbvi.positive()"
            )
    return dict(latents)
