"""`from_pretrained`: a model's builder with published weights (see the folder's text).

A layout gives the tensors' paths in the module and the factory's settings. A head for
as many classes as the file has is taken over; for any other number it is new.
"""

import inspect
import math
from collections.abc import Callable
from os import PathLike
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from hetjax.models.blocks import Image
from hetjax.models.pretrained import distilbert, layouts, resnet, tensors, vit
from hetjax.models.pretrained.layouts import Layout
from hetjax.models.pretrained.tensors import Tensors
from hetjax.models.vit import interpolate_positions
from hetjax.recipes import by_name

LAYOUTS = (*resnet.LAYOUTS, *vit.LAYOUTS, *distilbert.LAYOUTS)
LOADED = (nnx.Param, nnx.BatchStat)
# the layers of a new head: where the number of classes differs, and where the file has
# no head at all
NEW = {False: ("head/",), True: ("head/", "before_head/")}


@by_name
def from_pretrained(
    path: str | PathLike,
    *,
    image: Image | None = None,
    dropout: Any = None,
    dtype: Any = jnp.float32,
    remat: bool = False,
) -> Callable[..., nnx.Module]:
    """The builder of a published ResNet, ViT or DistilBERT with its weights.

    `path` is a safetensors file, or a folder with one; nothing is downloaded. It takes
    the package safetensors, `pip install "hetjax[pretrained]"`. The layouts are those
    of torchvision, timm (ResNet-50/101/152, ViT) and Hugging Face (these, and
    DistilBERT), and sizes are taken from the tensors' shapes; of a config.json beside a
    Hugging Face file, the number of heads and the like. Without it, heads are those of
    the published size of this width.

    >>> task = hj.classification(hj.models.from_pretrained("model.safetensors"), data)
    ... # doctest: +SKIP

    The builder makes a new head where the data have another number of classes than the
    file, or where the file has none; its weights are of the run's seed. `image` is the
    shape of the data's images, by default that of the file (a ResNet's: 224 pixels);
    for a ViT the positions are interpolated to it. `dropout`, `dtype` and `remat` are
    those of `vit`, `distilbert` and `resnet50` (which has no dropout).

    Errors: ValueErrors for files that are missing, damaged or of no known layout, and
    for tensors that are missing, too many or of another shape, with their names.
    """
    file = tensors.file_of(path)
    config, content = tensors.config_beside(file), tensors.read(file)
    try:
        layout = layouts.recognise(list(content), LAYOUTS)
        weights, names = layouts.by_path(content, layout)
        settings = layout.settings(weights, config)
        chosen = settings | _chosen(layout, image, dropout)
        make = layout.factory(**chosen, dtype=dtype, remat=remat)
        if "positions" in weights:
            weights["positions"] = _for_image(weights["positions"], settings, chosen)
        known = weights.get("head/kernel")
        known = None if known is None else known.shape[-1]
        _check(layout, weights, names, make, chosen, known)
    except KeyError as error:
        raise ValueError(f"{file}: the tensors for {error} are missing") from error
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error

    def build(features: Any, classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        module = make(features, classes, rngs=rngs)
        new = () if classes == known else NEW[known is None]
        nnx.update(module, _fill(module, weights, new))
        return module

    return build


def _chosen(layout: Layout, image: Image | None, dropout: Any) -> dict[str, Any]:
    """The arguments that were given and that the layout's factory takes.

    Errors: a ValueError for one that it does not take.
    """
    given = {"image": image, "dropout": dropout}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if name not in inspect.signature(layout.factory).parameters:
            raise ValueError(f"{name} is no argument of a {layout.name}")
    return given


def _for_image(
    positions: Any, settings: dict[str, Any], chosen: dict[str, Any]
) -> np.ndarray:
    """A ViT's positions for the file's images, for those that were chosen."""
    old, new = (
        (of["image"][0] // of["patch"], of["image"][1] // of["patch"])
        for of in (settings, chosen)
    )
    return np.asarray(interpolate_positions(jnp.asarray(positions), old, new))


def _fill(module: nnx.Module, weights: Tensors, new: tuple[str, ...]) -> Any:
    """The module's arrays with the weights in them, but for the layers that are new."""

    def value(path: tuple, variable: Any) -> Any:
        name = "/".join(map(str, path))
        if name.startswith(new):
            return variable
        return variable.replace(jnp.asarray(weights[name]))

    return nnx.map_state(value, nnx.state(module, LOADED))


def _check(
    layout: Layout,
    weights: Tensors,
    names_there: dict[str, str],
    make: Callable[..., nnx.Module],
    settings: dict[str, Any],
    classes: int | None,
) -> None:
    """Raises a ValueError unless the weights are those of the module, and no others."""
    features = math.prod(settings.get("image", (1,)))
    skeleton = nnx.eval_shape(lambda: make(features, classes or 1, rngs=nnx.Rngs(0)))
    flat = nnx.to_flat_state(nnx.state(skeleton, LOADED))
    shapes = {"/".join(map(str, path)): leaf.shape for path, leaf in flat}
    needed = [p for p in shapes if classes is not None or not p.startswith(NEW[True])]
    for problem, paths in (
        ("are missing", [path for path in needed if path not in weights]),
        (
            "have no place in the model",
            [path for path in weights if path not in shapes],
        ),
    ):
        if paths:
            some = ", ".join(paths[:5]) + ", ..." * (len(paths) > 5)
            there = _in_file(paths[:5], names_there)
            raise ValueError(f"{layout.name}: tensors for {some} {problem}{there}")
    for path, array in weights.items():
        if array.dtype != np.float32 or not np.isfinite(array).all():
            wrong = "not finite" if array.dtype == np.float32 else f"of {array.dtype}"
            there = _in_file([path], names_there)
            raise ValueError(f"the tensor for {path} has numbers {wrong}{there}")
        if array.shape != shapes[path]:
            raise ValueError(
                f"{layout.name}: the tensor for {path} is {list(array.shape)}, but the "
                f"model's is {list(shapes[path])}{_in_file([path], names_there)}"
            )


def _in_file(paths: list[str], names: dict[str, str]) -> str:
    """The file's names of tensors, in words; "" if they are not known."""
    # of a layer that is published as several, paths end in #0, #1 and #2
    found = [name for path, name in names.items() if path.partition("#")[0] in paths]
    if found:
        return f" (in the file: {', '.join(found)})"
    # they are missing, but others of their layers may be there
    lacks = [name for path in paths if (name := layouts.name_of(path, names))]
    return f" (the file lacks {', '.join(lacks)})" if lacks else ""
