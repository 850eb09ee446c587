"""Randomised Sobol' nets (1967): each has its own linear scramble (Matousek 1998) and its own shift of the digits.

Of the 2**m points of a net, every interval of length 2**-m holds one, in every coordinate; and boxes in several
coordinates hold their share as evenly as Sobol's construction has it. The shift alone makes each point uniform, in all
coordinates jointly: the mean over a net has no bias, whatever else the points have in common. The scramble gives it the
variance of Owen's nested scrambling (Owen 2003).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from bbvi.numerics.address import LOW_HALVES, AbstractNet, part_key, threefry
from bbvi.numerics.xla import mark

MOST_DIMENSIONS = 21_201  # of Joe and Kuo's numbers, which SciPy has
_WORD = 32


def directions(num_dimensions: int, num_bits: int) -> UInt32[np.ndarray, "dimensions bits"]:
    """Return Sobol's direction numbers, by Joe and Kuo (2008): number j is the point that bit j of a point's number adds.

    Examples:
        >>> print(directions(2, 3) >> 29)  # in eighths
        [[4 2 1]
         [4 6 5]]
    """
    from scipy.stats import qmc  # slow to import

    found = np.zeros((num_dimensions, num_bits), np.uint32)
    sequence = qmc.Sobol(num_dimensions, scramble=False)
    for bit in range(num_bits):
        # SciPy counts by the Gray code, in which the last number below a power of two has one bit
        point = sequence.fast_forward(2 ** (bit + 1) - 1 - sequence.num_generated).random(1)
        found[:, bit] = point[0] * 2.0**_WORD
    return found


class SobolNet(AbstractNet):
    """The points of one factor of q: those of a small net, `pilot` of them, and then those of a large one.

    Both have the same scramble, but shifts of their own: given the scramble they are independent.

    `dimensions` are those of the factor's uniforms, of which a part of an address has one or two.
    """

    directions: UInt32[Array, "dimensions bits"]
    dimensions: Int[Array, "parts words"]
    pilot: int = eqx.field(static=True)

    def bits(self, key, element, sample, part):
        num_bits = self.directions.shape[1]
        numbers = np.arange(num_bits + 2, dtype=np.uint32)
        random = jnp.stack(threefry(part_key(key, part), numbers, jnp.broadcast_to(element, numbers.shape)))
        columns, shifts = random[:, :num_bits], random[:, num_bits:]
        # the low half of a double is a point of the same coordinate, scrambled on its own
        coordinates = jnp.broadcast_to(self.dimensions[part & ~LOW_HALVES], 2)
        scrambled = _scrambled(self.directions[coordinates], columns)
        # once for all samples
        words = mark(jnp.concatenate([scrambled, shifts], axis=1))
        point, number = words[:, num_bits], sample
        if self.pilot:
            small = sample < np.uint32(self.pilot)
            point = jnp.where(small, words[:, num_bits + 1], point)
            number = jnp.where(small, sample, sample - np.uint32(self.pilot))
        for bit in range(num_bits):
            point = point ^ jnp.where((number >> np.uint32(bit)) & 1 == 1, words[:, bit], 0)
        return point[0], point[1]


def _scrambled(numbers: UInt32[Array, "words bits"], random: Array) -> UInt32[Array, "words bits"]:
    """Multiply direction numbers by a random lower triangular matrix of bits with ones on its diagonal."""
    leading = np.uint32(1) << np.arange(_WORD - 1, _WORD - 1 - numbers.shape[1], -1, dtype=np.uint32)
    columns = (random & (leading - 1)) | leading
    chosen = jnp.where(numbers[:, :, None] & leading != 0, columns[:, None, :], np.uint32(0))
    return jax.lax.reduce(chosen, np.uint32(0), jax.lax.bitwise_xor, (2,))
