"""Randomised quasi-Monte Carlo: draw samples that fill the space of the random numbers evenly."""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bbvi.draws.dimensions import dimensions
from bbvi.draws.draws import AbstractDraws, check_numbers
from bbvi.numerics.address import AbstractNet, Address
from bbvi.numerics.nets import MOST_DIMENSIONS, SobolNet, directions


class QuasiMonteCarlo(AbstractDraws):
    """Draw `n` samples, a power of two, by scrambled Sobol' nets: each a draw from q, together more even than chance.

    Where a factor's blanket is small, the gradient has far less variance than with `MonteCarlo(n)`. It has no bias:
    a* of `CrossFit` comes from a small net of its own, of n / 8 further samples.

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
        n = int(n)
        if n & (n - 1):
            near = min((1 << n.bit_length() - 1, 1 << n.bit_length()), key=lambda power: abs(power - n))
            raise ValueError(f"QuasiMonteCarlo: a net has a power of two of points, got n = {n}; the nearest is {near}")
        self.num, self.chunk, self.nets = n, chunk, None

    def num_folds(self, wanted):
        return wanted if self.nets is None or not self.nets.pilot else self.num // self.nets.pilot

    def arranged(self, problem, blankets, folds):
        pilot = 0 if folds == 1 else max(1, self.num // (folds - 1))
        both = (self.num + pilot, _Nets(dimensions(problem, blankets), self.num, pilot))
        return eqx.tree_at(lambda draws: (draws.num, draws.nets), self, both, is_leaf=lambda leaf: leaf is None)

    def sample(self, name, family, params, address):
        assert self.nets is not None, "arranged for the latents of a problem"
        net = self.nets.of(name, address.element)
        return family.sample(params, Address(address.key, address.group, address.element, address.sample, net))


class _Nets:
    """The nets of all factors of q, given the dimensions of their uniforms."""

    def __init__(self, of_latents: dict[str, np.ndarray], num: int, pilot: int):
        self.pilot, self._dimensions = pilot, of_latents
        most = 1 + max(int(table.max()) for table in of_latents.values())
        if most > MOST_DIMENSIONS:
            raise ValueError(
                f"QuasiMonteCarlo: terms of log p tie latents together that take {most} random numbers, and Sobol's "
                f"sequence has {MOST_DIMENSIONS} dimensions; use draws=bbvi.MonteCarlo({num}), or see with bbvi.explain "
                "whether a term reads more latents than it should"
            )
        self._directions = directions(most, num.bit_length() - 1)

    def of(self, name: str, element: Array) -> AbstractNet:
        """Give the net of one factor of q."""
        return SobolNet(jnp.asarray(self._directions), jnp.asarray(self._dimensions[name])[element], self.pilot)
