"""Data whose numbers would reach the model as other numbers are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bbvi
from bbvi.model.numbers import refuse_rounding

MILLISECONDS = 1_700_000_000_000 + 60_000 * np.array([0, 1, 3, 4, 5, 7, 8, 11, 12, 13, 20, 21])
SECONDS = MILLISECONDS / 1000
RNG = np.random.default_rng(0)
LOST = {"integers": MILLISECONDS, "unsigned": np.array([0, 2**40], np.uint64), "floats": SECONDS, "a column": np.stack([SECONDS - SECONDS[0], SECONDS], 1),
        "too large": np.array([0.0, 1e39])}  # fmt: skip
KEPT = {
    "small integers": np.arange(5), "bytes": np.array([0, 255], np.uint8), "years": np.array([2019.5, 2020.5, 2031.0]),
    "dollars": np.array([66_852.13, 12_000.0]), "equal": np.full(4, 1e9), "single": np.float32([1e9, 1e9 + 64]),
    "constant but for rounding": np.diff(np.linspace(0, 1, 31)), "two rows": RNG.normal(size=(2, 20_000)),
    "shares that sum to 1": RNG.dirichlet(np.ones(7), 50).sum(1), "two close numbers": np.array([1.0, 1.0000001]),
    "infinite": np.array([0.0, np.inf]), "none": np.zeros(0), "a number": np.float64(1e12), "bools": np.array([True]),
}  # fmt: skip


def slope(z, data):
    return -((z["b"] * data["t"].astype(float)) ** 2).sum() - z["b"] ** 2


@pytest.mark.parametrize("name", LOST)
def test_numbers_that_do_not_fit_are_refused(name):
    with pytest.raises(ValueError, match=r"data\['t'\].*jax_enable_x64"):
        bbvi.fit(bbvi.Model(slope, b=bbvi.real()), {"t": LOST[name]})


@pytest.mark.parametrize("name", KEPT)
def test_numbers_that_fit_are_taken(name):
    assert refuse_rounding(np.asarray(KEPT[name]), "data") is None


def test_they_are_refused_in_groups_too():
    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["b"] ** 2),
        log_likelihood=lambda beta, z, row: -(beta["b"] ** 2) * jnp.sum(row["t"]),
        globals={"b": bbvi.real()},
    )
    with pytest.raises(ValueError, match=r"data\['t'\] holds 1700000000000, which int32 cannot hold"):
        bbvi.fit(model, {"t": MILLISECONDS})
    with pytest.raises(ValueError, match=r"cohort\['t'\] has values near 1.7e\+09 that differ by 1.26e\+03"):
        bbvi.ragged(visit={"t": [SECONDS[:1], SECONDS[1:]]})

    class Source:
        def __len__(self):
            return 12

        def __getitem__(self, indices):
            return {"t": MILLISECONDS[indices]}

    with pytest.raises(ValueError, match=r"row\['t'\] holds 170000"):
        bbvi.fit(model, Source(), batch_size=2)


def test_64_bits_hold_them():
    with jax.enable_x64(True):
        for values in LOST.values():
            assert refuse_rounding(values, "data") is None


def test_a_batch_of_a_stream_whose_numbers_are_close_is_taken():
    class Source:
        def __len__(self):
            return 200

        def __getitem__(self, indices):
            return {"t": 0.5 + 1e-6 * np.arange(200.0)[indices]}

    model = bbvi.HierarchicalModel(
        log_prior=lambda beta: -(beta["b"] ** 2),
        log_likelihood=lambda beta, z, row: -((beta["b"] - row["t"]) ** 2),
        globals={"b": bbvi.real()},
    )
    assert len(bbvi.fit(model, Source(), batch_size=2, stop=bbvi.Budget(steps=30)).history) == 30
