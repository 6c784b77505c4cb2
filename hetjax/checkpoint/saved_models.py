"""Trained models in folders of their own, which orbax alone can read as well.

model/arrays/     one array for each parameter: "params/layers/0/kernel"
"""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hetjax.checkpoint import checkpoint_files
from hetjax.checkpoint.checkpoint_files import Damaged
from hetjax.checkpointable import file_name, shortened

PARAMS, STATE = "params", "model_state"
_LONGEST = 240  # bytes of a file name; file systems take 255, and orbax appends to it


def save(path: str | Path, params: Any, model_state: Any, *, overwrite: bool) -> None:
    """Write a model's arrays to a folder.

    Errors: FileExistsError if the folder exists. With `overwrite`, it is replaced once
    the new one is complete.
    """
    folder = Path(path)
    if folder.exists() and not overwrite:
        raise FileExistsError(
            f"{folder} exists: choose another path, or overwrite=True"
        )
    found = {**_named(PARAMS, params), **_named(STATE, model_state)}
    arrays = [np.asarray(x) for x in found.values()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    if not folder.exists():
        checkpoint_files.write(folder, {"names": list(found)}, arrays, list(found))
        return
    own = shortened(folder.name)
    new, old = (folder.with_name(f".{own}.{what}") for what in ("new", "old"))
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    checkpoint_files.write(new, {"names": list(found)}, arrays, list(found))
    os.rename(folder, old)
    os.rename(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def load(path: str | Path, like: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return (params, model state), shaped like the abstract model `like`.

    Errors: FileNotFoundError if there is no such folder, Damaged if it cannot be used,
    ValueError if the model has other shapes.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    document, arrays = checkpoint_files.read(folder)
    if not isinstance(document, dict) or "names" not in document:
        raise Damaged(f"{folder} is a checkpoint, but not one of a model")
    found = dict(zip(document["names"], arrays, strict=True))
    expected = {**_named(PARAMS, like[0]), **_named(STATE, like[1])}
    for name in [*expected, *(n for n in found if n not in expected)]:
        saved, wanted = (_text(each.get(name)) for each in (found, expected))
        if saved != wanted:
            raise ValueError(
                f"{folder} holds another model: {name} is {saved} there, but {wanted} "
                "in the task"
            )
    leaves = [jax.numpy.asarray(found[name]) for name in expected]
    params, state = like
    both = jax.tree.unflatten(jax.tree.structure((params, state)), leaves)
    return both[0], both[1]


def _named(first: str, tree: Any) -> dict[str, Any]:
    """Return arrays by their paths, such as "params/layers/0/kernel".

    Orbax makes a folder of each name. If the folders would collide, as those of {"a/b":
    ..., "a": {"b": ...}}, every key of the tree is quoted as in a URL.

    Errors: ValueError if a custom pytree class has two equal paths.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    parts = [[_part(key) for key in path] for path, _ in leaves]
    names = ["/".join([first, *of_leaf]) for of_leaf in parts]
    if not _are_folders(names):
        names = ["/".join([first, *map(_quoted, of_leaf)]) for of_leaf in parts]
    if len(set(names)) < len(names):
        (twice, _), *_ = Counter(names).most_common()
        raise ValueError(
            f"two arrays of the model have the path {twice}: the keys of its pytree "
            "class must have different names"
        )
    return {name: leaf for name, (_, leaf) in zip(names, leaves, strict=True)}


def _are_folders(names: list[str]) -> bool:
    """Whether the names are paths of different folders, none inside another."""
    parts = [name.split("/") for name in names]
    inner = {"/".join(p[:n]) for p in parts for n in range(1, len(p))}
    return (
        len(set(names)) == len(names)
        and inner.isdisjoint(names)
        and all(_is_file_name(part) for of_name in parts for part in of_name)
    )


def _is_file_name(text: str) -> bool:
    plain = text.isprintable() and "\\" not in text  # otherwise, orbax fails
    return plain and text not in ("", ".", "..") and len(text.encode()) <= _LONGEST


def _quoted(part: str) -> str:
    return f"%{part}" if part in ("", ".", "..") else file_name(part)


def _part(key: Any) -> str:
    for name in ("key", "name", "idx"):
        if hasattr(key, name):
            return str(getattr(key, name))
    return str(key)


def _text(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"
