"""Data sets and models by name (--data, --model), and the task that fits the data."""

import importlib
import inspect
import math
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import hetjax as hj
from experiments.common import pipelines
from hetjax.data.readers import image_arrays, image_folder

NAMED: dict[str, Callable[[], hj.data.Dataset]] = {
    "digits": hj.data.digits,
    "shifted_digits": partial(hj.data.digits, shift=1),
    "mnist": hj.data.mnist,
    "fashion_mnist": hj.data.fashion_mnist,
    "cifar10": hj.data.cifar10,
    "cifar100": hj.data.cifar100,
    "flowers102": hj.data.flowers102,
    "tiny_imagenet": hj.data.tiny_imagenet,
    "ag_news": hj.data.ag_news,
    # learnable data of the same shape as a public set
    **{
        f"synthetic_{name}": partial(hj.data.synthetic_xmc, **sizes)
        for name, sizes in hj.data.SHAPES.items()
    },
}
OF_FEATURES = ("mlp", "linear")  # for x [N, F] of any F, dense or sparse
MODELS: dict[str, Callable[..., Any]] = {
    "magma_mlp": hj.models.magma_mlp,
    "lenet": hj.models.lenet,
    "magma_cnn": hj.models.magma_cnn,
    "resnet20": partial(hj.models.resnet, depth=20),
    "resnet20_biased": partial(
        hj.models.resnet,
        depth=20,
        shortcut="projection_everywhere",
        zero_gamma=True,
    ),
    "resnet32": partial(hj.models.resnet, depth=32),
    "resnet32_crossbow": partial(hj.models.resnet, depth=32, pool="crossbow"),
    "vgg16": hj.models.vgg16,
    "vgg16_torch": partial(hj.models.vgg16, variant="torch"),
    "nin": hj.models.nin,
    "convnet": hj.models.convnet,
    "wrn16_8": partial(hj.models.wide_resnet, depth=16, widen=8),
    "wrn28_10": partial(hj.models.wide_resnet, depth=28, widen=10),
    "resnet50": hj.models.resnet50,
    "resnet50_crossbow": partial(hj.models.resnet50, variant="crossbow"),
    "resnet101": hj.models.resnet101,
    "resnet101_crossbow": partial(hj.models.resnet101, variant="crossbow"),
    "vit_ti": partial(hj.models.vit, size="tiny"),
    "vit_s": partial(hj.models.vit, size="small"),
    "vit_b": partial(hj.models.vit, size="base"),
    "distilbert": hj.models.distilbert,
}
HELP = "digits, mnist, ..., a folder, a libSVM file, or module:function"
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_LIBSVM = ("{}.libsvm", "{}.libsvm.gz")


def load(
    name: str, *, first_index: int | None = None, pretrained: str | None = None
) -> hj.data.Dataset:
    """The data that --data names; a ValueError explains a wrong name.

    - one of `NAMED`
    - "module:function": the return value of a function without arguments; the module
      may be in the current folder
    - a libSVM file, one class per row, beside the test split FILE.t: `read_libsvm`
    - a folder, or one in $HETJAX_DATA: train.libsvm and test.libsvm (`read_libsvm`),
      images as MNIST's, CIFAR's or Tiny ImageNet's files, or in train/ and val/ with a
      folder per class (`read_image_folder`), else XMC text (`read_folder`)

    `first_index` is the text's first feature; None: 0 in XMC text, 1 in libSVM. Tokens
    are those of the `pretrained` model's vocabulary, if one is given.
    """
    if name == "ag_news" and pretrained is not None:
        return hj.data.ag_news(vocabulary=_vocabulary_of(pretrained))
    if name in NAMED:
        return NAMED[name]()
    if _FUNCTION.fullmatch(name):
        return _returned(name)
    places = [Path(name)]
    if os.environ.get("HETJAX_DATA"):
        places.append(Path(os.environ["HETJAX_DATA"]) / name)
    given: dict[str, Any] = {}
    if first_index is not None:
        given["first_index"] = first_index
    for place in places:
        if place.is_file():
            return hj.data.read_libsvm(place, _test_of(place), **given)
        if place.is_dir():
            return _in_folder(place, given)
    raise ValueError(
        f"--data={name}: neither {', '.join(NAMED)} nor synthetic_xmc, nor a file or "
        f"folder ({', '.join(map(str, places))}), nor module:function"
    )


def _vocabulary_of(pretrained: str) -> Path:
    """The vocab.txt beside published weights."""
    place = Path(pretrained)
    found = (place if place.is_dir() else place.parent) / "vocab.txt"
    if not found.is_file():
        raise ValueError(
            f"--pretrained={pretrained}: there is no {found}, the model's vocabulary: "
            "put it there, since tokens of another one mean other words"
        )
    return found


def _in_folder(folder: Path, given: dict[str, Any]) -> hj.data.Dataset:
    """The data in a folder, by the reader for the files that it holds."""
    pairs = [[folder / f.format(s) for s in ("train", "test")] for f in _LIBSVM]
    for pair in pairs:
        if pair[0].is_file():
            return hj.data.read_libsvm(*pair, **{"name": folder.name, **given})
    if any(folder.glob("train-images*")):
        return hj.data.read_idx_folder(folder)
    if image_arrays.find_cifar(folder):
        return hj.data.read_cifar(folder)
    if image_folder.has_image_folders(folder):
        if (folder / image_folder.IDS).is_file():
            return hj.data.tiny_imagenet(folder=folder)
        return hj.data.read_image_folder(folder)
    return hj.data.read_folder(folder, **given)


def _test_of(train: Path) -> Path:
    """The test split's file beside a libSVM file: a9a.t of a9a, a9a.t.gz of a9a.gz."""
    plain = str(train).removesuffix(".gz")
    found = [path for end in (".t", ".t.gz") if (path := Path(plain + end)).is_file()]
    if not found and train.suffix == ".py":
        raise ValueError(
            f"--data={train}: name a function in it, as --data={train.stem}:load"
        )
    if not found:
        raise ValueError(
            f"--data={train}: a libSVM file needs its test split beside it, as "
            f"{plain}.t or {plain}.t.gz"
        )
    return found[0]


def _returned(name: str) -> hj.data.Dataset:
    """Call the function "module:function"; its own errors are not changed."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and imports another one that is not
        raise ValueError(
            f"--data={name}: there is no module {error.name}, neither installed nor in "
            f"{os.getcwd()}"
        ) from None
    found = getattr(owner, function, None)
    if not callable(found):
        what = "has no" if found is None else "has no function, but a value"
        raise ValueError(f"--data={name}: {module} {what} {function}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise ValueError(
            f"--data={name}: the function is called without arguments ({error})"
        ) from None
    data = found()
    if not isinstance(data, hj.data.Dataset):
        raise ValueError(
            f"--data={name}: the function returns a {type(data).__name__}, not a "
            "hetjax.data.Dataset, as hetjax.data.from_arrays makes one"
        )
    return data


class Inputs(NamedTuple):
    """The precision of a task's model, and the pipeline of its inputs."""

    pipeline: str = "none"  # one of `pipelines.PIPELINES`
    dtype: str | None = None  # of the layers; None: float32
    remat: bool = False
    pretrained: str | None = None  # a safetensors file, or its folder


def task(
    name: str,
    data: hj.data.Dataset,
    hidden: int,
    output: str = "auto",
    inputs: Inputs = Inputs(),
) -> hj.Task:
    """The task of a model and a data set: classification, or regression of numbers."""
    y = data.train.y
    steps = pipelines.pipeline(inputs.pipeline, data)
    built = model(name, data, hidden, inputs)
    if data.num_classes:
        return hj.classification(built, data, output=output, **steps._asdict())
    if getattr(y, "ndim", 0) > 1 and y.dtype.kind in "iu":
        raise ValueError(
            f"y of {data.name} is {list(y.shape)} of {y.dtype}, which are tokens: this "
            "script trains no language models; write one of your own with "
            "hetjax.next_token"
        )
    if output != "auto":
        raise ValueError(
            f"--output={output} is for classes, and y of {data.name} are numbers"
        )
    return hj.regression(built, data)


def model(
    name: str, data: hj.data.Dataset, hidden: int, inputs: Inputs = Inputs()
) -> Any:
    """The model of that name; "mlp" is a sparse MLP if the inputs are sparse."""
    wanted = {"dtype": inputs.dtype, "remat": inputs.remat or None}
    wanted = {option: value for option, value in wanted.items() if value is not None}
    if inputs.pretrained is not None:
        image = _image(data, inputs)
        found = hj.models.from_pretrained(inputs.pretrained, **image, **wanted)
        if name != "mlp":  # the default: any model that is in the file
            named = model(name, data, hidden, inputs._replace(pretrained=None))
            features = math.prod(image["image"]) if image else data.num_features
            _check_same(inputs.pretrained, name, features, found, named)
        return found
    if name in OF_FEATURES:
        if not isinstance(data.num_features, int):
            raise ValueError(
                f"x of {data.name} are several arrays, which no model of the scripts "
                "takes: write a script with a custom model"
            )
        _check_no_tokens(name, data)
        make = hj.models.sparse_mlp if data.sparse else hj.models.mlp
        _check_options(name, make, wanted)
        if name == "linear":
            return hj.models.linear()
        return make(hidden=hidden)
    if name not in MODELS:
        known = ", ".join((*OF_FEATURES, *MODELS))
        raise ValueError(f"--model={name}: choose one of {known}")
    factory = MODELS[name]
    _check_options(name, factory, wanted)
    if "image" in inspect.signature(factory).parameters:
        wanted |= _image(data, inputs)
    return factory(**wanted)


def _check_no_tokens(name: str, data: hj.data.Dataset) -> None:
    """Raise a ValueError for inputs whose numbers a layer should not multiply."""
    dtype = getattr(data.train.x, "dtype", None)
    if dtype is None or not data.num_classes:
        return  # `task` says what is wrong with tokens to predict
    if dtype.kind in "iu" and dtype.itemsize > 1:
        raise ValueError(
            f"--model={name}: x of {data.name} are integers ({dtype}), such as tokens: "
            "pass --model=distilbert; if they are quantities, make them floats"
        )


def _image(data: hj.data.Dataset, inputs: Inputs) -> dict[str, Any]:
    """image=(height, width, channels) as the model sees the data; {} if not known."""
    x = data.train.x
    if getattr(x, "ndim", 0) != 4:
        return {}
    one = jax.ShapeDtypeStruct((1, *x.shape[1:]), jnp.float32)
    normalize = pipelines.pipeline(inputs.pipeline, data).normalize
    if normalize is not None:
        one = jax.eval_shape(normalize, jax.random.key(0), one)
    return {"image": tuple(one.shape[1:])}


def _check_same(path: str, name: str, features: Any, found: Any, named: Any) -> None:
    """Raise a ValueError unless the model in a file is the one that --model names."""

    def shapes(build: Any) -> Any:
        module = nnx.eval_shape(lambda: build(features, 2, rngs=nnx.Rngs(0)))
        return jax.tree.map(lambda a: a.shape, nnx.to_pure_dict(nnx.state(module)))

    if shapes(found) != shapes(named):
        raise ValueError(
            f"--pretrained={path}: the model in it is not --model={name}: pass the one "
            "that it is, or none"
        )


def _check_options(name: str, factory: Any, wanted: dict[str, Any]) -> None:
    """Raise a ValueError for flags that the model would ignore."""
    for option in wanted:
        if option not in inspect.signature(factory).parameters:
            raise ValueError(f"--{option}: the model {name} has no such setting")
