"""Eq. 4: one factor q(z_i | lambda_i) of the mean-field family, a law on a chart, written for one factor and one draw."""

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from bbvi.families.charts import AbstractChart
from bbvi.families.law import AbstractLaw, Params, constrain

Lambda = dict[str, Params]


class AbstractFamily(AbstractLaw):
    """A variational family for one factor: a law, and the chart that its coordinates belong to."""

    if TYPE_CHECKING:  # an abstract variable looks to mypy like an argument of every family

        @property
        def chart(self) -> AbstractChart: ...
    else:
        chart: eqx.AbstractVar[AbstractChart]

    @property
    def name(self) -> str:
        """What a user knows the family by."""
        return type(self).__name__

    def settings(self) -> dict[str, Any]:
        """Return what is not fitted, under the names that a user gave it by."""
        return {}

    def marginals(self, params: Params) -> Any:
        """Return what `frozen` does, at unconstrained lambda, for any number of factors at once."""
        return self.frozen({name: np.asarray(v, np.float64) for name, v in constrain(self, params).items()})


def alike(families: Mapping[str, AbstractFamily], kinds: Mapping[str, Hashable]) -> list[list[str]]:
    """Group latents that have equal families and are of one kind; a family that holds arrays is equal to itself alone."""
    found: dict[Hashable, list[str]] = {}
    for name, family in families.items():
        try:
            found.setdefault((kinds.get(name), family), []).append(name)
        except TypeError:  # arrays cannot be compared
            found.setdefault((kinds.get(name), id(family)), []).append(name)
    return list(found.values())


class Fixed(AbstractFamily):
    """A family some of whose parameters, those in `fixed`, are not fitted."""

    family: AbstractFamily
    fixed: tuple[tuple[str, float], ...]

    @property
    def chart(self):
        return self.family.chart

    @property
    def name(self):
        return self.family.name

    def settings(self):
        return dict(self.fixed)

    def parameters(self):
        return {name: entry for name, entry in self.family.parameters().items() if name not in self.settings()}

    def _all(self, params: Params) -> Params:
        entries = self.family.parameters()
        return {**params, **{name: entries[name].unconstrain(jnp.asarray(v, float)) for name, v in self.fixed}}

    def sample(self, params, address):
        return self.family.sample(self._all(params), address)

    def log_prob(self, params, coordinates):
        return self.family.log_prob(self._all(params), coordinates)

    def information(self, params):
        return self.family.information(self._all(params))

    def centred(self, value):
        found = self.family.centred(value)
        return None if found is None or set(found) & set(self.settings()) else found

    def frozen(self, values):
        return self.family.frozen({**values, **{name: np.asarray(v, np.float64) for name, v in self.fixed}})
