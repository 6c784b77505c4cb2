"""The original files of Oxford Flowers102.

jpg/ has the images, image_00001.jpg and so on; imagelabels.mat has the class of each,
counted from one; setid.mat has the image numbers of the three splits, counted from one.
"""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from hetjax.data.readers import DataError
from hetjax.data.readers.images import ImageFiles, ImageSplit, raise_if_missing

CLASSES = 102
FOLDER, LABELS, SPLITS = "jpg", "imagelabels.mat", "setid.mat"
FILES = (SPLITS, LABELS)
_TRAIN, _VALID, _TEST = "trnid", "valid", "tstid"
_OFFICIAL = {_TRAIN: 1020, _VALID: 1020, _TEST: 6149}  # numbers of images
# the splits in setid.mat for training, and for testing
_USE = {
    "swapped": ((_TEST,), (_TRAIN, _VALID)),
    "official": ((_TRAIN, _VALID), (_TEST,)),
}


def check_split(split: str) -> None:
    """Raises a ValueError unless it is a known way to split."""
    if split not in _USE:
        raise ValueError(f"split={split!r}: choose one of {', '.join(_USE)}")


def find_flowers(folder: Path, split: str) -> ImageFiles:
    """The images in this folder, in the order of setid.mat."""
    labels = _labels(folder / LABELS)
    ids = _ids(folder / SPLITS, len(labels))
    parts = []
    for names in _USE[split]:
        rows = np.concatenate([ids[name] for name in names])
        paths = [folder / FOLDER / f"image_{row:05}.jpg" for row in rows.tolist()]
        parts.append(ImageSplit(paths, (labels[rows - 1] - 1).astype(np.int32)))
    train, test = parts
    if not (folder / FOLDER).is_dir():
        raise DataError(f"{folder / FOLDER}: no such folder; unpack 102flowers.tgz")
    raise_if_missing(folder, [*train.paths, *test.paths], "unpack 102flowers.tgz again")
    notes = [
        f"{name}: {len(ids[name])} images, the official files have {size}"
        for name, size in _OFFICIAL.items()
        if len(ids[name]) != size
    ]
    others = tuple(folder / file for file in FILES)
    return ImageFiles(folder, train, test, CLASSES, "flowers102", tuple(notes), others)


def _labels(path: Path) -> np.ndarray:
    """The class [N] of each image, counted from one."""
    labels = _integers(path, _load(path), "labels")
    wrong = np.flatnonzero((labels < 1) | (labels > CLASSES))
    if wrong.size:
        raise DataError(
            f"{path}: image {wrong[0] + 1} has the label {labels[wrong[0]]}, outside "
            f"1..{CLASSES}; damaged? fetch it again"
        )
    return labels


def _ids(path: Path, images: int) -> dict[str, np.ndarray]:
    """The image numbers of each split, counted from one, without duplicates."""
    content = _load(path)
    ids = {name: _integers(path, content, name) for name in _OFFICIAL}
    for name, found in ids.items():
        wrong = found[(found < 1) | (found > images)]
        if wrong.size:
            raise DataError(
                f"{path}: {name} has the image {wrong[0]}, but {LABELS} has labels of "
                f"images 1..{images}; do both files belong together?"
            )
    numbers, counts = np.unique(np.concatenate(list(ids.values())), return_counts=True)
    if (counts > 1).any():
        raise DataError(
            f"{path}: the image {numbers[counts > 1][0]} occurs twice, in one split "
            "or two; fetch the file again"
        )
    return ids


def _load(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; download it to this folder, too")
    try:
        return scipy.io.loadmat(path)
    except Exception as error:  # of many types, for damaged files
        raise DataError(
            f"{path}: cannot be read as a MATLAB file ({error}); fetch it again"
        ) from error


def _integers(path: Path, content: dict[str, Any], key: str) -> np.ndarray:
    """The variable's numbers [n] int64, at least one."""
    if key not in content:
        there = ", ".join(name for name in content if not name.startswith("__"))
        raise DataError(f"{path}: looked for {key}; it holds {there or 'nothing'}")
    values = np.asarray(content[key])
    if not values.size or values.dtype.kind not in "iuf":
        raise DataError(
            f"{path}: {key} is {list(values.shape)} of {values.dtype}, not whole "
            "numbers; fetch the file again"
        )
    if not (np.isfinite(values).all() and (values == np.round(values)).all()):
        raise DataError(f"{path}: {key} are not whole numbers; fetch the file again")
    return values.reshape(-1).astype(np.int64)
