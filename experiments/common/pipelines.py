"""The papers' transforms of inputs before the model, by name.

Images are float32 in the data's own scale: 0..1 from the CIFAR readers, 0..255 from the
readers of folders. Every pipeline is for one of the two.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.data import Dataset
from hetjax.tasks import augment
from hetjax.tasks.augment import Transform

# mean and standard deviation of the training images' channels, at a scale of 0..1
CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Pipeline(NamedTuple):
    """The arguments of `hetjax.classification` that transform inputs."""

    augment: Transform | None = None
    normalize: Transform | None = None
    mix: Any = None


def _bytes(statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    """`normalize` of images of bytes, for statistics at a scale of 0..1."""
    return augment.normalize(*(tuple(255 * n for n in part) for part in statistics))


def _cifar(statistics: Any) -> Pipeline:
    """Biased Local SGD: 4 black pixels around, crop, flip."""
    changes = augment.chain(augment.pad_crop(4), augment.flip())
    return Pipeline(changes, augment.normalize(*statistics))


def _crossbow_cifar() -> Pipeline:
    """CROSSBOW: images scaled to -1..1, then padded with 0."""
    changes = augment.chain(augment.pad_crop(4, fill=0.5), augment.flip())
    return Pipeline(changes, augment.normalize(0.5, 0.5))


def _imagenet() -> Pipeline:
    """Random resized crops and flips; in evaluation the center."""
    changes = augment.chain(augment.random_resized_crop(224), augment.flip())
    return Pipeline(changes, augment.chain(augment.center_crop(224), _bytes(IMAGENET)))


def _flowers() -> Pipeline:
    """Biased Local SGD: brightness and contrast (by up to 40 %), crop, flip."""
    changes = augment.chain(
        augment.color_jitter(brightness=0.4, contrast=0.4),
        augment.random_crop(224),
        augment.flip(),
    )
    return Pipeline(changes, augment.chain(augment.center_crop(224), _bytes(IMAGENET)))


def _tiny_imagenet() -> Pipeline:
    """Biased Local SGD: bicubic to 224 pixels, flip, RandAugment."""
    larger = augment.resize(224, method="bicubic", white=255)
    changes = augment.chain(larger, augment.flip(), augment.rand_augment())
    return Pipeline(changes, augment.chain(larger, _bytes(IMAGENET)))


PIPELINES: dict[str, Callable[[], Pipeline]] = {
    "none": Pipeline,
    "cifar10": lambda: _cifar(CIFAR10),
    "cifar100": lambda: _cifar(CIFAR100),
    "crossbow_cifar": _crossbow_cifar,
    "imagenet": _imagenet,
    "flowers102": _flowers,
    "tiny_imagenet": _tiny_imagenet,
}
FLOATS = ("cifar10", "cifar100", "crossbow_cifar")  # for data at a scale of 0..1


def pipeline(name: str, data: Dataset) -> Pipeline:
    """The pipeline of that name; a ValueError if it is not for such data."""
    if name == "none":
        return Pipeline()
    x = data.train.x
    wanted = "float32" if name in FLOATS else "uint8"
    if getattr(x, "ndim", 0) != 4 or str(x.dtype) != wanted:
        shape = f"{list(x.shape)} of {x.dtype}" if hasattr(x, "shape") else "no array"
        raise ValueError(
            f"--pipeline={name} is for images [N, H, W, C] of {wanted}, but x of "
            f"{data.name} is {shape}"
        )
    return PIPELINES[name]()
