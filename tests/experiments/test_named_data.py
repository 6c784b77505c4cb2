"""What --data names: readers, functions of one's own, and the task that fits."""

import sys
from functools import partial

import jax
import numpy as np
import pytest
from flax import nnx
from quick import quick

import hetjax as hj
from experiments.common import like_data, named_data, pipelines

LIBSVM = "-1 1:0.5 3:1\n+1 2:0.5\n-1 1:1\n+1 3:0.25\n"
MINE = """
import numpy as np
import hetjax as hj

number = 3

def load():
    x = np.ones((8, 3), np.float32)
    return hj.data.from_arrays((x, np.arange(8) % 2), (x, np.arange(8) % 2), name="my")

def with_argument(rows):
    return load()

def arrays():
    return np.ones((8, 3))
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder, with modules that nobody else has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine_of_data.py").write_text(MINE)
    (tmp_path / "imports_nothing.py").write_text("import not_there_at_all")
    yield tmp_path
    sys.modules.pop("mine_of_data", None)


def test_a_function_of_a_module_in_the_current_folder(here):
    assert named_data.load("mine_of_data:load").name == "my"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:load", "there is no module no_such_module, neither installed"),
        ("mine_of_data.part:load", "there is no module mine_of_data.part, neither"),
        ("mine_of_data:lood", "mine_of_data has no lood$"),
        ("mine_of_data:number", "mine_of_data has no function, but a value number$"),
        ("mine_of_data:with_argument", "called without arguments .*'rows'"),
        ("mine_of_data:arrays", "returns a ndarray, not a hetjax.data.Dataset"),
        ("no_such_file", "neither digits, .* nor module:function"),
        ("alone.libsvm", "needs its test split beside it, as alone.libsvm.t or "),
    ],
)
def test_what_is_wrong_with_a_name(here, name, message):
    (here / "alone.libsvm").write_text(LIBSVM)
    with pytest.raises(ValueError, match=rf"^--data={name}: .*{message}") as caught:
        named_data.load(name)
    assert "\n" not in str(caught.value)


def test_errors_inside_a_module_are_its_own(here):
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        named_data.load("imports_nothing:load")


@pytest.mark.parametrize("name", ["a9a", "folder"])
def test_libsvm_is_a_file_beside_its_test_split_or_a_folder(here, name):
    (here / "folder").mkdir()
    for file in ("a9a", "a9a.t", "folder/train.libsvm", "folder/test.libsvm"):
        (here / file).write_text(LIBSVM)
    data = named_data.load(name)
    assert data.train.x.shape == (4, 3)
    assert (data.num_classes, data.name) == (2, name)
    assert named_data.load(name, first_index=0).train.x.shape == (4, 4)


def test_a_folder_in_hetjax_data(here, monkeypatch):
    monkeypatch.setenv("HETJAX_DATA", str(here / "all"))
    (here / "all" / "words").mkdir(parents=True)
    for split in ("train", "test"):
        (here / "all" / "words" / f"{split}.txt").write_text("0,2 1:1\n1 0:0.5\n")
    assert named_data.load("words").train.y.shape == (2, 3)
    assert named_data.load("words", first_index=0).train.x.shape == (2, 2)


@pytest.mark.parametrize(
    ("file", "reader"),
    [
        ("train-images-idx3-ubyte", "read_idx_folder"),
        ("train-images.idx3-ubyte.gz", "read_idx_folder"),
        ("data_batch_1.bin", "read_cifar"),
        ("cifar-100-binary/train.bin", "read_cifar"),
    ],
)
def test_a_folder_of_images(here, monkeypatch, file, reader):
    """The readers themselves have their own tests."""
    path = here / "images" / file
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(hj.data, reader, lambda folder: f"{reader} of {folder}")
    assert named_data.load("images") == f"{reader} of images"


@pytest.mark.parametrize(
    ("files", "reader"),
    [
        (["train/cat/a.jpg", "val/cat/b.jpg"], "read_image_folder"),
        (["train/n01/a.jpg", "val/images/b.jpg", "wnids.txt"], "tiny_imagenet"),
        (["train/a.jpg", "val/cat/b.jpg"], "read_folder"),
        (["train/cat/a.jpg", "train.txt"], "read_folder"),
    ],
)
def test_folders_of_classes(here, monkeypatch, files, reader):
    for file in files:
        (here / "all" / "pets" / file).parent.mkdir(parents=True, exist_ok=True)
        (here / "all" / "pets" / file).touch()
    for name in ("read_image_folder", "tiny_imagenet", "read_folder"):
        monkeypatch.setattr(hj.data, name, partial(_called, name))
    monkeypatch.setenv("HETJAX_DATA", str(here / "all"))
    assert named_data.load("pets") == (reader, here / "all" / "pets")


def _called(name, *args, folder=None):
    return name, *args, *([folder] if folder else [])


# The task follows the data.

X = np.ones((6, 3), np.float32)


def dataset(y, **kwargs):
    return hj.data.from_arrays((X, y), (X, y), **kwargs)


@pytest.mark.parametrize(
    ("y", "metric"),
    [
        (np.arange(6) % 2, "accuracy"),
        (np.eye(6, dtype=int), "p@1"),
        (np.linspace(0, 1, 6), "rmse"),
        (np.ones((6, 2)) / 2, "rmse"),
    ],
    ids=["classes", "sets of labels", "numbers", "several numbers"],
)
def test_the_task_that_fits_the_targets(y, metric):
    data = dataset(y)
    assert named_data.task("mlp", data, hidden=2).metric == metric


@pytest.mark.parametrize(
    ("data", "output", "message"),
    [
        (hj.data.from_tokens(np.arange(9), np.arange(9), length=2), "auto", "next_tok"),
        (dataset(np.linspace(0, 1, 6)), "slide", "--output=slide is for classes"),
        (
            hj.data.from_arrays(({"a": X}, np.arange(6)), ({"a": X}, np.arange(6))),
            "auto",
            "x of arrays are several arrays, which no model of the scripts takes",
        ),
    ],
    ids=["tokens", "output", "several inputs"],
)
def test_data_that_no_task_of_the_scripts_fits(data, output, message):
    with pytest.raises(ValueError, match=message):
        named_data.task("mlp", data, hidden=2, output=output)


def test_an_mlp_does_not_multiply_tokens():
    y = np.arange(6) % 3
    for dtype, message in ((np.uint16, "pass --model=distilbert"), (np.uint8, "")):
        x = np.ones((6, 4), dtype)
        data = hj.data.from_arrays((x, y), (x, y), num_classes=3)
        if not message:  # bytes become floats
            assert named_data.task("mlp", data, hidden=2).metric == "accuracy"
            continue
        with pytest.raises(ValueError, match=message):
            named_data.task("mlp", data, hidden=2)


# Data of the shapes of public sets, pipelines, and models for what they make.


@pytest.mark.parametrize("name", like_data.SHAPES)
def test_data_like_a_public_set_take_no_memory(name):
    data, shape = like_data.like(name), like_data.SHAPES[name]
    assert (len(data.train), len(data.test)) == (shape.train, shape.test)
    assert data.num_classes == shape.classes
    assert set(data.train.y) == set(range(shape.classes))
    rows = data.train.take(np.arange(5, 2, -1)).x[:2]
    assert (rows.shape, rows.dtype) == ((2, *shape.x), shape.dtype)
    assert (rows == 1).all()


PIPED = {  # pipeline: (data, what the model sees)
    "cifar10": ("cifar10", (32, 32, 3)),
    "cifar100": ("cifar100", (32, 32, 3)),
    "crossbow_cifar": ("cifar10", (32, 32, 3)),
    "imagenet": ("imagenet", (224, 224, 3)),
    "flowers102": ("flowers102", (224, 224, 3)),
    "tiny_imagenet": ("tiny_imagenet", (224, 224, 3)),
}


@pytest.mark.parametrize("name", quick(PIPED, "cifar10"))
def test_models_are_built_for_what_a_pipeline_makes(name):
    data = like_data.like(PIPED[name][0])
    steps = pipelines.pipeline(name, data)
    x = data.train.x[:2].astype(np.float32)
    key = jax.random.key(0)

    def both(x):
        return steps.normalize(key, steps.augment(key, x)), steps.normalize(key, x)

    shapes = [out.shape for out in jax.eval_shape(both, x)]
    assert shapes == [(2, *PIPED[name][1])] * 2
    task = named_data.task(
        "resnet20", data, 0, inputs=named_data.Inputs(pipeline=name, dtype="bfloat16")
    )
    assert task.metric == "accuracy"


def test_pipelines_are_of_one_scale():
    for name in PIPED:
        other = "flowers102" if name in pipelines.FLOATS else "cifar10"
        with pytest.raises(ValueError, match=f"--pipeline={name} is for images"):
            pipelines.pipeline(name, like_data.like(other))
    assert set(PIPED) == set(pipelines.PIPELINES) - {"none"}


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("mlp", {"dtype": "bfloat16"}, "--dtype: the model mlp has no such setting"),
        ("nin", {"remat": True}, "--remat: the model nin has no such setting"),
        ("resnet18", {}, "--model=resnet18: choose one of mlp, linear, magma_mlp"),
    ],
)
def test_settings_that_a_model_lacks(name, inputs, message):
    data = like_data.like("cifar10")
    with pytest.raises(ValueError, match=message):
        named_data.model(name, data, 8, named_data.Inputs(**inputs))


vit = partial(hj.models.vit, size=(1, 8, 1, 8), patch=8)


def test_published_weights_are_of_the_model_that_is_named(monkeypatch):
    """Without a name, any model that is in the file."""
    monkeypatch.setitem(named_data.MODELS, "small", vit)
    monkeypatch.setattr(
        hj.models, "from_pretrained", lambda path, **options: vit(**options)
    )
    data = like_data.like("cifar10")
    inputs = named_data.Inputs(pretrained="file", dtype="bfloat16")
    for name in ("small", "mlp"):
        make = named_data.model(name, data, 8, inputs)
        # without its weights, whose drawing takes most of the time
        module = nnx.eval_shape(lambda make=make: make(3072, 10, rngs=nnx.Rngs(0)))
        assert module.image == (32, 32, 3)
    with pytest.raises(ValueError, match="the model in it is not --model=vit_ti"):
        named_data.model("vit_ti", data, 8, inputs)


def test_tokens_are_those_of_the_published_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(hj.data, "ag_news", lambda vocabulary=None: vocabulary)
    (tmp_path / "model.safetensors").touch()
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(ValueError, match="there is no .*vocab.txt, the model's"):
            named_data.load("ag_news", pretrained=str(path))
    (tmp_path / "vocab.txt").touch()
    for path in (tmp_path, tmp_path / "model.safetensors"):
        found = named_data.load("ag_news", pretrained=str(path))
        assert found == tmp_path / "vocab.txt"
