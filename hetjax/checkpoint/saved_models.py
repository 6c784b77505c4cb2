"""Trained models in folders of their own, which orbax alone can read as well.

model/arrays/          in orbax's format: {"params/layers/0/kernel": array, ...}
model/checksums.json   the CRC-32 of every array
"""

import json
import os
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import numpy as np
from jax.tree_util import keystr, tree_leaves_with_path

from hetjax.checkpoint.checkpoint_files import Damaged, first_line
from hetjax.checkpointable import shortened

SUMS, ARRAYS = "checksums.json", "arrays"


def save(path: str | Path, params: Any, model_state: Any, *, overwrite: bool) -> None:
    """Write a model's arrays to a folder.

    Errors: FileExistsError if the folder exists. With `overwrite`, it is replaced once
    the new one is complete. ValueError in all processes but the first.
    """
    folder = Path(path)
    if folder.exists() and not overwrite:
        raise FileExistsError(
            f"{folder} exists: choose another path, or overwrite=True"
        )
    if jax.process_index() > 0:
        raise ValueError(
            "orbax writes NumPy arrays in process 0 alone: save the model there"
        )
    arrays = {n: np.asarray(x) for n, x in _named(params, model_state).items()}
    filled = {name: x for name, x in arrays.items() if x.size}  # as orbax requires
    sums = {name: _checksum(x) for name, x in filled.items()}
    own = shortened(folder.name)
    new, old = (folder.with_name(f".{own}.{what}") for what in ("new", "old"))
    for left_over in (new, old):
        shutil.rmtree(left_over, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        if filled:
            _checkpointer().save((new / ARRAYS).absolute(), filled)
        (new / SUMS).write_text(json.dumps(sums), encoding="utf-8")
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
    finally:
        if not folder.exists() and old.exists():  # between the two renames
            os.rename(old, folder)
        for left_over in (new, old):
            shutil.rmtree(left_over, ignore_errors=True)


def load(path: str | Path, like: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return (params, model state), shaped like the abstract model `like`.

    Errors: FileNotFoundError if there is no such folder, Damaged if it cannot be used,
    ValueError if the model has other shapes.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder")
    expected = _named(*like)
    # orbax saves no empty arrays
    found = {n: np.empty(x.shape, x.dtype) for n, x in expected.items() if not x.size}
    found |= _read(folder)
    for name in {**expected, **found}:
        saved, wanted = _text(found.get(name)), _text(expected.get(name))
        if saved != wanted:
            raise ValueError(
                f"{folder} holds another model: {name} is {saved} there, but {wanted} "
                "in the task"
            )
    leaves = [jax.numpy.asarray(found[name]) for name in expected]
    params, state = jax.tree.unflatten(jax.tree.structure(like), leaves)
    return params, state


def _read(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a model by name."""
    if (folder / "state.json").exists():
        raise Damaged(
            f"{folder} was written by an older hetjax, in a format that this one does "
            "not read; its arrays can be read with "
            f"orbax.checkpoint.PyTreeCheckpointer().restore({str(folder / ARRAYS)!r})"
        )
    try:
        sums = json.loads((folder / SUMS).read_text(encoding="utf-8"))
        found = _checkpointer().restore((folder / ARRAYS).absolute()) if sums else {}
        if wrong := [n for n in {**sums, **found} if sums[n] != _checksum(found[n])]:
            raise ValueError(f"the checksum of {wrong[0]} differs")
    except Exception as error:  # those of orbax have no common type
        raise Damaged(f"{folder} is damaged: {first_line(error)}") from error
    return found


def _checkpointer() -> Any:
    """Orbax's checkpointer for trees of NumPy arrays, for this process alone."""
    import orbax.checkpoint as ocp  # here, since the import takes seconds

    own = ocp.options.MultiprocessingOptions(
        primary_host=jax.process_index(), active_processes={jax.process_index()}
    )
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=own)
    return ocp.Checkpointer(handler, multiprocessing_options=own)


def _named(params: Any, model_state: Any) -> dict[str, Any]:
    """Return arrays by their paths, such as "params/layers/0/kernel".

    If two would be equal, as those of {"a/b": ..., "a": {"b": ...}}, every key is
    quoted as in a URL. Errors: ValueError if a custom pytree class has two equal paths.
    """
    paths = tree_leaves_with_path({"params": params, "model_state": model_state})
    names = [keystr(path, simple=True, separator="/") for path, _ in paths]
    if len(set(names)) < len(names):
        names = [
            "/".join(quote(keystr((k,), simple=True), safe="") for k in path)
            for path, _ in paths
        ]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise ValueError(
            f"two arrays of the model have the path {name}: the keys of its pytree "
            "class must have different names"
        )
    return {name: leaf for name, (_, leaf) in zip(names, paths, strict=True)}


def _text(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(array.tobytes())
