"""`from_pretrained`: a model's builder with published weights.

A layout (`weight_layouts.py`) yields the tensors' paths in the module and the factory's
settings. The file's head is used if the numbers of classes agree, else a new one.
"""

import inspect
import json
import math
import re
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hetjax.arguments import checked
from hetjax.models.blocks import Image
from hetjax.models.vit import interpolate_positions
from hetjax.models.weight_layouts import LEAVES, Tensors, WeightLayout, recognize
from hetjax.recipes import by_name

LOADED = (nnx.Param, nnx.BatchStat)
Names = dict[str, list[str]]  # tensors' names in the file, by path


@by_name
@checked
def from_pretrained(
    path: str | PathLike,
    *,
    image: Image | None = None,
    dropout: Any = None,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """The builder of a published ResNet, ViT or DistilBERT with its weights.

    `path` is a safetensors file, or a folder with one; nothing is downloaded. This
    needs the package safetensors, `pip install "hetjax[pretrained]"`. The layouts are
    those of torchvision, timm (ResNet-50/101/152, ViT) and Hugging Face (these, and
    DistilBERT). Sizes are taken from the tensors' shapes; the number of heads and
    similar settings from a config.json in the folder of a Hugging Face file. Without
    it, the number of heads is that of the published size of this width.

    >>> task = hj.classification(hj.models.from_pretrained("model.safetensors"), data)
    ... # doctest: +SKIP

    The builder makes a new head, initialized with the run's seed, if the data have
    another number of classes than the file, or if the file has no head. `image` is the
    shape of the data's images, by default that of the file (for a ResNet: 224 pixels);
    for a ViT the positions are interpolated to it. `dropout`, `dtype` and `remat` are
    those of `vit`, `distilbert` and `resnet50` (which has no dropout).

    Errors: ValueErrors for files that are missing, damaged or of an unknown layout, and
    for missing, superfluous or differently shaped tensors, with their names.
    """
    file = _file_of(path)
    config, content = _config_of(file), _read(file)
    try:
        layout = recognize(content)
        weights, names = _placed(content, layout)
        settings = layout.settings(weights, config)
        given = {"image": image, "dropout": dropout}
        given = {name: value for name, value in given.items() if value is not None}
        for name in given.keys() - inspect.signature(layout.factory).parameters:
            raise ValueError(
                f"{name} is not an argument of a {layout.name}: leave it out"
            )
        chosen = settings | given
        make = layout.factory(**chosen, dtype=dtype, remat=remat)
        if "positions" in weights:  # of a ViT, for images of the file's size
            positions = jnp.asarray(weights["positions"])
            old, new = _grid(settings), _grid(chosen)
            weights["positions"] = np.asarray(
                interpolate_positions(positions, old, new)
            )
        known = weights["head/kernel"].shape[-1] if "head/kernel" in weights else None
        head = ("head/",) if known else ("head/", "before_head/")  # paths of a new head
        features = math.prod(chosen.get("image", (1,)))
        skeleton = nnx.eval_shape(lambda: make(features, known or 1, rngs=nnx.Rngs(0)))
        _check(layout.name, weights, names, skeleton, () if known else head)
    except KeyError as error:
        raise ValueError(f"{file}: the tensors for {error} are missing") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error

    def build(features: Any, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        module = make(features, classes, rngs=rngs)
        new = () if classes == known else head
        loaded = {
            path: variable.replace(jnp.asarray(weights[name]))
            for name, (path, variable) in _arrays(module).items()
            if not name.startswith(new)
        }
        nnx.update(module, nnx.from_flat_state(loaded))
        return module

    return build


def _file_of(path: str | PathLike) -> Path:
    """Return the safetensors file at a path: the file itself, or the folder's one."""
    place = Path(path).expanduser()
    if not place.exists():
        raise ValueError(
            f"path={str(path)!r}: no such file or folder; pass a .safetensors file, "
            "or the folder that contains it"
        )
    found = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
    if len(found) != 1:
        raise ValueError(
            f"{place}: pass a folder with one .safetensors file, or the file itself; "
            f"found: {', '.join(file.name for file in found) or 'none'}"
        )
    return found[0]


def _config_of(file: Path) -> dict[str, Any]:
    """Return the settings of config.json in the file's folder; {} if there is none."""
    place = file.parent / "config.json"
    try:
        found = json.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{place}: this is not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{place}: it holds a {type(found).__name__}, not settings")
    return found


def _read(file: Path) -> Tensors:
    """Return all tensors of a file by name, in float32 except for integers."""
    try:
        from safetensors import SafetensorError
        from safetensors.flax import load_file
    except ImportError as error:
        raise ImportError(
            "published weights need the package safetensors: "
            'pip install "hetjax[pretrained]"'
        ) from error
    try:
        # read by JAX, as NumPy has no bfloat16; on the CPU, to avoid copies
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return {
                name: np.asarray(a, None if a.dtype.kind in "iub" else np.float32)
                for name, a in load_file(file).items()
            }
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{file}: not a complete safetensors file ({error}); download it again"
        ) from error


def _placed(content: Tensors, layout: WeightLayout) -> tuple[Tensors, Names]:
    """Return the tensors in flax's form by path in the module, and their names."""
    found: dict[str, dict[str, str]] = {}  # names by part, by path
    for name in content:
        path, part, parts = layout.place(name)
        found.setdefault(path, dict.fromkeys(parts, ""))[part] = name
    found.pop("-", None)
    names = {path: [name for name in of.values() if name] for path, of in found.items()}
    weights: Tensors = {}
    for path, there in names.items():
        arrays, some = [content[name] for name in there], ", ".join(there)
        if len(there) < (parts := len(found[path])):
            raise ValueError(f"of the {parts} tensors for {path} only {some} exist")
        if len({array.shape for array in arrays}) > 1:
            raise ValueError(f"the shapes of {some} differ")
        if path.endswith("/kernel"):  # [out, in, ...] in PyTorch, and [..., in, out]
            arrays = [a.transpose(2, 3, 1, 0) if a.ndim == 4 else a.T for a in arrays]
        weights[path] = arrays[0] if len(arrays) == 1 else np.concatenate(arrays, -1)
    return weights, names


def _grid(settings: dict[str, Any]) -> tuple[int, int]:
    height, width, _ = settings["image"]
    return height // settings["patch"], width // settings["patch"]


def _arrays(module: Any) -> dict[str, tuple[tuple, Any]]:
    """Return (path, variable) of the loaded variables, by the path as text."""
    flat = nnx.to_flat_state(nnx.state(module, LOADED))
    return {"/".join(map(str, path)): (path, leaf) for path, leaf in flat}


def _check(
    layout: str, weights: Tensors, names: Names, module: Any, optional: tuple[str, ...]
) -> None:
    """Raise a ValueError unless the weights are exactly those of the module."""
    shapes = {path: variable.shape for path, (_, variable) in _arrays(module).items()}
    missing = [p for p in shapes if p not in weights and not p.startswith(optional)]
    if paths := missing or [path for path in weights if path not in shapes]:
        some = ", ".join(paths[:5]) + ", ..." * (len(paths) > 5)
        problem = "are missing" if missing else "have no place in the model"
        there = _in_file(paths[:5], names)
        raise ValueError(f"{layout}: tensors for {some} {problem}{there}")
    for path, array in weights.items():
        there = _in_file([path], names)
        if array.dtype != np.float32 or not np.isfinite(array).all():
            wrong = "not finite" if array.dtype == np.float32 else f"of {array.dtype}"
            raise ValueError(f"the tensor for {path} has numbers {wrong}{there}")
        if array.shape != shapes[path]:
            wrong = f"{list(array.shape)}, but the model's is {list(shapes[path])}"
            raise ValueError(f"{layout}: the tensor for {path} is {wrong}{there}")


def _in_file(paths: list[str], names: Names) -> str:
    """Return the file's names of tensors as text; "" if they are unknown."""
    if found := [name for path in paths for name in names.get(path, ())]:
        return f" (in the file: {', '.join(found)})"
    # they are missing, but other tensors of their layers may exist
    published = {ours: theirs for theirs, ours in LEAVES.items()}
    lacks = [
        re.sub(f"({'|'.join(LEAVES)})$", published.get(leaf, "weight"), name)
        for layer, _, leaf in (path.rpartition("/") for path in paths)
        for sibling in names
        if sibling.startswith(f"{layer}/")
        for name in names[sibling]
    ]
    return f" (the file lacks {', '.join(dict.fromkeys(lacks))})" if lacks else ""
