"""Eq. 4: families of one number, each by its law: its parameters, its draws and its density."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bbvi.families.abstract import AbstractFamily, Parameter, Params, constrain
from bbvi.numerics.address import Address


class AbstractLaw(eqx.Module):
    """The distribution of one number: what a `Scalar` needs to be told."""

    @abstractmethod
    def like(self) -> AbstractFamily:
        """A family of the same support, whose coordinates these are: log z with `Gamma()`, logits with `Beta()`."""

    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """The entries of lambda_i."""

    @abstractmethod
    def sample(self, params: Params, address: Address) -> Array:
        """Coordinates of one draw: a function of the address's uniforms, smooth in lambda where z is continuous."""

    @abstractmethod
    def log_prob(self, params: Params, coordinates: Array) -> Float[Array, ""]:
        """The log density of z, at coordinates."""

    def information(self, params: Params) -> Params | None:
        """The Fisher information of each entry of lambda_i, if it is known and that of different entries is 0."""
        return None

    @abstractmethod
    def centred(self, value: Array) -> Params:
        """Those parameters (constrained) that put it around `value`."""

    @abstractmethod
    def frozen(self, values: dict[str, np.ndarray]) -> Any:
        """`mean()`, `std()` and `ppf(p)` at these parameters (constrained), as scipy.stats has them."""


class Scalar(AbstractFamily):
    """One number of a law; parameters in `fixed` are not fitted."""

    law: AbstractLaw
    fixed: tuple[tuple[str, float], ...] = ()

    @property
    def distribution(self) -> type[AbstractLaw]:
        return type(self.law)

    def event_shape(self):
        return ()

    def support(self):
        return self.law.like().support()

    def is_discrete(self):
        return self.law.like().is_discrete()

    def support_values(self):
        return self.law.like().support_values()

    def parameters(self):
        held = dict(self.fixed)
        return {name: entry for name, entry in self.law.parameters().items() if name not in held}

    def _all(self, params: Params) -> Params:
        entries = self.law.parameters()
        return {**params, **{name: entries[name].unconstrain(jnp.asarray(v, float)) for name, v in self.fixed}}

    def sample(self, params, address: Address):
        return self.law.sample(self._all(params), address)

    def value(self, coordinates):
        return self.law.like().value(coordinates)

    def log_value(self, coordinates):
        return self.law.like().log_value(coordinates)

    def coordinates(self, value):
        return self.law.like().coordinates(value)

    def floored(self, coordinates):
        return self.law.like().floored(coordinates)

    def log_prob(self, params, coordinates):
        return self.law.log_prob(self._all(params), coordinates)

    def natural_gradient(self, params, gradient):
        information = self.law.information(self._all(params))
        if information is None:
            return super().natural_gradient(params, gradient)
        return {name: g / information[name] for name, g in gradient.items()}

    def centred(self, value):
        found = self.law.centred(value)
        return None if set(found) & set(dict(self.fixed)) else found

    def _frozen(self, params: Params) -> Any:
        values = {**constrain(self, params), **dict(self.fixed)}
        return self.law.frozen({name: np.asarray(value, np.float64) for name, value in values.items()})

    def moments(self, params):
        frozen = self._frozen(params)
        return frozen.mean(), frozen.std()

    def quantile(self, params, p):
        found = self._frozen(params).ppf(p)
        return found.astype(int) if self.is_discrete() else found
