"""The original files of Tiny ImageNet.

wnids.txt has one WordNet id per line, train/ID/images/ the training images, and
val/images/ the validation images, whose ids are in val/val_annotations.txt: file name,
id and a box in each line, separated by tabs. Source: cs231n.stanford.edu.
"""

from pathlib import Path

import numpy as np

from hetjax.data.dataset import note
from hetjax.data.readers import DataError
from hetjax.data.readers.image_folder import images_in, listing
from hetjax.data.readers.images import ImageFiles, ImageSplit, raise_if_missing

IDS, ANNOTATIONS = "wnids.txt", "val/val_annotations.txt"
FILES = (IDS,)
_OFFICIAL = {"classes": 200, "training images": 100_000, "test images": 10_000}
_UNPACK = "unpack tiny-imagenet-200.zip again"


def find_tiny_imagenet(folder: Path) -> ImageFiles:
    """The images in this folder, by class, and then in the order of their names."""
    ids = sorted(_ids(folder / IDS))
    numbers = {name: number for number, name in enumerate(ids)}
    places = {name: folder / "train" / name for name in ids}
    for place in places.values():
        if not place.is_dir():
            raise DataError(f"{place}: no such folder, but {IDS} names it; {_UNPACK}")
    train = listing({name: place / "images" for name, place in places.items()}, numbers)
    test = _validation(folder, numbers)
    sizes = (len(ids), len(train.images.paths), len(test.paths))
    notes = [
        f"{size} {what}, the official files have {official}"
        for size, (what, official) in zip(sizes, _OFFICIAL.items(), strict=True)
        if size != official
    ]
    ignored = note("train", train.ignored, "file", "without an image's ending ignored")
    return ImageFiles(
        root=folder,
        train=train.images,
        test=test,
        num_classes=len(ids),
        name="tiny_imagenet",
        notes=tuple(filter(None, [*notes, ignored])),
        others=(folder / IDS, folder / ANNOTATIONS),
    )


def _ids(path: Path) -> list[str]:
    """The ids, without duplicates."""
    ids: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        name = line.strip()
        if not name:
            continue
        if name in ids:
            raise DataError(
                f"{path}:{number}: {name} is also in line {ids[name]}; {_UNPACK}"
            )
        if name in (".", "..") or "/" in name or "\\" in name:
            raise DataError(f"{path}:{number}: {name!r} is not a WordNet id; {_UNPACK}")
        ids[name] = number
    if not ids:
        raise DataError(f"{path}: no ids, the file is empty; {_UNPACK}")
    return list(ids)


def _validation(folder: Path, numbers: dict[str, int]) -> ImageSplit:
    """The validation images, in the order of their annotations."""
    path, place = folder / ANNOTATIONS, folder / "val" / "images"
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        if not rest or "/" in name:
            raise DataError(
                f"{path}:{number}: looked for a file name, a tab and an id in "
                f"{line[:60]!r}; {_UNPACK}"
            )
        if rest[0] not in numbers:
            raise DataError(
                f"{path}:{number}: {rest[0][:40]!r} is not in {IDS}; {_UNPACK}"
            )
        if name in labels:
            raise DataError(f"{path}:{number}: {name} is annotated twice; {_UNPACK}")
        labels[name] = numbers[rest[0]]
    if not labels:
        raise DataError(f"{path}: no annotations, the file is empty; {_UNPACK}")
    paths = [place / name for name in labels]
    raise_if_missing(folder, paths, _UNPACK)
    without = [file for file in images_in(place) if file.name not in labels]
    if without:
        raise DataError(
            f"{without[0]}: not in {ANNOTATIONS}, as {len(without)} images in all; "
            f"remove them, or {_UNPACK}"
        )
    return ImageSplit(paths, np.array(list(labels.values()), np.int32))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file ({error}); {_UNPACK}") from error
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {_UNPACK}") from None
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason})") from error
