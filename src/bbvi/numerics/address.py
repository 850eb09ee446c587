"""Random numbers as a function of their address: (seed, step, latent, group, element, sample).

The generator is Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"), written elementwise so that a number depends on its address alone, never on the shape,
chunk or batch it is drawn in.
"""

import zlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from bbvi.numerics.xla import mark

Key = UInt32[Array, "2"]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
#: added to a part: where the rest of the bits of a double are
LOW_HALVES = np.uint32(1 << 31)


def threefry(key: Key, first: Any, second: Any) -> tuple[Any, Any]:
    """Hash the counter `(first, second)` under `key`: two words of 32 random bits; on the host, if all are NumPy's."""
    if on_host(key, first, second):
        with np.errstate(over="ignore"):
            return _hash(key, first, second)
    return _compiled_hash(key, first, second)


def on_host(*arrays: Any) -> bool:
    """Tell whether all are NumPy's: no program need be compiled for a few numbers."""
    return all(isinstance(array, (np.ndarray, np.generic)) for array in arrays)


def _hash(key: Any, first: Any, second: Any) -> tuple[Any, Any]:
    words = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    x, y = first + words[0], second + words[1]
    for block in range(5):
        for distance in _ROTATIONS[block % 2]:
            x = x + y
            y = (y << np.uint32(distance)) | (y >> np.uint32(32 - distance))
            y = x ^ y
        x = x + words[(block + 1) % 3]
        y = y + words[(block + 2) % 3] + np.uint32(block + 1)
    return x, y


_compiled_hash = jax.jit(_hash)


def seed_key(seed: int | Array) -> Any:
    """Turn `seed=`, an int or a JAX key, into the two words that all addresses start from."""
    if isinstance(seed, (int, np.integer)):
        if not -(2**63) <= int(seed) < 2**64:
            raise ValueError(f"seed must fit in 64 bits, got {seed}")
        low, high = int(seed) & 0xFFFFFFFF, (int(seed) >> 32) & 0xFFFFFFFF
        return np.array([high, low], dtype=np.uint32)
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    if getattr(seed, "dtype", None) != jnp.uint32 or seed.size < 2:
        raise TypeError(f"seed must be an int or a JAX key, got {seed!r}")
    words = seed.reshape(-1)[-2:]
    return words if isinstance(words, jax.core.Tracer) else np.asarray(words)


def fold(key: Key, word: Any, second: Any = 0) -> Any:
    """Descend one level of the address, by one word or two; a name counts by its checksum."""

    words = [_checksum(w) if isinstance(w, str) else w for w in (word, second)]
    host = [np.asarray(w, np.uint32) if isinstance(w, (int, np.ndarray, np.generic)) else w for w in words]
    if on_host(key, *host):
        return np.stack(threefry(key, *np.broadcast_arrays(*host)))
    return jnp.stack(threefry(key, *jnp.broadcast_arrays(*(jnp.asarray(w, jnp.uint32) for w in host))))


def fold_names(key: Key, names: Sequence[str], seconds: Sequence[str] = ()) -> UInt32[Array, "names 2"]:
    """Return `fold(key, name)`, or with `seconds` `fold(key, name, second)`, for several names at the price of one."""
    words = [np.array(list(map(_checksum, some)), np.uint32) for some in ([names, seconds] if seconds else [names])]
    return fold(key, *words).T


def _checksum(name: str) -> int:
    return zlib.crc32(name.encode())


class AbstractNet(eqx.Module):
    """A point set, such as a scrambled Sobol' net, that replaces the independent random words of an address."""

    @abstractmethod
    def bits(self, key: Key, element: Array, sample: Array, part: Array) -> tuple[Array, Array]:
        """Return two coordinates, as words, of the point whose number is that of the sample."""


class Address(eqx.Module):
    """The address of one draw of one factor of q, from which all its random numbers are computed.

    `key` has come down through seed, step, group and latent; `group` is there to be read, 0 for globals. With a
    `net` the samples of one address are not independent: each is uniform, and together they fill the interval evenly.
    """

    key: Key
    group: UInt32[Array, ""]
    element: UInt32[Array, ""]
    sample: UInt32[Array, ""]
    net: AbstractNet | None = None

    def bits(self, part: int | Array = 0) -> tuple[Array, Array]:
        """Return two independent words; other `part`s of the same address are independent again.

        The part is added to the key: Threefry's keys may be counters as well as its inputs.
        """
        if self.net is not None:
            return self.net.bits(self.key, self.element, self.sample, jnp.asarray(part, jnp.uint32))
        return threefry(part_key(self.key, part), self.sample, self.element)

    def uniform(self, part: int | Array = 0) -> Float[Array, ""]:
        """Return the first of `uniforms`."""
        if jnp.result_type(float) == jnp.float32:
            return mark(_open_unit(self.bits(part)[0]))
        return self.uniforms(part)[0]

    def uniforms(self, part: int | Array = 0) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return two independent uniforms in the open interval (0, 1) of the default float type."""
        first, second = self.bits(part)
        if jnp.result_type(float) == jnp.float32:
            # one array holds both: XLA on CPU would hash once for each array
            both = mark(jax.lax.complex(_open_unit(first), _open_unit(second)))
            return both.real, both.imag
        word: Any = np.uint32(part) if isinstance(part, int) else jnp.asarray(part, jnp.uint32)
        third, fourth = self.bits(word + LOW_HALVES)
        if self.net is not None:
            second, third = third, second  # the two words of a net are coordinates of their own
        return _open_unit64(first, second), _open_unit64(third, fourth)

    def jax_key(self) -> Array | None:
        """Return a JAX key of this address, for samplers that ask for one; None with a net, which has no key."""
        if self.net is not None:
            return None
        return jax.random.wrap_key_data(jnp.stack(self.bits()), impl="threefry2x32")


def part_key(key: Any, part: int | Array) -> Any:
    """Return the key of one part of an address."""
    if on_host(key) and isinstance(part, (int, np.integer)):
        return np.stack([key[0], key[1] + np.uint32(part)])
    return jnp.stack([key[0], key[1] + jnp.asarray(part, jnp.uint32)])


def _open_unit(word: Array) -> Array:
    # 23 bits and a half: the largest value is 1 - 2**-24, which float32 holds, so 1 never comes out
    return (word >> np.uint32(9)).astype(jnp.float32) * np.float32(2**-23) + np.float32(2**-24)


def _open_unit64(high: Array, low: Array) -> Array:
    coarse = (high >> np.uint32(6)).astype(jnp.float64) * 2.0**-26
    return coarse + (low >> np.uint32(6)).astype(jnp.float64) * 2.0**-52 + 2.0**-53
