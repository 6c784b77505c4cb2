"""Published weights: every layout against NumPy, new heads, other images, errors."""

import functools
import json
import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import numpy_models
import published_layouts as layouts
import pytest
from flax import nnx
from PIL import Image
from quick import quick
from safetensors.numpy import save_file

import hetjax as hj
from hetjax import recipes
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.models import from_pretrained
from hetjax.sparse import path_name

# Logits in float32 may be this far from float64's, relative to the largest one: 170
# roundings, of 6e-8 each, in a dozen of layers.
CLOSE = 1e-5

# --- small files of every layout ----------------------------------------------------

B, C = 3, 5
IMAGE = (40, 48, 3)  # of ResNets, which take any
SQUARE = (32, 32, 3)  # of ViTs
RESNET = {"blocks": (1, 2, 1, 1), "width": 8, "c": C}
VIT = {"depth": 2, "width": 192, "hidden": 192, "patch": 8, "image": 32, "c": C}
BERT = {"depth": 2, "width": 128, "hidden": 192, "vocabulary": 50, "positions": 12}
BERT |= {"c": C}


class Case(NamedTuple):
    """A layout: its tensors' shapes, NumPy's logits, inputs, `from_pretrained`'s."""

    shapes: layouts.Shapes
    logits: Callable[[Any, np.ndarray], np.ndarray]  # of tensors and inputs
    x: np.ndarray
    options: dict[str, Any]


def images(*shape):
    return np.random.default_rng(1).normal(size=(B, *shape)).astype(np.float32)


def tokens(length, vocabulary):
    """The first sequence is whole, the others end with 1, 2, ... places of padding."""
    found = np.random.default_rng(1).integers(1, vocabulary, (B, length))
    for i in range(B):
        found[i, length - i :] = 0
    return found.astype(np.int32)


def as_torch(x):
    """[B, H, W, C] to [B, C, H, W] in float64."""
    return np.moveaxis(x, -1, 1).astype(np.float64)


def resnet_case(layout, sizes=None, x=None):
    x = images(*IMAGE) if x is None else x
    return Case(
        layouts.resnet(layout, **(RESNET if sizes is None else sizes)),
        lambda t, x: numpy_models.resnet(t, as_torch(x), layout),
        x,
        {"image": x.shape[1:]},
    )


def vit_case(layout, sizes=None, x=None, heads=3):
    epsilon = 1e-12 if layout.startswith("hugging") else 1e-6
    of = functools.partial(
        numpy_models.vit, layout=layout, heads=heads, epsilon=epsilon
    )
    return Case(
        layouts.vit(layout, **(VIT if sizes is None else sizes)),
        lambda t, x: of(t, as_torch(x)),
        images(*SQUARE) if x is None else x,
        {},
    )


def bert_case(prefix, masked=False, sizes=None, x=None, heads=2):
    sizes = BERT if sizes is None else sizes
    return Case(
        layouts.distilbert(prefix, masked=masked, **sizes),
        functools.partial(numpy_models.distilbert, prefix=prefix, heads=heads),
        tokens(9, 50) if x is None else x,
        {},
    )


CASES = {
    "resnet, torchvision": resnet_case("torchvision"),
    "resnet, hugging face": resnet_case("hugging face"),
    "resnet, hugging face, encoder": resnet_case("hugging face, encoder"),
    **{f"vit, {layout}": vit_case(layout) for layout in layouts.VIT_NAMES},
    # of the largest models, heads are not 64 wide
    "vit, torchvision, huge": vit_case(
        "torchvision", VIT | {"depth": 1, "width": 1280}, heads=16
    ),
    "distilbert": bert_case("distilbert."),
    "distilbert, encoder": bert_case(""),
    "distilbert, masked": bert_case("distilbert.", masked=True),
}
ONE_EACH = ("resnet, torchvision", "vit, hugging face", "distilbert")
IGNORED = ("num_batches_tracked", "vocab_")


@functools.cache
def filled(name):
    return layouts.filled(CASES[name].shapes)


def dataset(x, classes=C):
    y = np.arange(len(x), dtype=np.int32) % classes
    return Dataset(Split(x, y), Split(x, y), classes)


def written(folder, tensors, name="model.safetensors"):
    """A file with these tensors."""
    tensors = {k: np.ascontiguousarray(v) for k, v in tensors.items()}
    save_file(tensors, folder / name)
    return folder / name


def built(build, x, classes=C, seed=0):
    """The module in evaluation mode, for inputs like x."""
    features = math.prod(x.shape[1:])
    module = build(features, classes, rngs=nnx.Rngs(seed))
    module.eval()
    return module


def called(module, x):
    """The module's outputs, compiled."""
    return jax.jit(lambda x: module(x))(x)


def check_close(found, expected, close=CLOSE):
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    assert found.dtype == np.float32
    worst = abs(np.asarray(found, np.float64) - expected).max()
    assert worst <= close * abs(expected).max()


@pytest.mark.parametrize("name", quick(CASES, "vit, timm", "distilbert"))
def test_logits_equal_those_of_numpy(name, tmp_path):
    """Through a task, which initializes, measures and restores the model."""
    case, tensors = CASES[name], filled(name)
    expected = case.logits(tensors, case.x)
    data = dataset(case.x)
    path = written(tmp_path, tensors)
    task = hj.classification(from_pretrained(path, **case.options), data)
    params, state = jax.jit(task.init)(jax.random.key(0))
    check_close(called(task.restore(params, state), case.x), expected)

    batch = make_batch(data.test, np.arange(B), make_buckets(data.test, B))
    metrics = jax.jit(task.metrics)(params, state, batch)
    y = np.asarray(data.test.y)
    losses = np.log(np.exp(expected).sum(-1)) - expected[np.arange(B), y]
    np.testing.assert_allclose(metrics["loss"], losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(metrics["accuracy"], expected.argmax(-1) == y)


@pytest.mark.full  # as many evaluations in NumPy as there are tensors
@pytest.mark.parametrize("name", [n for n in CASES if "huge" not in n])
def test_every_tensor_matters_to_these_logits(name):
    """But the bias of keys: it adds the same to all scores of a query."""
    case, tensors = CASES[name], filled(name)
    x = case.x[:1]
    expected = case.logits(tensors, x)
    for tensor, value in tensors.items():
        if any(part in tensor for part in IGNORED):
            continue
        keys = tensor.endswith(("k_lin.bias", "attention.key.bias"))
        other = np.random.default_rng(2).permutation(value.ravel()).reshape(value.shape)
        changed = case.logits(tensors | {tensor: other}, x)
        worst = abs(changed - expected).max() / abs(expected).max()
        assert worst < 1e-12 if keys else worst > 100 * CLOSE, tensor


@pytest.mark.full  # a model for each
@pytest.mark.parametrize(
    ("name", "biases", "blocks"),
    [
        (
            "distilbert",
            "distilbert.transformer.layer.1.attention.{}_lin.bias",
            "layers",
        ),
        (
            "vit, hugging face",
            "vit.encoder.layer.1.attention.attention.{}.bias",
            "blocks",
        ),
    ],
)
def test_the_bias_of_keys_is_loaded(name, biases, blocks, tmp_path):
    """As the middle third of the biases of q, k and v."""
    tensors = filled(name)
    module = built(from_pretrained(written(tmp_path, tensors)), CASES[name].x)
    parts = "qkv" if blocks == "layers" else ("query", "key", "value")
    expected = np.concatenate([tensors[biases.format(part)] for part in parts])
    found = getattr(module, blocks)[1].attention.qkv.bias[...]
    np.testing.assert_array_equal(found, expected)


# --- the full sizes -----------------------------------------------------------------

# (shapes, number of tensors, number of parameters): the published state dictionaries
FULL = {
    "resnet50, torchvision": (layouts.resnet("torchvision"), 320, 25_557_032),
    "resnet50, hugging face": (layouts.resnet("hugging face"), 320, 25_557_032),
    "resnet101": (layouts.resnet("torchvision", (3, 4, 23, 3)), 626, 44_549_160),
    "vit_tiny": (layouts.vit("timm", 12, 192, 768), 152, 5_717_416),
    "vit_small": (layouts.vit("timm", 12, 384, 1536), 152, 22_050_664),
    "vit_base, timm": (layouts.vit("timm"), 152, 86_567_656),
    "vit_base, torchvision": (layouts.vit("torchvision"), 152, 86_567_656),
    "vit_base, hugging face": (layouts.vit("hugging face"), 200, 86_567_656),
    "distilbert": (layouts.distilbert(), 104, 66_955_010),
    "distilbert, encoder": (layouts.distilbert(c=0), 100, 66_362_880),
}
# names that public code of these layouts mentions, and their shapes
NAMED = {
    "resnet50, torchvision": {
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer3.5.bn3.running_mean": (1024,),
        "layer4.0.conv2.weight": (512, 512, 3, 3),
        "fc.weight": (1000, 2048),
    },
    "resnet50, hugging face": {
        "resnet.embedder.embedder.convolution.weight": (64, 3, 7, 7),
        "resnet.encoder.stages.3.layers.0.shortcut.normalization.weight": (2048,),
        "resnet.encoder.stages.2.layers.5.layer.1.convolution.weight": (
            (256, 256, 3, 3)
        ),
        "classifier.1.bias": (1000,),
    },
    "vit_base, timm": {
        "pos_embed": (1, 197, 768),
        "patch_embed.proj.weight": (768, 3, 16, 16),
        "blocks.11.attn.qkv.weight": (2304, 768),
        "blocks.0.mlp.fc1.bias": (3072,),
    },
    "vit_base, torchvision": {
        "class_token": (1, 1, 768),
        "encoder.layers.encoder_layer_11.self_attention.in_proj_weight": (2304, 768),
        "encoder.layers.encoder_layer_0.mlp.3.weight": (768, 3072),
        "heads.head.weight": (1000, 768),
    },
    "vit_base, hugging face": {
        "vit.embeddings.patch_embeddings.projection.bias": (768,),
        "vit.encoder.layer.0.attention.output.dense.weight": (768, 768),
        "vit.encoder.layer.11.layernorm_after.bias": (768,),
        "vit.layernorm.weight": (768,),
    },
    "distilbert": {
        "distilbert.embeddings.word_embeddings.weight": (30_522, 768),
        "distilbert.transformer.layer.5.attention.out_lin.weight": (768, 768),
        "distilbert.transformer.layer.0.ffn.lin1.weight": (3072, 768),
        "pre_classifier.bias": (768,),
    },
}


@pytest.mark.parametrize("name", FULL)
def test_the_full_layouts_are_the_published_ones(name):
    shapes, tensors, parameters = FULL[name]
    assert len(shapes) == tensors
    parts = ("running_mean", "running_var", "num_batches_tracked")
    sizes = [math.prod(s) for n, s in shapes.items() if not n.endswith(parts)]
    assert sum(sizes) == parameters
    for tensor, shape in NAMED.get(name, {}).items():
        assert shapes[tensor] == shape, tensor


LARGE = {
    "resnet50": lambda: resnet_case("torchvision", {}, images(64, 64, 3)),
    "vit": lambda: vit_case("timm", {}, images(224, 224, 3)[:1], heads=12),
    "distilbert": lambda: bert_case(
        "distilbert.", sizes={}, x=tokens(16, 30_522), heads=12
    ),
}


@pytest.mark.full  # up to 350 MB of weights each
@pytest.mark.parametrize("name", LARGE)
def test_logits_of_the_full_sizes_equal_those_of_numpy(name, tmp_path):
    case = LARGE[name]()
    tensors = layouts.filled(case.shapes)
    expected = case.logits(tensors, case.x)
    build = from_pretrained(written(tmp_path, tensors), **case.options)
    found = built(build, case.x, expected.shape[-1])(case.x)
    # up to 50 layers, each of which adds some roundings to those before
    check_close(found, expected, 5 * CLOSE)


# --- heads --------------------------------------------------------------------------


def parameters(module):
    """The module's parameters and statistics, by path."""
    pure = nnx.to_pure_dict(nnx.state(module, (nnx.Param, nnx.BatchStat)))
    return {path_name(k): np.asarray(v) for k, v in jax.tree.leaves_with_path(pure)}


def differing(build, x, classes):
    """The paths whose arrays are others with another seed."""
    one, other = (parameters(built(build, x, classes, seed)) for seed in (0, 1))
    assert all(np.isfinite(value).all() for value in one.values())
    return {path for path in one if (one[path] != other[path]).any()}


@pytest.mark.full  # six models each
@pytest.mark.parametrize("name", ONE_EACH)
def test_another_number_of_classes_has_a_new_head(name, tmp_path):
    case = CASES[name]
    build = from_pretrained(written(tmp_path, filled(name)), **case.options)
    assert differing(build, case.x, C) == set()
    assert differing(build, case.x, 7) == {"head/kernel"}  # biases start at 0
    new, old = (parameters(built(build, case.x, classes)) for classes in (7, C))
    assert new["head/kernel"].shape[-1] == 7
    for path in old:
        if not path.startswith("head/"):
            np.testing.assert_array_equal(new[path], old[path])


@pytest.mark.full  # four models each
@pytest.mark.parametrize(
    ("name", "head", "new"),
    [
        ("resnet, torchvision", "fc.", {"head/kernel"}),
        ("vit, timm", "head.", {"head/kernel"}),
        ("distilbert, masked", "classifier.", {"head/kernel", "before_head/kernel"}),
    ],
)
def test_a_file_without_a_head(name, head, new, tmp_path):
    case = CASES[name]
    tensors = {k: v for k, v in filled(name).items() if not k.startswith(head)}
    if name.startswith("distilbert"):  # as the base model is published
        tensors = {k: v for k, v in tensors.items() if "pre_classifier" not in k}
    build = from_pretrained(written(tmp_path, tensors), **case.options)
    for classes in (C, 7):
        assert differing(build, case.x, classes) == new


# --- other images, settings, dtypes -------------------------------------------------


def resized(positions, grid):
    """Positions [1, 1 + h w, D] for another grid, by Pillow, whose cubic is Keys'."""
    side = math.isqrt(positions.shape[1] - 1)
    pictures = positions[0, 1:].reshape(side, side, -1)
    size = (grid[1], grid[0])  # Pillow's are (width, height)
    channels = [
        np.asarray(
            Image.fromarray(pictures[..., i]).resize(size, Image.Resampling.BICUBIC)
        )
        for i in range(pictures.shape[-1])
    ]
    flat = np.stack(channels, -1).reshape(1, math.prod(grid), -1)
    return np.concatenate([positions[:, :1], flat], 1)


@pytest.mark.full  # two models each
@pytest.mark.parametrize("grid", [(6, 5), (4, 7), (3, 3)])
def test_positions_are_interpolated_for_other_images(grid, tmp_path):
    name = "vit, timm"
    x = images(8 * grid[0], 8 * grid[1], 3)
    tensors = filled(name)
    other = tensors | {"pos_embed": resized(tensors["pos_embed"], grid)}
    build = from_pretrained(written(tmp_path, tensors), image=x.shape[1:])
    module = built(build, x)
    check_close(called(module, x), CASES[name].logits(other, x))
    found = parameters(module)["positions"]
    # Pillow rounds its sums to float32 after each of the two directions
    np.testing.assert_allclose(found, other["pos_embed"], rtol=1e-5, atol=1e-6)
    whole = built(from_pretrained(tmp_path), CASES[name].x)  # of images as they come
    check_close(called(whole, x), CASES[name].logits(other, x))


@pytest.mark.full  # a model
def test_config_json_says_the_heads_and_the_epsilon_of_a_vit(tmp_path):
    name = "vit, hugging face"
    config = {"num_attention_heads": 4, "layer_norm_eps": 0.01, "hidden_act": "gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors, x = filled(name), CASES[name].x
    found = called(built(from_pretrained(written(tmp_path, tensors)), x), x)
    expected = numpy_models.vit(
        tensors, as_torch(x), "hugging face", heads=4, epsilon=0.01
    )
    check_close(found, expected)
    for heads, epsilon in ((2, 0.01), (4, 1e-12)):  # both matter
        other = numpy_models.vit(
            tensors, as_torch(x), "hugging face", heads=heads, epsilon=epsilon
        )
        assert abs(other - expected).max() > 100 * CLOSE * abs(expected).max()


@pytest.mark.full  # a model
def test_config_json_says_heads_padding_and_dropout_of_a_distilbert(tmp_path):
    config = {"n_heads": 4, "pad_token_id": 7, "activation": "gelu"}
    config |= {"dropout": 0.3, "attention_dropout": 0.2, "seq_classif_dropout": 0.4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors, x = filled("distilbert"), np.where(CASES["distilbert"].x, 1, 7)
    x = np.where(x == 7, x, CASES["distilbert"].x).astype(np.int32)
    module = built(from_pretrained(written(tmp_path, tensors)), x)
    expected = numpy_models.distilbert(tensors, x, "distilbert.", heads=4, pad=7)
    check_close(called(module, x), expected)
    assert (module.drop.rate, module.layers[0].drop.rate) == (0.3, 0.3)
    assert (module.layers[1].attention.drop.rate, module.head_drop.rate) == (0.2, 0.4)


def test_dropout_that_is_given_counts(tmp_path):
    for name, rates in (("distilbert", (0.3, 0.2, 0.4)), ("vit, timm", 0.3)):
        path = written(tmp_path, filled(name))
        module = built(from_pretrained(path, dropout=rates), CASES[name].x)
        assert module.drop.rate == 0.3
        if rates == 0.3:
            assert module.blocks[0].drop.rate == 0.3


@pytest.mark.full  # compiled three times
@pytest.mark.parametrize("name", ONE_EACH)
def test_dtype_and_remat(name, tmp_path):
    case, tensors = CASES[name], filled(name)
    path = written(tmp_path, tensors)
    build = from_pretrained(path, **case.options, dtype=jnp.bfloat16, remat=True)
    module = built(build, case.x)
    assert {value.dtype for value in parameters(module).values()} == {
        np.dtype(np.float32)
    }
    module.train()
    graph, state = nnx.split(module)
    text = str(jax.make_jaxpr(lambda s, x: nnx.merge(graph, s)(x))(state, case.x))
    assert "bf16" in text
    assert "checkpoint" in text or "remat" in text
    module.eval()
    # in evaluation, it can be used in any program
    found = module(case.x)
    np.testing.assert_allclose(called(module, case.x), found, rtol=0.05, atol=0.05)
    # a rounding to bfloat16 is 2^-9 of a number; a dozen of layers add up
    check_close(found, case.logits(tensors, case.x), 0.05)


@pytest.mark.full  # a model for each
@pytest.mark.parametrize("name", ONE_EACH)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_files_of_other_dtypes(name, dtype, tmp_path):
    case, tensors = CASES[name], filled(name)
    tensors = {k: v.astype(dtype) if v.ndim else v for k, v in tensors.items()}
    module = built(from_pretrained(written(tmp_path, tensors), **case.options), case.x)
    assert {value.dtype for value in parameters(module).values()} == {
        np.dtype(np.float32)
    }
    check_close(called(module, case.x), case.logits(tensors, case.x))


@pytest.mark.full  # two models
def test_a_folder_with_one_file(tmp_path):
    case = CASES["vit, timm"]
    path = written(tmp_path, filled("vit, timm"), "any name.safetensors")
    (tmp_path / "README.md").write_text("other files do not count")
    both = (built(from_pretrained(p), case.x) for p in (path, tmp_path))
    one, other = (called(module, case.x) for module in both)
    np.testing.assert_array_equal(one, other)


# --- recipes ------------------------------------------------------------------------


@pytest.mark.full  # two models for each
@pytest.mark.parametrize("name", ONE_EACH)
def test_builders_are_made_again_by_their_recipes(name, tmp_path):
    case = CASES[name]
    path = written(tmp_path, filled(name))
    build = from_pretrained(path, **case.options, dtype=jnp.bfloat16, remat=True)
    recipe = json.loads(json.dumps(recipes.recipe_of(build)))
    again = recipes.make(recipe, {})
    assert again is not build
    assert recipes.recipe_of(again) == recipe
    one, other = (built(b, case.x) for b in (build, again))
    jax.tree.map(np.testing.assert_array_equal, parameters(one), parameters(other))
    found = [called(module, case.x) for module in (one, other)]
    np.testing.assert_array_equal(*found)  # in bfloat16, too


# --- errors -------------------------------------------------------------------------


def without(tensors, *names):
    return {k: v for k, v in tensors.items() if k not in names}


def basic_blocks(tensors):
    return {k: v for k, v in tensors.items() if ".conv3" not in k and ".bn3" not in k}


def no_third_layers(tensors):
    return {k: v for k, v in tensors.items() if ".layer.2." not in k}


def wider(tensors, name):
    """With a tensor of one more row."""
    return tensors | {name: np.concatenate([tensors[name], tensors[name][:1]])}


Q = "vit.encoder.layer.1.attention.attention.query.weight"
CHANGED = [  # (layout, change of its tensors, options, words of the error)
    (
        "resnet, torchvision",
        lambda t: without(t, "layer2.1.bn2.running_var"),
        {},
        "stages/1/1/norm2/var are missing",
    ),
    (
        "resnet, torchvision",
        lambda t: without(t, "bn1.running_mean"),
        {},
        r"norm/mean are missing \(the file lacks bn1\.running_mean\)",
    ),
    (
        "vit, timm",
        lambda t: t | {"norm.weight": np.full_like(t["norm.weight"], np.nan)},
        {},
        r"norm/scale has numbers not finite \(in the file: norm\.weight\)",
    ),
    (
        "vit, timm",
        lambda t: t | {"norm.weight": t["norm.weight"].astype(np.int32)},
        {},
        r"norm/scale has numbers of int32 \(in the file: norm\.weight\)",
    ),
    (
        "resnet, torchvision",
        lambda t: {f"module.{name}": array for name, array in t.items()},
        {},
        r'begin with "module\."',
    ),
    ("resnet, torchvision", lambda t: without(t, "conv1.weight"), {}, "conv/kernel"),
    ("vit, timm", lambda t: without(t, "pos_embed"), {}, "positions.* missing"),
    ("vit, timm", lambda t: without(t, "cls_token"), {}, "class token"),
    ("vit, timm", lambda t: without(t, "blocks.0.mlp.fc1.weight"), {}, "mlp/first"),
    ("vit, timm", lambda t: without(t, "head.bias"), {}, "head/bias are missing"),
    (
        "vit, hugging face",
        lambda t: without(t, Q),
        {},
        r"of the 3 tensors for blocks/1/attention/qkv/kernel only .*"
        r"attention\.key\.weight.*attention\.value\.weight",
    ),
    (
        "vit, hugging face",
        lambda t: wider(t, Q),
        {},
        r"shapes of .*attention\.query\.weight.* differ",
    ),
    (
        "distilbert",
        lambda t: without(t, "distilbert.embeddings.word_embeddings.weight"),
        {},
        "words/embedding.* missing",
    ),
    (
        "distilbert",
        lambda t: without(t, "pre_classifier.weight", "pre_classifier.bias"),
        {},
        "before_head/bias, before_head/kernel are missing",
    ),
    (
        "resnet, torchvision",
        lambda t: t | {"layer1.0.se.fc1.weight": np.ones((8, 8), np.float32)},
        {},
        r"has no tensor 'layer1\.0\.se\.fc1\.weight'",
    ),
    (
        "resnet, torchvision",
        lambda t: t | {"layer4.0.conv4.weight": np.ones((8, 8, 1, 1), np.float32)},
        {},
        r"stages/3/0/conv4/kernel have no place.*: layer4\.0\.conv4\.weight\)",
    ),
    (
        "distilbert",
        lambda t: t | {"distilbert.token_type.weight": np.ones((2, 8), np.float32)},
        {},
        r"has no tensor 'distilbert\.token_type\.weight'",
    ),
    (
        "resnet, torchvision",
        lambda t: wider(t, "layer2.0.conv1.weight"),
        {},
        r"stages/1/0/conv1/kernel is \[1, 1, 32, 17\].*model's is \[1, 1, 32, 16\] "
        r"\(in the file: layer2\.0\.conv1\.weight\)",
    ),
    ("vit, timm", lambda t: wider(t, "head.bias"), {}, r"head/bias is \[6\].*\[5\]"),
    (
        "vit, timm",
        lambda t: t | {"pos_embed": t["pos_embed"][0]},
        {},
        r"positions is \[17, 192\]: it needs 3 axes",
    ),
    (
        "vit, timm",
        lambda t: t | {"patch_embed.proj.weight": np.ones((8, 192), np.float32)},
        {},
        r"patches/kernel is \[192, 8\]: it needs 4 axes",
    ),
    (
        "vit, timm",
        lambda t: t | {"pos_embed": t["pos_embed"][:, :16]},
        {},
        "positions are not those of a square image",
    ),
    ("resnet, torchvision", basic_blocks, {}, "not bottlenecks.*ResNet-50"),
    ("resnet, hugging face", no_third_layers, {}, "not bottlenecks.*ResNet-50"),
    (
        "resnet, torchvision",
        dict,
        {"dropout": 0.1},
        "dropout is not an argument.*ResNet",
    ),
    ("distilbert", dict, {"image": (8, 8, 3)}, "image is not an argument.*DistilBERT"),
    ("distilbert", dict, {"dropout": 0.1}, r"dropout=0\.1.*a sequence of 3"),
    ("vit, timm", dict, {"image": (36, 32, 3)}, r"image=.*multiples of the patch, 8"),
    ("vit, timm", dict, {"image": (32, 32, 1)}, r"patches/kernel is .*model's is"),
    ("vit, timm", dict, {"dtype": jnp.int32}, "dtype=.*floating-point"),
    (
        "vit, timm",
        lambda t: {"model.layers.0.weight": np.ones(3, np.float32)},
        {},
        r"model\.layers\.0\.weight.*known layouts: ResNet of torchvision.*DistilBERT",
    ),
]


@pytest.mark.parametrize(("name", "change", "options", "words"), CHANGED)
def test_tensors_that_do_not_fit_are_errors(name, change, options, words, tmp_path):
    path = written(tmp_path, change(filled(name)))
    with pytest.raises(ValueError, match=f"(?s)model.safetensors: .*{words}"):
        from_pretrained(path, **options)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("vit, hugging face", {"num_attention_heads": 5}, "heads=5.*192"),
        ("vit, hugging face", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("resnet, hugging face", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("resnet, hugging face", {"downsample_in_bottleneck": True}, "strides"),
        ("resnet, hugging face", {"downsample_in_first_stage": True}, "strides"),
        ("distilbert", {"activation": "relu"}, "activation='relu'"),
        ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps=1e-05"),
        ("distilbert", {"n_heads": 3}, "heads=3.*128"),
        ("distilbert", ["no settings"], "config.json: it holds a list"),
    ],
)
def test_configs_of_other_models_are_errors(name, config, words, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = written(tmp_path, filled(name))
    with pytest.raises(ValueError, match=words):
        from_pretrained(path)


@pytest.mark.full  # a model
def test_a_width_that_nobody_publishes_needs_the_number_of_heads(tmp_path):
    sizes = VIT | {"width": 160}
    tensors = layouts.filled(layouts.vit("timm", **sizes))
    path = written(tmp_path, tensors)
    with pytest.raises(ValueError, match="width 160 is of no published size.*heads"):
        from_pretrained(path)
    (tmp_path / "config.json").write_text('{"num_attention_heads": 5}')
    x = CASES["vit, timm"].x
    expected = numpy_models.vit(
        tensors, as_torch(x), layout="timm", heads=5, epsilon=1e-6
    )
    check_close(called(built(from_pretrained(path), x), x), expected)


def test_a_damaged_config_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="config.json: this is not valid JSON"):
        from_pretrained(written(tmp_path, filled("distilbert")))


def test_paths_that_hold_no_file_are_errors(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.safetensors'?: no such file"):
        from_pretrained(tmp_path / "nowhere.safetensors")
    with pytest.raises(ValueError, match=r"one \.safetensors file.*found: none"):
        from_pretrained(tmp_path)
    tensors = {"a": np.ones(3, np.float32)}
    for name in ("b.safetensors", "a.safetensors"):
        written(tmp_path, tensors, name)
    with pytest.raises(ValueError, match=r"found: a\.safetensors, b\.safetensors"):
        from_pretrained(str(tmp_path))


def test_damaged_files_are_errors(tmp_path):
    path = written(tmp_path, filled("vit, timm"))
    whole = path.read_bytes()
    text = b"version https://git-lfs.github.com/spec/v1\n"
    for content in (whole[:-100], whole[: len(whole) // 2], whole[:50], text, b""):
        path.write_bytes(content)
        with pytest.raises(
            ValueError, match=r"model\.safetensors: not a complete safetensors file"
        ):
            from_pretrained(path)


def test_a_missing_package_is_an_error_that_names_the_extra(tmp_path, monkeypatch):
    path = written(tmp_path, filled("vit, timm"))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r'pip install "hetjax\[pretrained\]"'):
        from_pretrained(path)


def test_data_of_another_size_is_an_error(tmp_path):
    build = from_pretrained(written(tmp_path, filled("vit, timm")))
    with pytest.raises(ValueError, match="768 features.*3072.*image="):
        build(16 * 16 * 3, C, rngs=nnx.Rngs(0))
    build = from_pretrained(written(tmp_path, filled("distilbert")))
    with pytest.raises(ValueError, match="sequences of 13 tokens.*12 positions"):
        build(13, C, rngs=nnx.Rngs(0))
