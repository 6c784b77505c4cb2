"""Reads safetensors files and the settings beside them."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import numpy as np

Tensors = dict[str, np.ndarray]


def file_of(path: str | PathLike) -> Path:
    """The safetensors file at a path: the file itself, or the only one in a folder.

    Errors: a ValueError that says what is there instead.
    """
    place = Path(path).expanduser()
    if place.is_file():
        return place
    if not place.is_dir():
        raise ValueError(
            f"path={str(path)!r}: no such file or folder; give a .safetensors file, "
            "or the folder that holds it"
        )
    found = sorted(place.glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "none"
        raise ValueError(
            f"{place}: give a folder with one .safetensors file, or the file itself; "
            f"there: {names}"
        )
    return found[0]


def read(file: Path) -> Tensors:
    """All tensors of a file, by name, in float32 where they are floats.

    Errors: an ImportError that names the extra; a ValueError for a file that is
    damaged, or of another format.
    """
    try:
        import safetensors
    except ImportError as error:
        raise ImportError(
            "published weights need the package safetensors: "
            'pip install "hetjax[pretrained]"'
        ) from error
    try:
        # bfloat16 is none of NumPy's own; nothing is to go to an accelerator and back
        host = jax.default_device(jax.local_devices(backend="cpu")[0])
        with host, safetensors.safe_open(file, framework="flax") as content:
            found = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{file}: it is not a whole safetensors file ({error}); download it again"
        ) from error
    return {name: _as_float32(np.asarray(array)) for name, array in found.items()}


def _as_float32(array: np.ndarray) -> np.ndarray:
    """Integers, such as counts of batches, stay."""
    return array if array.dtype.kind in "iub" else array.astype(np.float32)


def config_beside(file: Path) -> dict[str, Any]:
    """What config.json in the file's folder says; {} if there is none."""
    place = file.parent / "config.json"
    if not place.is_file():
        return {}
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{place}: it is not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place}: it holds a {type(found).__name__}, not settings")
    return found
