"""The time of a step and the memory of a fit by the number of latents, in a chain and in a grid, with a sparse precision.

    python benchmarks/sparse.py               chains and grids up to 10,000 latents
    python benchmarks/sparse.py --most 1000   up to as many

Times are of CPU, each the least of some repeats. A step is a draw and its path, the density and its score, and a natural step of q
for ten draws: what q costs, without the log joint. Entries are those of the factor below its diagonal, with the locations and scales.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.families import FullRank, SparsePrecision
from bbvi.gradients.structure import choose_structure
from bbvi.model.problem import bind

DRAWS, REPEATS = 10, 25


def chain(num):
    return bbvi.Model(lambda z, _: -(jnp.diff(z["x"]) ** 2).sum() - (z["x"] ** 2).sum(), x=bbvi.real(num))


def grid(num):
    side = round(num**0.5)

    def log_joint(z, _):
        return sum(-(jnp.diff(z["x"], axis=axis) ** 2).sum() for axis in (0, 1)) - (z["x"] ** 2).sum()

    return bbvi.Model(log_joint, x=bbvi.real(side, num // side))


def seconds(covariance, size):
    """Time of what a step does with q, and how many parameters it has."""
    family = bbvi.real(size, q=covariance).family
    rng = np.random.default_rng(0)
    shapes = {name: entry.raw_shape() for name, entry in family.parameters().items()}
    params = {name: jnp.asarray(0.01 * rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    noise = jnp.asarray(rng.normal(size=(size, DRAWS)), jnp.float32)
    many = {"in_axes": (None, -1), "out_axes": -1}

    def step(params, noise):
        w, back = jax.vjp(lambda p: jax.vmap(covariance.correlate, **many)(p, noise), params)
        _, (score, of_q) = jax.vmap(jax.value_and_grad(family.log_prob, argnums=(0, 1)), **many)(params, w)
        fisher = jax.tree.map(lambda leaf: (leaf**2).sum(-1), score)
        (gradient,) = back(of_q)
        return fisher, family.natural_gradient(params, gradient)

    compiled = jax.jit(step).lower(params, noise).compile()
    jax.block_until_ready(compiled(params, noise))
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        jax.block_until_ready(compiled(params, noise))
        times.append(time.process_time() - began)
    return min(times), sum(leaf.size for leaf in params.values()), compiled.memory_analysis().temp_size_in_bytes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--most", type=int, default=10_000)
    most = parser.parse_args().most
    for make in (chain, grid):
        found = []
        for num in [n for n in (10, 100, 1000, 2000, 10_000) if n <= most]:
            model = make(num)
            problem, *rest = bind(model, None)
            (block,) = choose_structure(analyse(problem, *rest))
            size = int(np.prod(model.globals["x"].shape))
            q = FullRank() if block.core is None else SparsePrecision(block.width, block.core, order=block.order)
            own, entries, memory = seconds(q, size)
            found += [(entries, own)] if block.core is not None else []
            print(
                f"{make.__name__} {size:6,} {block.q:16} width {block.width:3} {entries:8,} parameters "
                f"{1e3 * own:8.2f} ms {memory / 2**20:7.1f} MB",
                flush=True,
            )
        if len(found) > 1:
            slope = np.polyfit(*np.log(np.array(found)).T, 1)[0]
            print(f"{make.__name__}: slope of time by parameters on log scales {slope:.2f}")
