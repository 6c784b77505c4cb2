"""Augmentation of images: pure functions (key, x [B, H, W, C]) -> x [B, H', W', C].

Random draws are independent per example, and the same key gives the same images. These
are for the arguments `augment` and `normalize` of `hetjax.tasks.classification`, and
those that mix two examples for `mix`.
"""

from hetjax.tasks.augment.crops import (
    center_crop,
    pad_crop,
    random_crop,
    random_resized_crop,
    resize,
)
from hetjax.tasks.augment.transforms import Transform, chain, flip, normalize

__all__ = [
    "Transform",
    "center_crop",
    "chain",
    "flip",
    "normalize",
    "pad_crop",
    "random_crop",
    "random_resized_crop",
    "resize",
]
