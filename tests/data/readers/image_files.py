"""Small folders of images, and a reference for their resized pixels."""

import io

import numpy as np
from PIL import Image

# name of a file, width and height
TRAIN = {
    "cat/b.JPEG": (20, 30),
    "cat/a.jpg": (24, 16),
    "cat/deep/er/c.png": (16, 16),
    "ant/x.Jpeg": (37, 21),
    "bee/1.PNG": (8, 9),
}
TEST = {"bee/v1.jpg": (17, 40), "ant/v0.jpg": (16, 31)}
ROWS = ["ant/x.Jpeg", "bee/1.PNG", "cat/a.jpg", "cat/b.JPEG", "cat/deep/er/c.png"]
LABELS = [0, 1, 2, 2, 2]


def write_image(path, width, height, mode="RGB", seed=0, **options):
    """Smooth noise, which JPEG and resizing change a little."""
    rng = np.random.default_rng([seed, width, height])
    coarse = rng.integers(0, 256, (5, 5, 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.convert(mode).save(path, **options)
    return path


def write_folder(folder, train=TRAIN, test=TEST):
    """FOLDER/train and FOLDER/val, with different images."""
    for part, files in (("train", train), ("val", test)):
        for seed, (name, (width, height)) in enumerate(files.items()):
            write_image(folder / part / name, width, height, seed=seed)
    return folder


def plainly(path, size):
    """The pixels [size, size, 3] of an image, resized and then cropped."""
    image = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    width, height = image.size
    if width <= height:
        shape = size, int(size * height / width)
    else:
        shape = int(size * width / height), size
    pixels = np.asarray(image.resize(shape, Image.Resampling.BICUBIC))
    top, left = (int(round((side - size) / 2)) for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


def same(one, other):
    """Whether both data sets are equal."""
    for a, b in ((one.train, other.train), (one.test, other.test)):
        np.testing.assert_array_equal(a.x, b.x)
        np.testing.assert_array_equal(a.y, b.y)
        assert a.x.dtype == b.x.dtype
        assert a.y.dtype == b.y.dtype
    assert one.num_classes == other.num_classes
