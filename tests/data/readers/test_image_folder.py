"""Folders of images: the files, their order, and every pixel."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from image_files import (
    LABELS,
    ROWS,
    TEST,
    TRAIN,
    plainly,
    same,
    write_folder,
    write_image,
)
from PIL import Image

import hetjax as hj
from hetjax import recipes
from hetjax.data import DataError, read_image_folder
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.columns import is_mapped
from hetjax.data.dataset_checks import check_dataset
from hetjax.data.readers.images import decoded


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "pets")


@pytest.fixture
def read(folder, tmp_path):
    def read_it(**options):
        return read_image_folder(folder, cache=tmp_path / "cache", **options)

    return read_it


@pytest.mark.parametrize("size", [16, 5])
@pytest.mark.parametrize("workers", [1, 3, None])
def test_pixels_and_classes(folder, read, size, workers):
    data = read(size=size, workers=workers)
    expected = [plainly(folder / "train" / name, size) for name in ROWS]
    np.testing.assert_array_equal(data.train.x, expected)
    assert data.train.y.tolist() == LABELS
    expected = [plainly(folder / "val" / name, size) for name in sorted(TEST)]
    np.testing.assert_array_equal(data.test.x, expected)
    assert data.test.y.tolist() == [0, 1]
    assert (data.num_classes, data.name, data.notes) == (3, "pets", ())
    for split in (data.train, data.test):
        assert (split.x.dtype, split.y.dtype) == (np.uint8, np.int32)
        assert is_mapped(split.x)
        assert not is_mapped(split.y)


def test_it_is_data_to_train_on(read):
    data = read(size=8, name="mine")
    check_dataset(data)
    assert data.name == "mine"
    rows = np.array([3, 0])
    batch = make_batch(data.train, rows, make_buckets(data.train, 2))
    np.testing.assert_array_equal(batch.x, data.train.x[rows])
    task = hj.classification(hj.models.mlp(hidden=4), data, normalize=(127.0, 74.0))
    strategy = hj.sync_sgd(batch_size=2, learning_rate=0.1)
    machine = hj.machine.preset("v100x2")
    history = hj.train(task, data, machine, strategy, seconds=0.01)
    assert np.isfinite(history.evals[-1]["accuracy"])


def test_another_process_can_read_it_by_its_recipe(read):
    data = read(size=8)
    same(recipes.make(recipes.recipe_of(data), {}), data)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 40))
def test_any_shape(tmp_path_factory, width, height, size):
    path = tmp_path_factory.mktemp("shape") / "image.png"
    write_image(path, width, height)
    np.testing.assert_array_equal(decoded(path, size), plainly(path, size))


def test_an_image_of_the_right_size_keeps_its_pixels(tmp_path):
    path = write_image(tmp_path / "a.png", 9, 7)
    pixels = np.asarray(Image.open(path))
    np.testing.assert_array_equal(decoded(path, 7), pixels[:, 1:8])


@pytest.mark.parametrize(
    ("mode", "ending"),
    [("L", "jpg"), ("CMYK", "jpg"), ("L", "png"), ("P", "png"), ("1", "png")]
    + [("RGBA", "png"), ("LA", "png")],
)
def test_all_become_rgb(tmp_path, mode, ending):
    path = write_image(tmp_path / f"a.{ending}", 30, 20, mode)
    with Image.open(path) as image:
        assert image.mode == mode
    found = decoded(path, 10)
    assert isinstance(found, np.ndarray)
    np.testing.assert_array_equal(found, plainly(path, 10))
    if mode in ("L", "LA", "1"):
        assert (found == found[..., :1]).all()


def test_a_camera_s_orientation_is_not_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    turned = write_image(tmp_path / "a.jpg", 30, 20, exif=exif)
    plain = write_image(tmp_path / "b.jpg", 30, 20)
    np.testing.assert_array_equal(decoded(turned, 12), decoded(plain, 12))


def test_other_splits(folder, read):
    (folder / "val").rename(folder / "dev")
    assert len(read(test="dev", size=4).test) == 2
    assert len(read(train="dev", test="dev", size=4).train) == 2


def test_links_are_followed(folder, tmp_path, read):
    write_image(tmp_path / "elsewhere" / "z.jpg", 9, 9)
    (folder / "train" / "bee" / "more").symlink_to(tmp_path / "elsewhere")
    assert read(size=4).train.y.tolist() == [0, 1, 1, 2, 2, 2]


def test_other_files_are_counted_and_hidden_ones_are_not_there(folder, read):
    for name in ("cat/readme.txt", "ant/x.JPEG.part", "cat/.a.jpg", ".cache/b.jpg"):
        path = folder / "train" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"no image")
    (folder / "train" / "list.txt").write_text("beside the class folders")
    data = read(size=4)
    assert data.train.y.tolist() == LABELS
    assert data.notes == ("train: 2 files without an image's ending ignored",)


def test_images_beside_the_class_folders_are_counted(folder, read):
    write_image(folder / "val" / "stray.JPG", 8, 8)
    (folder / "val" / ".hidden.jpg").write_bytes(b"no image")
    write_image(folder / "outside.jpg", 8, 8)
    data = read(size=4)
    assert data.train.y.tolist() == LABELS
    assert data.notes == ("val: 1 image in no class's folder ignored",)


def test_a_class_without_test_images_is_a_class(folder, read):
    assert "cat" not in {name.split("/")[0] for name in TEST}
    assert read(size=4).num_classes == 3


def damage(folder):
    """Files that are not images, for different reasons, and their messages."""
    cut = folder / "train" / "cat" / "b.JPEG"
    cut.write_bytes(cut.read_bytes()[:-100])
    (folder / "train" / "bee" / "1.PNG").write_bytes(b"")
    (folder / "val" / "bee" / "v1.jpg").write_bytes(b"<html>not found</html>")
    deep = np.full((9, 9), 40_000, np.uint16)
    Image.fromarray(deep).save(folder / "train" / "ant" / "deep.png")
    png = folder / "train" / "cat" / "deep" / "er" / "c.png"
    content = bytearray(png.read_bytes())
    content[content.index(b"IDAT") + 10] ^= 255
    png.write_bytes(content)
    return {
        cut: r"cannot be decoded \(.*truncated",
        folder / "train" / "bee" / "1.PNG": "is empty",
        folder / "val" / "bee" / "v1.jpg": "is not an image, or its first bytes",
        folder
        / "train"
        / "ant"
        / "deep.png": r"has more than 8 bits per color \(mode I",
        png: "cannot be decoded",
    }


def test_all_damaged_images_are_named_at_once(folder, read, tmp_path):
    wrong = damage(folder)
    with pytest.raises(DataError, match="pets: 5 of 8 images cannot be used") as caught:
        read(size=4)
    for path, problem in wrong.items():
        assert re.search(f"{re.escape(str(path))} {problem}", str(caught.value))
    assert "Fetch them again, or remove them" in str(caught.value)
    for path in wrong:
        path.unlink()
    with pytest.raises(DataError, match=r"train.bee: looked for .jpg, .jpeg, .png"):
        read(size=4)
    write_image(folder / "train" / "bee" / "1.PNG", 9, 9)
    with pytest.raises(DataError, match=r"val.bee: looked for .*found none"):
        read(size=4)
    (folder / "val" / "bee").rmdir()
    assert len(read(size=4).train) == 3


def test_of_many_damaged_images_ten_are_named(folder, read):
    for number in range(25):
        (folder / "train" / "cat" / f"z{number:02}.jpg").write_bytes(b"x")
    with pytest.raises(DataError, match=r"25 of 32 images .*; and 15 more\.") as caught:
        read(size=4)
    named = re.findall(r"z(\d\d)", str(caught.value))
    assert named == [f"{number:02}" for number in range(10)]


def test_one_more_class_among_the_test_images(folder, read):
    write_image(folder / "val" / "dog" / "a.jpg", 9, 9)
    with pytest.raises(DataError, match=r"val.dog: .*train has no class of that name"):
        read(size=4)
    write_image(folder / "val" / "emu" / "a.jpg", 9, 9)
    with pytest.raises(DataError, match=r"of 2 such\)"):
        read(size=4)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, r"train: no such folder; looked for one folder of images per class"),
        ({"train/a.jpg"}, r"train: looked for one folder of images per class, and"),
        ({"train/a/a.jpg"}, r"val: no such folder"),
        ({"train/a/a.jpg", "val/b.jpg"}, r"val: looked for one folder"),
        ({"train/a/a.gif", "val/a/b.jpg"}, r"train.a: looked for .*found none; put"),
    ],
)
def test_folders_without_what_was_looked_for(tmp_path, files, message):
    for name in files or ():
        write_image(tmp_path / "data" / name, 9, 9)
    with pytest.raises(DataError, match=message):
        read_image_folder(tmp_path / "data", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("size", v) for v in (0, -1, 2.5, "9", None, True, 10**9)],
        *[("workers", v) for v in (0, 1.5, "2", True)],
    ],
)
def test_arguments(read, argument, value):
    with pytest.raises(ValueError, match=rf"^{argument}={value!r}: pass"):
        read(**{argument: value})


@pytest.mark.parametrize("cache", ["", 1, True])
def test_what_is_no_place_for_a_copy(folder, cache):
    with pytest.raises(ValueError, match=f"cache={cache!r}: pass a "):
        read_image_folder(folder, size=4, cache=cache)


def test_the_user_s_cache_is_the_default(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path / "own"))
    read_image_folder(folder, size=4)
    (copy,) = (tmp_path / "own" / "read").glob("*.lock")
    assert copy.name.startswith("pets-")


def test_numpys_numbers_are_numbers(read):
    assert read(size=np.int64(4), workers=np.int32(2)).train.x.shape == (5, 4, 4, 3)
    assert len(TRAIN) == 5
