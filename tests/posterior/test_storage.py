"""A file is written whole or not at all, and what is read is what was written."""

import io
import os
import tracemalloc
import zipfile

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bbvi
from bbvi.posterior.storage import check_same_model, describe, flatten, read, unflatten, write

names = st.text(alphabet="abcαβ_0", min_size=1, max_size=4)
trees = st.recursive(
    st.lists(st.floats(allow_nan=False), max_size=3).map(np.array),
    lambda children: st.dictionaries(names, children, min_size=1, max_size=3),
    max_leaves=8,
)


def same(one, other):
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[name], other[name]) for name in one)
    return np.array_equal(one, other) and one.dtype == other.dtype


@settings(deadline=None)
@given(st.dictionaries(names, trees, min_size=1, max_size=3))
def test_unflatten_is_the_inverse_of_flatten(tree):
    assert same(unflatten(flatten(tree)), tree)


def test_flatten_joins_names_by_slashes():
    assert list(flatten({"a": {"b": np.ones(2), "c": {"d": 3.0}}, "e": 1})) == ["a/b", "a/c/d", "e"]


def test_what_is_read_is_what_was_written_bit_by_bit(tmp_path):
    arrays = {
        "float/x": np.array([0.1, np.nan, -np.inf, 5e-324]), "int": np.arange(3, dtype=np.int32),
        "bool": np.array(True), "empty": np.zeros((0, 2), np.float32),
    }  # fmt: skip
    write(tmp_path / "file", "posterior", {"verdict": "naïve", "n": [1, None]}, arrays)
    header, back = read(tmp_path / "file", "posterior")
    assert (header["verdict"], header["n"], header["bbvi"]) == ("naïve", [1, None], "posterior")
    assert set(back) == set(arrays)
    for name, array in arrays.items():
        assert back[name].tobytes() == array.tobytes()
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)


def test_the_file_has_the_name_it_was_given(tmp_path):
    write(tmp_path / "state.checkpoint", "checkpoint", {}, {})
    assert os.listdir(tmp_path) == ["state.checkpoint"]


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_failure_while_writing_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    write(path, "posterior", {"version": "old"}, {"x": np.ones(3)})

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="disk full"):
        write(path, "posterior", {"version": "new"}, {"x": np.zeros(3)})
    monkeypatch.undo()
    header, arrays = read(path, "posterior")
    assert header["version"] == "old"
    assert arrays["x"].all()
    assert os.listdir(tmp_path) == ["file"]


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "file"
    write(path, "posterior", {}, {"x": np.arange(50.0)})
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="corrupt, truncated or something else"):
            read(path, "posterior")


def test_a_file_that_could_execute_code_is_not_read(tmp_path):
    path = tmp_path / "file"
    with open(path, "wb") as file:
        np.savez(file, header=np.array([{"bbvi": "posterior"}], dtype=object))
    with pytest.raises(ValueError, match="is not a readable bbvi posterior"):
        read(path, "posterior")


def test_a_file_of_another_kind_says_what_it_is(tmp_path):
    write(tmp_path / "file", "checkpoint", {}, {})
    with pytest.raises(ValueError, match="holds a bbvi checkpoint, not a posterior"):
        read(tmp_path / "file", "posterior")


def test_models_are_the_same_when_their_latents_are():
    def model(**latents):
        return bbvi.Model(lambda z, y: 0.0, **latents)

    saved = describe(model(a=bbvi.real(2), b=bbvi.positive()))
    check_same_model("here", saved, model(b=bbvi.positive(), a=bbvi.real(2)))
    with pytest.raises(
        ValueError, match="here belongs to another model: latent 'b' is positive.* there and absent here"
    ):
        check_same_model("here", saved, model(a=bbvi.real(2)))


# ---- damaged files ------------------------------------------------------------------------------------------------


def damaged(content, rng):
    """The same file with a byte changed, some lost, some doubled, or some of zeros."""
    kind, at = rng.integers(4), int(rng.integers(len(content)))
    length = int(rng.integers(1, 40))
    if kind == 0:
        return content[:at] + bytes([content[at] ^ int(rng.integers(1, 256))]) + content[at + 1 :]
    if kind == 1:
        return content[:at] + content[at + length :]
    if kind == 2:
        return content[:at] + content[at : at + length] + content[at:]
    return content[:at] + bytes(length) + content[at + length :]


def leaves(posterior):
    arrays = [*jax.tree.leaves(posterior.params), *(posterior.history[name] for name in posterior.history)]
    return [np.asarray(array).tobytes() for array in arrays], posterior.outcome, posterior.stopped


def test_a_damaged_posterior_is_refused_by_name_or_unchanged(tmp_path):
    model = bbvi.Model(lambda z, _: -0.5 * z["x"] ** 2 - z["s"], x=bbvi.real(), s=bbvi.positive())
    posterior, path = bbvi.fit(model, stop=bbvi.Budget(steps=20)), tmp_path / "posterior.npz"
    posterior.save(path)
    content, whole, rng = path.read_bytes(), leaves(posterior), np.random.default_rng(0)
    refused = 0
    for _ in range(1000):
        path.write_bytes(damaged(content, rng))
        try:
            found = bbvi.load(path, model)
        except ValueError as error:
            assert "posterior.npz" in str(error)
            refused += 1
        else:
            assert leaves(found) == whole
    assert refused > 800


def test_a_damaged_checkpoint_is_refused_by_name_or_unchanged(tmp_path):
    arrays = {f"leaf{i}": np.arange(float(i + 3)) for i in range(5)} | {"history/elbo": np.arange(9.0)}
    path, rng = tmp_path / "state.npz", np.random.default_rng(1)
    write(path, "checkpoint", {"settings": {"seed": "[0, 1]"}}, arrays)
    content, whole = path.read_bytes(), read(path, "checkpoint")
    for _ in range(1000):
        path.write_bytes(damaged(content, rng))
        try:
            header, found = read(path, "checkpoint")
        except ValueError as error:
            assert "state.npz" in str(error)
        else:
            assert header == whole[0] and same(found, whole[1])


def test_an_array_that_was_put_in_place_of_another_is_noticed(tmp_path):
    path, member = tmp_path / "state.npz", io.BytesIO()
    write(path, "posterior", {}, {"x": np.arange(3.0), "y": np.zeros(2)})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    np.save(member, np.arange(3.0) + 1)
    for changed in ({"x.npy": member.getvalue()}, {"y.npy": None}):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (members | changed).items():
                if content is not None:
                    archive.writestr(name, content)
        with pytest.raises(ValueError, match="state.npz does not hold the arrays that were written"):
            read(path, "posterior")


def test_a_file_that_would_fill_the_memory_is_refused_before_it_is_read(tmp_path):
    path, member = tmp_path / "bomb.npz", io.BytesIO()
    np.save(member, np.zeros(3))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.npy", bytes(50_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"bomb.npz is not a readable bbvi posterior"):
            read(path, "posterior")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    claims = member.getvalue().replace(b"(3,)", b"(999999999999,)").replace(b" " * 12 + b"\n", b"\n")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", claims)
    with pytest.raises(ValueError, match=r"bomb.npz is not a readable bbvi posterior"):
        read(path, "posterior")


def test_parameters_of_another_shape_are_refused(tmp_path):
    model = bbvi.Model(lambda z, _: -0.5 * (z["x"] ** 2).sum(), x=bbvi.real(2))
    path = tmp_path / "posterior.npz"
    bbvi.fit(model, stop=bbvi.Budget(steps=0)).save(path)
    header, arrays = read(path, "posterior")
    header = {name: value for name, value in header.items() if name != "digest"}
    write(path, "posterior", header, arrays | {"params/globals/x/loc": np.zeros(7, np.float32)})
    with pytest.raises(ValueError, match="posterior.npz holds parameters of other names or shapes"):
        bbvi.load(path, model)
