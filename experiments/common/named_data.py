"""Data sets and models by the names that the flags use."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import hetjax as hj

NAMED: dict[str, Callable[[], hj.data.Dataset]] = {
    "digits": hj.data.digits,
    "mnist": hj.data.mnist,
    "fashion_mnist": hj.data.fashion_mnist,
    "cifar10": hj.data.cifar10,
    "cifar100": hj.data.cifar100,
    # learnable data of the same shape as a public set
    **{
        f"synthetic_{name}": partial(hj.data.synthetic_xmc, **sizes)
        for name, sizes in hj.data.SHAPES.items()
    },
}
MODELS: dict[str, Callable[..., Any]] = {
    "magma_mlp": hj.models.magma_mlp,
    "lenet": hj.models.lenet,
    "magma_cnn": hj.models.magma_cnn,
    "resnet20": lambda: hj.models.resnet(depth=20),
    "resnet32": lambda: hj.models.resnet(depth=32),
    "vgg16": hj.models.vgg16,
    "nin": hj.models.nin,
    "convnet": hj.models.convnet,
    "wrn16_8": lambda: hj.models.wide_resnet(depth=16, widen=8),
    "wrn28_10": lambda: hj.models.wide_resnet(depth=28, widen=10),
}


def load(name: str, *, first_index: int = 0) -> hj.data.Dataset:
    """A named data set, or a folder of XMC text: a path, or a name in $HETJAX_DATA."""
    if name in NAMED:
        return NAMED[name]()
    folders = [Path(name)]
    if os.environ.get("HETJAX_DATA"):
        folders.append(Path(os.environ["HETJAX_DATA"]) / name)
    for folder in folders:
        if folder.is_dir():
            return hj.data.read_folder(folder, first_index=first_index)
    raise ValueError(
        f"--data={name}: neither {', '.join(NAMED)} nor synthetic_xmc, nor a folder "
        f"({', '.join(map(str, folders))})"
    )


def model(name: str, data: hj.data.Dataset, hidden: int) -> Any:
    """The model of that name; "mlp" is a sparse MLP if the inputs are sparse."""
    if name == "mlp":
        return (hj.models.sparse_mlp if data.sparse else hj.models.mlp)(hidden=hidden)
    if name not in MODELS:
        raise ValueError(f"--model={name}: choose one of mlp, {', '.join(MODELS)}")
    return MODELS[name]()
