"""Files that hold arrays and a JSON header and nothing that could execute; written whole or not at all."""

import contextlib
import hashlib
import io
import json
import math
import os
import struct
import tokenize
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

_FORMAT = 3
_HEADER = "header"
_DAMAGED = (
    zipfile.BadZipFile, struct.error, tokenize.TokenError, OSError, EOFError, KeyError, ValueError, AttributeError,
    RuntimeError, TypeError, SyntaxError,
)  # fmt: skip


def write(path: str | os.PathLike[str], kind: str, header: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a file atomically: a reader sees the old file or the new one, whatever happens in between."""
    path = Path(path)
    meta = json.dumps({"bbvi": kind, "format": _FORMAT, "digest": _digest_of_named(arrays), **header}).encode()
    buffer = io.BytesIO()
    entries: dict[str, Any] = {_HEADER: np.frombuffer(meta, np.uint8), **arrays}
    np.savez(buffer, **entries)
    # one name for each process: it cannot write into what another one writes, and leaves one such file if it is killed
    temporary = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with open(temporary, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def read(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a file of this kind; raise a ValueError that says why if it is not one, or not what was written."""
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("nothing that we write is compressed")
            arrays = {info.filename.removesuffix(".npy"): _array(archive.read(info)) for info in archive.infolist()}
        header = json.loads(arrays.pop(_HEADER).tobytes())
        found, version = header.get("bbvi"), header.get("format")
    except _DAMAGED as error:
        raise ValueError(f"{path} is not a readable bbvi {kind}: it is corrupt, truncated or something else") from error
    if found != kind:
        raise ValueError(f"{path} holds a bbvi {found}, not a {kind}")
    if version != _FORMAT:
        raise ValueError(
            f"{path} was written in format {version} and this version of bbvi reads format {_FORMAT}; "
            "read it with the version of bbvi that wrote it"
        )
    if header.get("digest") != _digest_of_named(arrays):
        raise ValueError(f"{path} does not hold the arrays that were written: it is corrupt")
    return header, arrays


def _array(raw: bytes) -> np.ndarray:
    """Read an array from a member of the file, no larger than that is."""
    file = io.BytesIO(raw)
    np.lib.format.read_magic(file)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(raw) - file.tell():
        raise ValueError("the array is not as large as it says")
    return np.frombuffer(bytearray(raw[file.tell() :]), dtype).reshape(shape, order="F" if fortran else "C")


def digest(things: Iterable[Any]) -> str:
    """Digest arrays, and whatever else has a text."""
    found = hashlib.sha256()
    for thing in things:
        is_array = isinstance(thing, (np.ndarray, np.generic, jax.Array))
        found.update(f"{thing.dtype}{thing.shape}".encode() if is_array else repr(thing).encode())
        found.update(np.ascontiguousarray(thing).tobytes() if is_array else b"|")
    return found.hexdigest()


def _digest_of_named(arrays: dict[str, np.ndarray]) -> str:
    return digest(part for pair in sorted(arrays.items()) for part in pair)


def flatten(tree: dict[str, Any]) -> dict[str, np.ndarray]:
    """Turn nested dicts of arrays into one dict with names joined by a slash."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def unflatten(flat: dict[str, np.ndarray]) -> dict[str, Any]:
    """Undo `flatten`."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, last = name.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def describe(model: Any) -> dict[str, Any]:
    """Describe a model by what must agree with a file for the file's parameters to be the model's."""
    latents = {part: {name: x.describe() for name, x in own.items()} for part, own in model.factors.items()}
    return {"model": type(model).__name__, **latents}


def check_same_model(path: Any, saved: Any, model: Any, parts: Sequence[str] = ("globals", "locals")) -> None:
    """Raise, naming the first difference, if a file belongs to another model."""
    here = describe(model)
    if saved["model"] != here["model"]:
        raise ValueError(f"{path} belongs to a {saved['model']}, but the model given is a {here['model']}")
    for part in parts:
        for name in sorted(set(saved[part]) | set(here[part])):
            one, other = saved[part].get(name), here[part].get(name)
            if one != other:
                raise ValueError(
                    f"{path} belongs to another model: latent {name!r} is {_short(one)} there and {_short(other)} here"
                )


def _short(latent: dict[str, Any] | None) -> str:
    if latent is None:
        return "absent"
    vector = f" of vectors {tuple(latent['event'])}" if latent["event"] else ""
    return f"{latent['support']}{tuple(latent['shape'])}{vector} with q={latent['q']}"
