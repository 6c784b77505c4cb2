"""Small folders laid out as the originals of Flowers102 and Tiny ImageNet."""

import numpy as np
import scipy.io
from image_files import write_image

FLOWERS = [5, 102, 1, 5, 60, 2, 2]  # labels of images 1..7
SPLITS = {"trnid": [[2, 7]], "valid": [[3]], "tstid": [[6, 1, 4, 5]]}
IDS = ["n02", "n01", "n10"]  # not in sorted order, as in the original
ANNOTATED = {"val_0.JPEG": "n10", "val_2.JPEG": "n02", "val_1.JPEG": "n10"}


def write_flowers(folder, labels=FLOWERS, splits=SPLITS):
    """jpg/image_00001.jpg and so on, imagelabels.mat and setid.mat."""
    for number in range(1, len(labels) + 1):
        path = folder / "jpg" / f"image_{number:05}.jpg"
        write_image(path, 20 + number, 30 - number, seed=number)
    scipy.io.savemat(folder / "imagelabels.mat", {"labels": np.array([labels])})
    scipy.io.savemat(folder / "setid.mat", {k: np.array(v) for k, v in splits.items()})
    return folder


def write_tiny(folder):
    """wnids.txt, two images in train/ID/images of each class, and val/."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wnids.txt").write_text("\n".join(IDS))  # without a newline at the end
    for number, name in enumerate(IDS):
        place = folder / "train" / name
        write_image(place / "images" / f"{name}_0.JPEG", 64, 64, seed=number)
        write_image(place / "images" / f"{name}_1.JPEG", 64, 64, "L", seed=number)
        (place / f"{name}_boxes.txt").write_text(f"{name}_0.JPEG\t0\t10\t63\t58\n")
    for number, name in enumerate(ANNOTATED):
        write_image(folder / "val" / "images" / name, 64, 64, seed=10 + number)
    lines = [f"{file}\t{name}\t0\t32\t44\t62\n" for file, name in ANNOTATED.items()]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder
