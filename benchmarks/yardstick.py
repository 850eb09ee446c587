"""Algorithm 2 for the Gamma-Normal time series (section 5.2), derived and tuned by hand: how fast can this machine do it?

One JAX program, no bbvi. Rao-Blackwellized score gradients (Eq. 6), a control variate of each factor of q, AdaGrad, S draws
and B patients a step. What makes it fast on XLA's CPU backend:

- samples on the last axis; patients cut into tiles of a few visits, as many as they need, so nothing is padded by more
  than a tile and every array stays in cache;
- one Threefry-2x32 hash (20 rounds) for a pair of Gamma draws: 46 bits for Box-Muller, 18 for Marsaglia-Tsang's test;
- two results of one loop leave it as the parts of a complex number, for XLA runs one loop for each output;
- stages are kept apart by `lax.cond` with a predicate known only at run time, for XLA fuses through barriers;
- sums over short axes unrolled.

    python benchmarks/yardstick.py [--steps 20] [--quick] [--check]

A program that imports it sets `XLA_FLAGS` of the environment to `yardstick.XLA_FLAGS` before JAX starts. Without, XLA runs the
inner loops piece by piece and, where it sees two cores, cuts pieces of 10 us in two: twice the time.
"""

import argparse
import functools
import math
import os
import resource
import time
from typing import NamedTuple

import cohort
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LABS, FACTORS = cohort.NUM_LABS, cohort.NUM_FACTORS
TILE, FOLDS = 4, 5
LANES = 8  # of that many neighbours at most one rejected pair is redrawn in a round
SIDES = (slice(None, TILE // 2), slice(TILE // 2, None))
XLA_FLAGS = "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=16777216"
f32, u32 = np.float32, np.uint32

# The remainder of Stirling's formula, lgamma(a) = (a - 1/2) log a - a + log(2 pi) / 2 + R(a), as a rational function for
# a >= 0.16 = FLOOR**2 / VARIANCE_X; its error is 8e-8.
STIRLING = (
    (0.0021748653449, 0.0443820694114, 0.0945306065547, 1 / 12),
    (0.0012213689299, 0.0679999397577, 0.5648239015255, 1.1344829466418, 1.0),
)
LOG = (0.33333331, -0.24999994, 0.20000715, -0.16668058, 0.14249323, -0.12420141, 0.11676999, -0.11514610, 0.07037684)


class Shape(NamedTuple):
    """What is static in a program: patients, batch, draws and visits of the longest patient in whole tiles."""

    patients: int
    batch: int
    draws: int
    visits: int

    @property
    def chunk(self) -> int:
        """A fold of the control variate is also what one pass of the inner loops handles."""
        return self.draws // FOLDS


# --- numbers ---------------------------------------------------------------------------------------------------------


def polynomial(x, coefficients):
    """By Estrin's scheme, whose chain is short: the loops here wait for results, not for arithmetic units."""
    terms = [f32(c) for c in coefficients]
    while len(terms) > 1:
        pairs = range(0, len(terms), 2)
        terms = [terms[i] + terms[i + 1] * x if i + 1 < len(terms) else terms[i] for i in pairs]
        x = x * x
    return terms[0]


def fast_log(x):
    """Of positive normal numbers (Cephes' polynomial)."""
    word = lax.bitcast_convert_type(x, jnp.int32)
    exponent = (word - 0x3F3504F3) >> 23
    m = lax.bitcast_convert_type(word - (exponent << 23), jnp.float32) - 1
    series = m + m * m * (polynomial(m, LOG) * m - f32(0.5))
    return exponent.astype(jnp.float32) * f32(np.log(2)) + series


def exp_below_0(x):
    """To 1e-6, which the test of a proposal needs and no more."""
    return polynomial(jnp.maximum(x, -16) * f32(1 / 16), (1, 1, 1 / 2, 1 / 6, 1 / 24, 1 / 120)) ** 16


def digamma(x):
    """By recurrence to x + 6 and the asymptotic series."""
    y = x + 6
    r = 1 / (y * y)
    series = jnp.log(y) - 0.5 / y - r * polynomial(r, (1 / 12, -1 / 120, 1 / 252))
    return series - sum(1 / (x + i) for i in range(6))


def threefry(key, first, second):
    """Salmon et al. (2011): two words of 32 random bits for each counter; 20 rounds, elementwise."""
    words = (key[0], key[1], key[0] ^ key[1] ^ u32(0x1BD11BDA))
    x, y = first + words[0], second + words[1]
    for block in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[block % 2]:
            x = x + y
            y = x ^ ((y << u32(distance)) | (y >> u32(32 - distance)))
        x = x + words[(block + 1) % 3]
        y = y + words[(block + 2) % 3] + u32(block + 1)
    return x, y


def unit(word):
    """The open interval (0, 1) from the upper 23 bits."""
    return (word >> u32(9)).astype(jnp.float32) * f32(2**-23) + f32(2**-24)


def two_normals(radius, angle):
    """Box-Muller from the upper 23 bits of both words; the lower 9 bits remain to be used."""
    r = jnp.sqrt(-2 * fast_log(unit(radius)))
    t = ((angle << u32(2)) >> u32(11)).astype(jnp.float32) * f32(2**-21) + f32(2**-22 - 0.5)
    q, h = t * t, np.pi / 2
    sine = t * polynomial(q, (h, -(h**3) / 6, h**5 / 120, -(h**7) / 5040))
    cosine = polynomial(q, (1, -(h**2) / 2, h**4 / 24, -(h**6) / 720, h**8 / 40320))
    swap = (angle & u32(1 << 30)) != 0
    r = jnp.where((angle & u32(1 << 31)) != 0, -r, r)
    return r * jnp.where(swap, cosine, sine), r * jnp.where(swap, sine, cosine)


def two_gammas(words, first, second):
    """Marsaglia and Tsang (2000) for a pair with a joint test: log z of both, or infinity if the pair is rejected.

    The test's uniform has the 18 bits that Box-Muller left; its grain of 2**-19 is below the rounding of the ratio.
    """
    radius, angle = bits(words.real), bits(words.imag)
    uniform = (((radius & u32(511)) << u32(9)) | (angle & u32(511))).astype(jnp.float32) * f32(2**-18) + f32(2**-19)
    out, ratio, positive = [], 0.0, True
    for n, (d, c, offset) in zip(two_normals(radius, angle), (first, second), strict=True):
        t = 1 + c * n
        log_t = fast_log(jnp.maximum(t, f32(1e-30)))
        ratio = ratio + f32(0.5) * n * n + d * (1 - t * t * t + 3 * log_t)
        positive = positive & (t > 0)
        out.append(offset + 3 * log_t)
    accepted = positive & (uniform < exp_below_0(ratio))
    return lax.complex(jnp.where(accepted, out[0], jnp.inf), jnp.where(accepted, out[1], jnp.inf))


def bits(x):
    return lax.bitcast_convert_type(x, jnp.uint32)


def packed(words):
    """Two words as the parts of one complex number."""
    return lax.complex(*(lax.bitcast_convert_type(w, jnp.float32) for w in words))


def stage(go, function, *args):
    """`function(*args)`, with its results really in memory: XLA cannot fuse into or out of a branch."""
    shapes = jax.eval_shape(function, *args)
    return lax.cond(go, function, lambda *_: jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes), *args)


# --- draws -----------------------------------------------------------------------------------------------------------


def normals(go, key, rows, samples):
    """Standard normals, twice as many rows as there are row numbers."""
    words = stage(go, lambda: packed(threefry(key, samples, rows[:, None])))
    pair = stage(go, lambda: lax.complex(*two_normals(bits(words.real), bits(words.imag))))
    return jnp.concatenate([pair.real, pair.imag])


def log_gammas(go, key, rows, start, coefficients, shape):
    """log z of a tile, visits by factors by samples: visits of its first half are paired with those of its second."""
    half, samples = TILE // 2, start + lax.iota(u32, shape.chunk)
    rows = rows[:half]

    def propose(counter):
        words = stage(go, lambda: packed(threefry(key, counter, rows[:, :, None])))
        return stage(go, lambda: two_gammas(words, *([c[v, :, None] for c in coefficients[:3]] for v in SIDES)))

    def first_rejected(pair):
        marked = (jnp.where(pair[:, :, i].real == jnp.inf, i, lanes) for i in range(lanes))
        return functools.reduce(jnp.minimum, marked)

    def replace(pair, first, fresh):
        here = jnp.arange(lanes)[:, None] == first[:, :, None]
        parts = ((fresh.real, pair.real), (fresh.imag, pair.imag))
        return lax.complex(*(jnp.where(here, new[:, :, None], old) for new, old in parts))

    def again(state):
        turn, pair, first = state
        fresh = propose(samples[: first.shape[-1]] + (turn << u32(16)))
        pair = stage(go, replace, pair, first, fresh)
        return turn + 1, pair, stage(go, first_rejected, pair)

    lanes = math.gcd(shape.chunk, LANES)
    pair = propose(samples).reshape(half, FACTORS, lanes, -1)
    state = (u32(1), pair, stage(go, first_rejected, pair))
    _, pair, _ = lax.while_loop(lambda s: jnp.min(s[2]) < lanes, again, state)
    pair = pair.reshape(half, FACTORS, shape.chunk)
    log_z = jnp.concatenate([pair.real, pair.imag])
    boost = coefficients[3]

    def boosted():  # below a = 1 the draw was one at a + 1, and u**(1/a) brings it back
        words = stage(go, lambda: packed(threefry(key, samples + u32(1 << 31), rows[:, :, None])))
        u = jnp.concatenate([unit(bits(words.real)), unit(bits(words.imag))])
        return log_z + boost[:, :, None] * fast_log(u)

    return lax.cond(jnp.any(boost > 0), boosted, lambda: log_z)


# --- one patient, one fold -------------------------------------------------------------------------------------------


def transition(x, log_x, before, log_before):
    """log GammaE(x; max(before, FLOOR), VARIANCE_X) up to a constant; no logarithm is left to take."""
    m = jnp.maximum(before, f32(cohort.FLOOR))
    log_m = jnp.maximum(log_before, f32(np.log(cohort.FLOOR)))
    rate = m * f32(1 / cohort.VARIANCE_X)
    a = m * rate
    remainder = polynomial(a, STIRLING[0]) / polynomial(a, STIRLING[1])
    return (a - 1) * (log_x - log_m) + a - rate * x - remainder


def six_sums(go, scores, inputs, weight):
    """Sums over samples of h1, h2, w h1, w h2, n, w n with n = h1**2 + h2**2, w centred at its first sample; and that.

    Slices of `width` samples are added up first, two sums in one loop: XLA's own sums over the last axis are slow.
    """
    size = weight.shape[-1]
    width = math.gcd(size, 8) if size % 4 == 0 else size
    centre = weight[..., :1]

    def partial(terms):
        def add():
            total = (0.0, 0.0)
            for first in range(0, size, width):
                h1, h2 = scores(*(x[..., first : first + width] for x in inputs))
                more = terms(h1, h2, weight[..., first : first + width] - centre)
                total = (total[0] + more[0], total[1] + more[1])
            return lax.complex(*total)

        return stage(go, add)

    both = [
        partial(lambda h1, h2, w: (h1, h2)),
        partial(lambda h1, h2, w: (w * h1, w * h2)),
        partial(lambda h1, h2, w: (n := h1 * h1 + h2 * h2, w * n)),
    ]
    return jnp.stack([jnp.sum(part, -1) for pair in both for part in (pair.real, pair.imag)] + [centre[..., 0]])


def normal_scores(scale):
    """Of location and log scale, from the standardized draw."""
    return lambda eps: (eps / scale, eps * eps - 1)


def gamma_coefficients(params):
    """Of q(x): what the sampler needs (d, c, offset, boost) and what the scores and log q need."""
    log_a, log_mean = params
    a, rate = jnp.exp(log_a), jnp.exp(log_a - log_mean)
    small = a < 1
    d = jnp.where(small, a + 1, a) - f32(1 / 3)
    offset = jnp.log(d) + log_mean - log_a
    boost = jnp.where(small, 1 / a, 0)
    score = log_mean - log_a - 1 + digamma(a)
    return d, 1 / jnp.sqrt(9 * d), offset, boost, a, rate, jnp.exp(-log_mean), score


def draw_tile(go, key, at, coefficients, before, shape):
    """Draws of a tile and the log density of the steps into its visits; `before` is the last visit of the tile before."""
    row, start = at
    numbers = row + lax.iota(u32, TILE * FACTORS).reshape(TILE, FACTORS)
    log_x = log_gammas(go, key, numbers, start, coefficients, shape)
    x = stage(go, lambda: jnp.exp(log_x))
    earlier = [jnp.concatenate([b, now[:-1]]) for b, now in zip(before, (x, log_x), strict=True)]
    step = stage(go, lambda: transition(x, log_x, *earlier))
    return x, log_x, step


def score_tile(go, visits, data, coefficients, weights, shape):
    """Six sums of x of a tile, and what its visits add to the likelihood of each lab."""
    x, log_x, step, following = visits
    labs, observed, continues = data
    w, offsets = weights
    a, rate, per_mean, score = (c[..., None] for c in coefficients[4:])

    def terms():
        r = labs[:, :, None] - offsets
        for k in range(FACTORS):
            r = r - w[:, k] * x[:, None, k]
        return observed[:, :, None] * r * r

    likelihood = stage(go, terms)
    visit = sum(likelihood[:, lab] for lab in range(LABS))
    blanket = step + jnp.where(continues[:, None, None], following, 0) + visit[:, None]
    weight = stage(go, lambda: blanket - (a - 1) * log_x + rate * x)  # log p_i - log q_i

    def scores(x, log_x):  # divided by a
        b = x * per_mean
        return log_x - score - b, b - 1

    return six_sums(go, scores, (x, log_x), weight), sum(likelihood[v] for v in range(TILE))


def patient_fold(go, keys, place, patient, draws_w, buffers, shape):
    """One fold of one patient: six sums of x and of o, and the likelihood of each lab."""
    number, fold = place
    start = (fold * shape.chunk).astype(jnp.uint32)
    samples = start + lax.iota(u32, shape.chunk)
    eps = normals(go, keys["o"], number * u32(LABS) + lax.iota(u32, LABS // 2 + 1), samples)[:LABS]
    loc, scale = (p[:, None] for p in patient["o"])
    offset = stage(go, lambda: loc + scale * eps)
    tiles = (patient["length"] + TILE - 1) // TILE

    def coefficients(v):
        return [lax.dynamic_slice_in_dim(c, v, TILE) for c in patient["x"]]

    def draw(t, state):
        buffers, before = state
        v = t * TILE
        row = (number * shape.visits + v.astype(jnp.uint32)) * FACTORS
        out = draw_tile(go, keys["x"], (row, start), coefficients(v), before, shape)
        buffers = [lax.dynamic_update_slice_in_dim(b, o, v, 0) for b, o in zip(buffers, out, strict=True)]
        return buffers, (out[0][-1:], out[1][-1:])

    one = jnp.ones((1, FACTORS, shape.chunk))
    buffers, _ = lax.fori_loop(0, tiles, draw, (buffers, (one, 0 * one)))

    def score(t, state):
        sums, columns = state
        v = t * TILE
        visits = [lax.dynamic_slice_in_dim(b, v, TILE) for b in buffers]
        visits.append(lax.dynamic_slice_in_dim(buffers[2], v + 1, TILE))
        rows = [lax.dynamic_slice_in_dim(patient[name], v, TILE) for name in ("labs", "observed")]
        continues = v + 1 + jnp.arange(TILE) < patient["length"]
        out, column = score_tile(go, visits, (*rows, continues), coefficients(v), (draws_w, offset), shape)
        return lax.dynamic_update_slice_in_dim(sums, out, v, 1), columns + column

    state = (jnp.zeros((7, shape.visits, FACTORS)), jnp.zeros((LABS, shape.chunk)))
    sums, columns = lax.fori_loop(0, tiles, score, state)
    weight = stage(go, lambda: columns + f32(0.5) * (eps * eps - offset * offset))
    return sums, six_sums(go, normal_scores(scale), (eps,), weight), columns, buffers


# --- one step --------------------------------------------------------------------------------------------------------


def cross_fitted(sums, draws):
    """The gradient with each fold's a* from the other folds: independent of the fold, so nothing is biased."""
    h, wh, n, wn, centre = sums[:, :2], sums[:, 2:4], sums[:, 4], sums[:, 5], sums[:, 6]
    total = wn + centre * n
    a = (jnp.sum(total, 0) - total) / (jnp.sum(n, 0) - n) - centre
    return jnp.sum(wh - a[:, None] * h, 0) / draws


def plug_in(sums, draws):
    """The gradient of Eq. 10: one a* from all draws, covariance over variance, summed over the two parameters."""
    shift = sums[:1, 6]
    centre = sums[:, 6] - shift
    h, wh = jnp.sum(sums[:, :2], 0), jnp.sum(sums[:, 2:4] + centre[:, None] * sums[:, :2], 0)
    n, wn = jnp.sum(sums[:, 4], 0), jnp.sum(sums[:, 5] + centre * sums[:, 4], 0)
    a = (wn - jnp.sum(wh * h, 0) / draws) / (n - jnp.sum(h * h, 0) / draws)
    return (wh - a * h) / draws


def gradient(go, key, params, data, batch, shape, control_variate=cross_fitted):
    """Of W, and of o and x of the batch: pairs of (location, log scale) or (log concentration, log mean)."""
    keys = {name: jnp.stack(threefry(key, u32(i), u32(0))) for i, name in enumerate("Wox")}
    num_rows = LABS * FACTORS
    eps_w = normals(go, keys["W"], lax.iota(u32, num_rows // 2 + 1), lax.iota(u32, shape.draws))[:num_rows]
    eps_w = jnp.moveaxis(eps_w.reshape(LABS, FACTORS, FOLDS, shape.chunk), 2, 0)
    loc_w, scale_w = (p[..., None] for p in (params["W"][0], jnp.exp(params["W"][1])))
    draws_w = stage(go, lambda: loc_w + scale_w * eps_w)

    rows = {name: params[name][:, batch] for name in "ox"} | {name: leaf[batch] for name, leaf in data.items()}
    loc_o, scale_o = rows["o"][0], jnp.exp(rows["o"][1])
    a_x = jnp.exp(rows["x"][0])
    rows |= {"o": (loc_o, scale_o), "x": gamma_coefficients(rows["x"])}
    rows = stage(go, lambda rows: rows, rows)

    def work(i, state):
        p, fold = i // FOLDS, i % FOLDS
        patient = jax.tree.map(lambda leaf: leaf[p], rows)
        sums_x, sums_o, columns, buffers = state
        place = (batch[p].astype(jnp.uint32), fold)
        x, o, column, buffers = patient_fold(go, keys, place, patient, draws_w[fold], buffers, shape)
        return sums_x.at[fold, :, p].set(x), sums_o.at[fold, :, p].set(o), columns.at[fold].add(column), buffers

    state = (
        jnp.zeros((FOLDS, 7, shape.batch, shape.visits, FACTORS)),
        jnp.zeros((FOLDS, 7, shape.batch, LABS)),
        jnp.zeros((FOLDS, LABS, shape.chunk)),
        [jnp.zeros((shape.visits + 1, FACTORS, shape.chunk))] * 3,
    )
    sums_x, sums_o, columns, _ = lax.fori_loop(0, shape.batch * FOLDS, work, state)
    scale = f32(shape.patients / shape.batch)
    weight = stage(go, lambda: scale * columns[:, :, None] + f32(0.5) * (eps_w**2 - draws_w**2))
    sums_w = jnp.moveaxis(six_sums(go, normal_scores(scale_w), (eps_w,), weight), 1, 0)

    present = jnp.arange(shape.visits)[:, None] < rows["length"][:, None, None]
    x = jnp.where(present, a_x * control_variate(sums_x, shape.draws), 0)
    return {"W": control_variate(sums_w, shape.draws), "o": control_variate(sums_o, shape.draws), "x": x}


def step(go, seed, number, state, data, shape):
    """Algorithm 2 with minibatches: draw the batch, take the gradient, move lambda by AdaGrad with eta = 1."""
    params, squares = state
    key = jnp.stack(threefry(seed, number.astype(jnp.uint32), u32(0)))
    lots, _ = threefry(key, lax.iota(u32, shape.patients), u32(9))
    _, batch = lax.top_k(lots, shape.batch)
    slopes = gradient(go, key, params, data, batch, shape)

    def move(name, p, g2, g):
        local = name != "W"
        new = (g2[:, batch] if local else g2) + g * g
        change = jnp.where(new > 0, g * lax.rsqrt(jnp.where(new > 0, new, 1)), 0)
        return (p.at[:, batch].add(change), g2.at[:, batch].set(new)) if local else (p + change, new)

    moved = {name: move(name, params[name], squares[name], slopes[name]) for name in params}
    return tuple({name: pair[i] for name, pair in moved.items()} for i in range(2))


# --- running it ------------------------------------------------------------------------------------------------------


def start(patients, visits, seed=0):
    """Lambda to begin with, pairs stacked on the first axis: concentrations of 4 and standard deviations of 1, jittered."""
    rng = np.random.default_rng(seed)
    count = len(patients.labs)
    shapes = {"W": (2, LABS, FACTORS), "o": (2, count, LABS), "x": (2, count, visits, FACTORS)}
    params = {name: rng.normal(0, 0.1, s).astype(np.float32) for name, s in shapes.items()}
    params["x"][0] += np.log(4)
    return jax.tree.map(jnp.asarray, params)


def prepare(patients, batch, draws):
    """The static shape and the data of all patients, padded to the longest."""
    padded = patients.padded()
    visits = -(-padded["labs"].shape[1] // TILE) * TILE
    width = ((0, 0), (0, visits - padded["labs"].shape[1]), (0, 0))
    data = {
        "labs": jnp.asarray(np.pad(padded["labs"], width)),
        "observed": jnp.asarray(np.pad(padded["observed"], width) * f32(-0.5 / cohort.SIGMA_L**2), jnp.float32),
        "length": jnp.asarray(padded["length"], jnp.int32),
    }
    return Shape(len(patients.labs), batch, draws, visits), data


class Runner:
    """A fit that goes on with every `run`."""

    def __init__(self, patients, batch, draws, seed):
        self.shape, self.data = prepare(patients, batch, draws)
        params = start(patients, self.shape.visits, seed)
        self.state, self.done = (params, jax.tree.map(jnp.zeros_like, params)), 0
        self.seed = jnp.array([seed, 0], jnp.uint32)

        def several(go, seed, first, last, state, data):
            return lax.fori_loop(first, last, lambda i, s: step(go, seed, i, s, data, self.shape), state)

        args = (jnp.array(True), self.seed, 0, 0, self.state, self.data)
        self._several = jax.jit(several, donate_argnums=4).lower(*args).compile()

    def run(self, steps):
        """Take this many steps in one compiled call and wait for them."""
        last = self.done + steps
        args = (jnp.array(True), self.seed, np.int32(self.done), np.int32(last))
        self.state = jax.block_until_ready(self._several(*args, self.state, self.data))
        self.done = last


def make_runner(patients, *, batch=25, draws=1000, seed=0):
    """A compiled fit of these patients: `.run(steps)`."""
    return Runner(patients, batch, draws, seed)


def stages(shape, rounds=2000):
    """CPU time of the two halves of a tile, in ns for each draw of x, at concentrations of 30."""
    go, key = jnp.array(True), jnp.array([0, 1], jnp.uint32)
    pair = (jnp.full((TILE, FACTORS), np.log(30.0)), jnp.zeros((TILE, FACTORS)))
    coefficients = [jnp.asarray(c, jnp.float32) for c in gamma_coefficients(pair)]
    one, data = jnp.ones((TILE, FACTORS, shape.chunk)), jnp.ones((TILE, LABS))
    weights = (jnp.ones((LABS, FACTORS, shape.chunk)), jnp.ones((LABS, shape.chunk)))

    def draw(i, x, go, coefficients):
        return draw_tile(go, key, (i.astype(jnp.uint32) * u32(64), u32(0)), coefficients, (x[:1], x[:1]), shape)[0]

    def score(i, x, go, coefficients):
        out, columns = score_tile(go, (x, x, x, x), (data, data, data[:, 0] > 0), coefficients, weights, shape)
        return x + f32(1e-9) * (jnp.sum(out, 0)[..., None] + jnp.sum(columns, 0))

    costs = {}
    for name, body in (("draws and transitions", draw), ("likelihood, weights and sums", score)):
        loop = jax.jit(lambda n, x, *a, body=body: lax.fori_loop(0, n, lambda i, x: body(i, x, *a), x))
        jax.block_until_ready(loop(1, one, go, coefficients))
        begin = time.process_time()
        jax.block_until_ready(loop(rounds, one, go, coefficients))
        costs[name] = (time.process_time() - begin) / rounds / one.size * 1e9
    return costs


def gradient_variance(params, patients, chosen, *, draws=1000, repeats=100, seed=0):
    """Variance over repeats of the gradient of Eq. 10, each component of W and of o and x of the chosen patients.

    `params` is laid out as `start` does; the chosen patients are the batch, and W sees them scaled to all patients.
    """
    _, variance = moments(params, patients, chosen, draws=draws, repeats=repeats, seed=seed, control_variate=plug_in)
    return variance


def moments(params, patients, chosen, *, draws, repeats, seed=0, control_variate=cross_fitted):
    """Mean and variance over repeats of the gradient."""
    shape, data = prepare(patients, len(chosen), draws)
    batch = jnp.asarray(chosen, jnp.int32)

    @jax.jit
    def once(go, i):
        key = jnp.stack(threefry(jnp.array([seed, 1], jnp.uint32), i, u32(0)))
        return gradient(go, key, params, data, batch, shape, control_variate)

    slopes = [once(jnp.array(True), u32(i)) for i in range(repeats)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves).astype(np.float64), *slopes)
    return jax.tree.map(lambda g: g.mean(0), stacked), jax.tree.map(lambda g: g.var(0, ddof=1), stacked)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20, help="in one compiled call")
    parser.add_argument("--calls", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small cohort and few draws")
    parser.add_argument("--check", action="store_true", help="compare the gradient with an independent one")
    args = parser.parse_args()
    os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
    if args.check:
        import yardstick_check

        return yardstick_check.check(quick=args.quick)
    patients = cohort.simulate(12, longest=12) if args.quick else cohort.simulate()
    begin = time.perf_counter()
    runner = make_runner(patients, batch=3, draws=200) if args.quick else make_runner(patients)
    print(f"compiled in {time.perf_counter() - begin:.1f} s")
    for _ in range(args.calls):
        wall, cpu = time.perf_counter(), time.process_time()
        runner.run(args.steps)
        wall, cpu = (t / args.steps * 1e3 for t in (time.perf_counter() - wall, time.process_time() - cpu))
        print(f"{cpu:.1f} ms CPU, {wall:.1f} ms wall a step")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GB")
    for name, cost in stages(runner.shape).items():
        print(f"{cost:.2f} ns a draw of x: {name}")


if __name__ == "__main__":
    main()
