"""Randomised quasi-Monte Carlo: samples that fill the space of the random numbers evenly."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.counter import AbstractNet, Address
from bbvi.dimensions import dimensions
from bbvi.draws import AbstractDraws, check_numbers
from bbvi.nets import MOST_DIMENSIONS, SobolNet, directions

_NETS = 2


class QuasiMonteCarlo(AbstractDraws):
    """Draw `n` samples, a power of two, by scrambled Sobol' nets: each a draw from q, together more even than chance.

    Where a factor's blanket is small, the gradient has far less variance than with `MonteCarlo(n)`. It has no bias:
    a control variate's folds are nets of their own, independent of each other.

    Examples:
        >>> import bbvi
        >>> bbvi.QuasiMonteCarlo(256).num
        256
    """

    num: int
    chunk: int | None = None
    #: the nets of a problem's latents, once they are known
    nets: "_Nets | None" = eqx.field(default=None, repr=False)
    independent: ClassVar[bool] = False

    def __init__(self, n: int, *, chunk: int | None = None):
        check_numbers("QuasiMonteCarlo", n, chunk)
        if n & (n - 1):
            nearest = min((1 << n.bit_length() - 1, 1 << n.bit_length()), key=lambda power: abs(power - n))
            raise ValueError(
                f"QuasiMonteCarlo: a net has a power of two of points, got n = {n}; the nearest is {nearest}"
            )
        self.num, self.chunk, self.nets = int(n), chunk, None

    def num_folds(self, wanted):
        return min(wanted, _NETS)

    def arranged(self, problem, blankets, folds):
        nets = _Nets(dimensions(problem, blankets), self.num, self.num_folds(folds))
        return eqx.tree_at(lambda draws: draws.nets, self, nets, is_leaf=lambda leaf: leaf is None)

    def sample(self, name, family, params, address):
        assert self.nets is not None, "arranged for the latents of a problem"
        net = self.nets.of(name, address.element)
        return family.sample(params, Address(address.key, address.group, address.element, address.sample, net))


class _Nets:
    """The nets of all factors of q, given the dimensions of their uniforms."""

    def __init__(self, of_latents: dict[str, np.ndarray], num: int, num_nets: int):
        self._num_nets, self._dimensions = num_nets, of_latents
        most = 1 + max(int(table.max()) for table in of_latents.values())
        if most > MOST_DIMENSIONS:
            raise ValueError(
                f"QuasiMonteCarlo: factors of log p tie latents together that take {most} random numbers, and Sobol's "
                f"sequence has {MOST_DIMENSIONS} dimensions; use draws=bbvi.MonteCarlo({num}), or see with bbvi.explain "
                "whether a factor reads more latents than it should"
            )
        self._directions = directions(most, (num // num_nets).bit_length() - 1)

    def of(self, name: str, element: Array) -> AbstractNet:
        """The net of one factor of q."""
        return SobolNet(jnp.asarray(self._directions), jnp.asarray(self._dimensions[name])[element], self._num_nets)
