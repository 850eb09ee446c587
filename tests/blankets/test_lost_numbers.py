"""Numbers that a function holds are refused as data are, if they enter its trace as other numbers."""

import collections
import dataclasses
import functools
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

import bbvi
from bbvi.blankets.analysis import analyse
from bbvi.model.problem import bind
from bbvi.model.within_reach import within_reach

TIMES = 1_700_000_000_000 + 60_000 * np.array([0, 1, 3, 4, 5, 7, 8, 11, 12, 13, 20, 21])
SECONDS = TIMES / 1000
Y = np.linspace(-1, 1, 12, dtype=np.float32)
FAR = np.int64(2**40)
FRAME = pd.DataFrame({"t": TIMES, "name": "a"})
STAMPS = pd.Series(pd.to_datetime(TIMES, unit="ms"))
SETTINGS = types.SimpleNamespace(inner={"times": [TIMES, None]})
CALLS: list[int] = []


def fitted(t, z, y):
    return dist.Normal(0, 1).log_prob(z["b"]) + dist.Normal(z["b"] * t, 1).log_prob(y).sum()


def closure(t):
    return lambda z, y: fitted(t, z, y)


def of_default(z, y, t=TIMES):
    return fitted(t, z, y)


def of_keyword(z, y, *, t=TIMES):
    return fitted(t, z, y)


def helper(z):
    return z["b"] * TIMES


def through_a_helper(z, y):
    return dist.Normal(0, 1).log_prob(z["b"]) + dist.Normal(helper(z), 1).log_prob(y).sum()


def looped(z, y):
    total, _ = jax.lax.scan(lambda c, t: (c - (z["b"] * t) ** 2, None), 0.0 * z["b"], TIMES)
    return total


@dataclasses.dataclass
class Study:
    times: np.ndarray

    def log_joint(self, z, y):
        return fitted(self.times, z, y)


class Slotted:
    __slots__ = ("t",)

    def __init__(self):
        self.t = TIMES

    def __call__(self, z, y):
        return fitted(self.t, z, y)


class OfEquinox(eqx.Module):
    t: np.ndarray

    def __call__(self, z, y):
        return fitted(self.t, z, y)


class OfClass:
    TIMES = TIMES

    def __call__(self, z, y):
        return fitted(self.TIMES, z, y)


def decorated(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)

    return inner


LOST = {
    "a closure": closure(TIMES), "unsigned": closure(TIMES.astype(np.uint64)), "seconds": closure(SECONDS), "a global": lambda z, y: fitted(TIMES, z, y),
    "a default": of_default, "a keyword's default": of_keyword, "a partial function": functools.partial(fitted, TIMES), "a helper's global": through_a_helper,
    "a method": Study(TIMES).log_joint, "slots": Slotted(), "equinox": OfEquinox(TIMES), "of a class": OfClass(), "compiled": jax.jit(closure(TIMES)),
    "equinox compiled": eqx.filter_jit(closure(TIMES)), "decorated": decorated(of_default), "a loop": looped, "nested": lambda z, y: fitted(SETTINGS.inner["times"][0], z, y),
    "another order": lambda z, y: fitted(TIMES[::-1], z, y), "a data frame": lambda z, y: fitted(FRAME["t"].to_numpy(), z, y),
    "stamps": lambda z, y: fitted(STAMPS.astype("int64").to_numpy(), z, y), "made inside": lambda z, y: fitted(10**12 + np.arange(12), z, y),
    "a logarithm": lambda z, y: fitted(np.log(TIMES), z, y), "a list of floats": (lambda t: lambda z, y: fitted(jnp.asarray(t), z, y))(list(map(float, SECONDS))), "one number": lambda z, y: fitted(FAR, z, y), "the first of many": lambda z, y: fitted(Y, z, y) - (z["b"] * TIMES[0]) ** 2, "one in a loop": lambda z, y: jax.lax.scan(lambda c, t: (c - z["b"] ** 2 * t * FAR, None), 0.0 * z["b"], Y)[0],
    "asked for as floats": lambda z, y: fitted(jnp.asarray(TIMES, float), z, y), "as single floats": lambda z, y: fitted(jnp.asarray(TIMES, jnp.float32), z, y), "scaled too late": lambda z, y: fitted(jnp.asarray(TIMES) / 1e12, z, y),
    "in a branch": lambda z, y: jax.lax.cond(z["b"] > 0, lambda b: -(b * TIMES).sum(), lambda b: -(b**2), z["b"]),
    "columns": lambda z, y: fitted(np.stack([TIMES, np.arange(12)], 1).sum(1), z, y), "a queue": (lambda q: lambda z, y: fitted(q[0], z, y))(collections.deque([TIMES])),
    "mapped": lambda z, y: jax.vmap(lambda t, x: dist.Normal(z["b"] * t, 1).log_prob(x))(TIMES, y).sum() - z["b"] ** 2,
}  # fmt: skip
KEPT = {
    "centred": lambda z, y: fitted((TIMES - TIMES.mean()) / 1e5, z, y), "a difference": lambda z, y: fitted(np.diff(TIMES, prepend=TIMES[0]) / 1000, z, y),
    "hours of the day": lambda z, y: fitted(STAMPS.dt.hour.to_numpy(), z, y), "not used": lambda z, y, t=TIMES: fitted(Y, z, y), "one that fits": lambda z, y: fitted(np.int64(3), z, y),
    "a number of Python's": lambda z, y: fitted(1.7e12, z, y) / 1e12, "small": closure(np.arange(12)), "a penalty": lambda z, y: fitted(Y, z, y) + jnp.where(y > 2, -1e30, 0.0).sum(),
    "random bits": lambda z, y: fitted(Y, z, y) + jax.random.normal(jax.random.key(np.uint32(2**31 + 5))) * 0,
    "limits": lambda z, y: fitted(Y, z, y) + jnp.where(y > 2, jnp.finfo(jnp.result_type(float)).min, 0.0).sum() + 0 * jnp.asarray(np.diff(TIMES)).sum(),
    "chosen by": lambda z, y: fitted(np.isin(TIMES, TIMES[:4]).astype(int), z, y), "doubles": closure(np.random.default_rng(0).normal(size=12)),
    "densities": lambda z, y: fitted(Y, z, y) + dist.StudentT(3.0, z["b"]).log_prob(y).sum() + 0 * (TIMES[1] - TIMES[0]),
}  # fmt: skip


def analysed(function):
    problem, data, groups = bind(bbvi.Model(function, b=bbvi.real()), Y)
    return analyse(problem, data, groups)


@pytest.mark.parametrize("name", LOST)
def test_numbers_that_are_lost_are_refused(name):
    with pytest.raises(ValueError, match="cannot hold; centre it|rounds them to multiples of"):
        analysed(LOST[name])


@pytest.mark.parametrize("name", KEPT)
def test_numbers_that_are_not_lost_are_taken(name):
    assert analysed(KEPT[name]).blankets.prior.shapes


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a closure", "t, which log_joint uses, holds 1700000000000, which int32 cannot hold"),
        ("a global", "TIMES, which log_joint uses, holds"),
        ("a method", r"self\.times, which log_joint uses, holds"),
        ("nested", r"SETTINGS\.inner\['times'\]\[0\], which log_joint uses, holds"),
        ("seconds", r"t, which log_joint uses, has values near 1.7e\+09 that differ by"),
        ("another order", r"an array of shape \(12,\) in log_joint \(test_lost_numbers.py:\d+\), computed from TIMES, holds"),
        ("one number", r"a number in log_joint \(test_lost_numbers.py:\d+\), computed from FAR, holds 1099511627776"),
    ],
)  # fmt: skip
def test_the_error_names_the_variable_or_the_line(name, message):
    with pytest.raises(ValueError, match=message + ".*jax_enable_x64"):
        analysed(LOST[name])


@pytest.mark.parametrize("part", ["log_prior", "log_local", "log_likelihood"])
def test_all_functions_of_groups_are_looked_at(part):
    held = {name: TIMES if name == part else Y for name in ("log_prior", "log_local", "log_likelihood")}
    prior, local, likelihood = (held[name] for name in held)
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -((beta["b"] * prior) ** 2).sum(),
        log_local=lambda beta, z, row: -(z["u"] ** 2) - ((beta["b"] * local) ** 2).sum(),
        log_likelihood=lambda beta, z, row: -((z["u"] - row) ** 2) - ((beta["b"] * likelihood) ** 2).sum(),
        globals={"b": bbvi.real()},
        locals={"u": bbvi.real()},
    )
    with pytest.raises(ValueError, match="holds 1700000000000, which int32 cannot hold"):
        bbvi.fit(model, Y, batch_size=2)


def counting(t):
    def log_joint(z, y):
        CALLS.append(1)
        return fitted((t - t[0]) / t[-1], z, y)

    return log_joint


@pytest.mark.parametrize(("t", "calls"), [(np.arange(12), 1), (TIMES, 2)])
def test_a_function_is_traced_again_only_where_numbers_may_be_lost(t, calls):
    CALLS.clear()
    analysed(counting(t))
    assert len(CALLS) == calls


def test_what_cannot_be_traced_under_64_bits_is_a_warning():
    def log_joint(z, y):
        assert jnp.result_type(float) == jnp.float32
        return fitted((TIMES - TIMES[0]) / 1e5, z, y)

    with pytest.warns(UserWarning, match="log_joint can reach TIMES: it holds 17.*could not be found out"):
        analysed(log_joint)


def test_64_bits_hold_them():
    with jax.enable_x64(True):
        assert analysed(LOST["a closure"]).blankets.prior.shapes


def test_opaque_functions_compute_with_numpys_numbers():
    model = bbvi.Model(bbvi.opaque(lambda z, y: -((z["b"] * (TIMES - TIMES[0]) / 1e6 - y) ** 2)), b=bbvi.real())
    assert np.isfinite(bbvi.fit(model, Y, stop=bbvi.Budget(steps=0)).params["b"]["loc"])


def test_the_walk_ends():
    endless: dict = {}
    endless["self"] = endless
    deep: list = []
    for _ in range(5_000):
        deep = [deep]
    wide = {str(i): [i, str(i)] for i in range(30_000)}
    assert not within_reach(lambda z: (endless, deep)).arrays
    assert within_reach(lambda z: wide).may_hold_more
    assert within_reach(lambda z: 1.7e12 * z).may_hold_more
