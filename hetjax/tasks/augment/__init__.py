"""Augmentation of images: pure functions (key, x [B, H, W, C]) -> x [B, H', W', C].

Random draws are independent per example, and equal keys produce equal images. Use them
as arguments `augment` and `normalize` of `hetjax.tasks.classification`, and those that
mix two examples as `mix`.
"""

from hetjax.tasks.augment.crops import (
    center_crop,
    pad_crop,
    random_crop,
    random_resized_crop,
    resize,
)
from hetjax.tasks.augment.mixing import Mix, cutmix, mixup, one_of
from hetjax.tasks.augment.rand_augment import rand_augment
from hetjax.tasks.augment.transforms import (
    Transform,
    chain,
    color_jitter,
    flip,
    normalize,
)

__all__ = [
    "Mix",
    "Transform",
    "center_crop",
    "chain",
    "color_jitter",
    "cutmix",
    "flip",
    "mixup",
    "normalize",
    "one_of",
    "pad_crop",
    "rand_augment",
    "random_crop",
    "random_resized_crop",
    "resize",
]
