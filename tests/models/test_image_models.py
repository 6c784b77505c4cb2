"""The papers' image models: sizes, architectures, statistics, dropout, gradients."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from quick import quick, quick_if

import hetjax as hj
from hetjax import models
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.sparse import path_name
from hetjax.tasks.classification import cross_entropy
from hetjax.tasks.model import as_model

# --- sizes, by hand -----------------------------------------------------------------


def dense(a, b):
    return a * b + b


def conv(k, a, b):
    """The size of a k x k convolution without biases."""
    return k * k * a * b


def norm(*channels):
    """The size of scales and biases."""
    return 2 * sum(channels)


def lenet_size(c):
    first = conv(5, 1, 32) + 32 + conv(5, 32, 64) + 64
    return first + dense(4 * 4 * 64, 1024) + dense(1024, c)


def magma_cnn_size(c):
    """28 x 28 places after the convolution, 14 x 14 after the pool."""
    return conv(5, 3, 32) + dense(14 * 14 * 32, 128) + 128 * c


def convnet_size(c):
    convs = [(5, 3, 64), (3, 64, 128), (3, 128, 256), (2, 256, 128)]
    return sum(conv(*s) + s[2] for s in convs) + dense(128, c)


def nin_size(c):
    convs = [(5, 3, 192), (1, 192, 160), (1, 160, 96)]
    convs += [(5, 96, 192), (1, 192, 192), (1, 192, 192)]
    convs += [(3, 192, 192), (1, 192, 192), (1, 192, c)]
    return sum(conv(*s) + norm(s[2]) for s in convs)


VGG = (3, 64, 64, 128, 128, 256, 256, 256, *[512] * 6)


def vgg_size(c, biases):
    convs = sum(conv(3, a, b) for a, b in zip(VGG[:-1], VGG[1:], strict=True))
    others = (3 if biases else 2) * (sum(VGG[1:]) + 512)
    return convs + 512 * 512 + others + dense(512, c)


def resnet_size(c, n, projection):
    size = conv(3, 3, 16) + norm(16)
    for a, b in ((16, 16), (16, 32), (32, 64)):
        size += conv(3, a, b) + (2 * n - 1) * conv(3, b, b) + 2 * n * norm(b)
        if a != b and projection:
            size += conv(1, a, b) + norm(b)
    return size + dense(64, c)


def wide_size(c, n, k):
    size = conv(3, 3, 16)
    for a, b in ((16, 16 * k), (16 * k, 32 * k), (32 * k, 64 * k)):
        size += conv(3, a, b) + (2 * n - 1) * conv(3, b, b) + conv(1, a, b)
        size += norm(a) + (2 * n - 1) * norm(b)
    return size + norm(64 * k) + dense(64 * k, c)


def bottleneck_size(c, blocks):
    """Blocks of 1x1, 3x3 and 1x1 convolutions, each normalized."""
    size, a = conv(7, 3, 64) + norm(64), 64
    for stage, number in enumerate(blocks):
        m = 64 << stage
        size += conv(1, a, 4 * m) + norm(4 * m)  # the projection
        for _ in range(number):
            size += conv(1, a, m) + conv(3, m, m) + conv(1, m, 4 * m)
            size += norm(m, m, 4 * m)
            a = 4 * m
    return size + dense(a, c)


def vit_size(c, d, patch=16, side=224, depth=12):
    places = 1 + (side // patch) ** 2
    block = norm(d, d) + dense(d, 3 * d) + dense(d, d) + dense(d, 4 * d)
    block += dense(4 * d, d)
    embedding = dense(3 * patch**2, d) + d + places * d
    return embedding + depth * block + norm(d) + dense(d, c)


LARGE_IMAGE = (224, 224, 3)

# (builder, image, classes, count by hand, count in a publication or None [millions])
SIZES = {
    "magma_mlp": (
        models.magma_mlp(),
        (28, 28, 1),
        10,
        dense(784, 512) + dense(512, 256) + dense(256, 10),
        None,
    ),
    # 4.24 MiB: CROSSBOW's Table 1
    "lenet": (models.lenet(), (28, 28, 1), 10, lenet_size(10), 1.111946),
    "magma_cnn": (models.magma_cnn(), (32, 32, 3), 10, magma_cnn_size(10), None),
    "convnet": (models.convnet(), (32, 32, 3), 10, convnet_size(10), None),
    "nin": (models.nin(), (32, 32, 3), 10, nin_size(10), None),
    # 57.3 MB in CROSSBOW's Table 1: 15.0M
    "vgg16": (models.vgg16(), (32, 32, 3), 100, vgg_size(100, True), 15.0),
    "vgg16 torch": (
        models.vgg16(variant="torch"),
        (32, 32, 3),
        10,
        vgg_size(10, False),
        15.0,
    ),
    "resnet20": (models.resnet(), (32, 32, 3), 10, resnet_size(10, 3, True), 0.27),
    # .46M in He et al., 1.8 MB in CROSSBOW's Table 1
    "resnet32 pad": (
        models.resnet(depth=32, shortcut="pad"),
        (32, 32, 3),
        10,
        resnet_size(10, 5, False),
        0.46,
    ),
    "resnet32": (
        models.resnet(depth=32),
        (32, 32, 3),
        10,
        resnet_size(10, 5, True),
        0.467,
    ),
    "resnet32 crossbow": (
        models.resnet(depth=32, pool="crossbow"),
        (32, 32, 3),
        10,
        resnet_size(10, 5, True) + (4 - 1) * 64 * 10,
        None,
    ),
    "resnet20 everywhere": (
        models.resnet(shortcut="projection_everywhere"),
        (32, 32, 3),
        10,
        resnet_size(10, 3, True) + conv(1, 16, 16) + norm(16),
        None,
    ),
    # 11.0M and 36.5M: Zagoruyko and Komodakis
    "wrn-16-8": (models.wide_resnet(), (32, 32, 3), 10, wide_size(10, 2, 8), 11.0),
    "wrn-28-10": (
        models.wide_resnet(depth=28, widen=10),
        (32, 32, 3),
        10,
        wide_size(10, 4, 10),
        36.5,
    ),
    # torchvision's counts, in millions
    "resnet50": (
        models.resnet50(),
        LARGE_IMAGE,
        1000,
        bottleneck_size(1000, (3, 4, 6, 3)),
        25.557032,
    ),
    "resnet50 crossbow": (
        models.resnet50(variant="crossbow"),
        LARGE_IMAGE,
        1000,
        bottleneck_size(1000, (3, 4, 6, 3)),
        25.557032,
    ),
    "resnet101": (
        models.resnet101(),
        LARGE_IMAGE,
        1000,
        bottleneck_size(1000, (3, 4, 23, 3)),
        44.549160,
    ),
    # timm's counts: vit_tiny, vit_small, vit_base, of patch 16 and 224 pixels
    "vit_ti": (
        models.vit(size="tiny"),
        LARGE_IMAGE,
        1000,
        vit_size(1000, 192),
        5.717416,
    ),
    "vit_s": (
        models.vit(size="small"),
        LARGE_IMAGE,
        1000,
        vit_size(1000, 384),
        22.050664,
    ),
    "vit_b": (models.vit(), LARGE_IMAGE, 1000, vit_size(1000, 768), 86.567656),
    "vit_b 384": (
        models.vit(image=(384, 384, 3), patch=32),
        (384, 384, 3),
        10,
        vit_size(10, 768, 32, 384),
        None,
    ),
    "wrn-16-8 large": (
        models.wide_resnet(image=(224, 224, 3)),
        (224, 224, 3),
        102,
        wide_size(102, 2, 8),
        None,
    ),
}


@pytest.mark.parametrize("name", quick(SIZES, "lenet", "resnet20", "vit_ti"))
def test_parameter_counts(name):
    build, image, classes, by_hand, published = SIZES[name]

    def built():
        model = build(math.prod(image), classes, rngs=nnx.Rngs(0))
        return nnx.to_pure_dict(nnx.state(model, nnx.Param))

    count = sum(x.size for x in jax.tree.leaves(jax.eval_shape(built)))
    assert count == by_hand
    if published is not None:
        decimals = 6 if published > 5 and len(str(published)) > 5 else 0
        decimals = decimals or len(str(published).split(".")[1])
        assert round(count / 1e6, decimals) == published


def test_the_counts_that_docstrings_state():
    for name, count in (
        ("magma_mlp", 535_818),
        ("lenet", 1_111_946),
        ("magma_cnn", 806_624),
        ("convnet", 506_378),
        ("nin", 968_404),
        ("vgg16", 15_038_116),
        ("resnet20", 272_474),
        ("resnet32", 466_906),
        ("resnet32 pad", 464_154),
        ("wrn-16-8", 10_961_370),
        ("wrn-28-10", 36_479_194),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("vit_ti", 5_717_416),
        ("vit_s", 22_050_664),
        ("vit_b", 86_567_656),
    ):
        assert SIZES[name][3] == count, name


# --- architectures ------------------------------------------------------------------

STAGES = {  # shapes in the order in which they occur, others between them
    "lenet": [(24, 24, 32), (12, 12, 32), (8, 8, 64), (4, 4, 64), (1024,)],
    "magma_cnn": [(28, 28, 32), (14, 14, 32), (128,)],
    "convnet": [(28, 28, 64), (14, 14, 64), (12, 12, 128), (6, 6, 128), (4, 4, 256)]
    + [(2, 2, 256), (1, 1, 128), (128,)],
    "nin": [(32, 32, 192), (32, 32, 160), (32, 32, 96), (16, 16, 96), (16, 16, 192)]
    + [(8, 8, 192), (8, 8, 10)],
    "vgg16": [(32, 32, 64), (16, 16, 64), (16, 16, 128), (8, 8, 128), (8, 8, 256)]
    + [(4, 4, 256), (4, 4, 512), (2, 2, 512), (1, 1, 512), (512,)],
    "resnet20": [(32, 32, 16), (16, 16, 32), (8, 8, 64), (64,)],
    "resnet32 crossbow": [(32, 32, 16), (16, 16, 32), (8, 8, 64), (2, 2, 64), (256,)],
    "wrn-16-8": [(32, 32, 16), (32, 32, 128), (16, 16, 256), (8, 8, 512), (512,)],
    "wrn-16-8 large": [(224, 224, 128), (112, 112, 256), (56, 56, 512), (512,)],
}


@pytest.mark.parametrize("name", quick(STAGES, "lenet", "resnet20"))
def test_shapes_between_the_layers(name):
    build, image, classes, *_ = SIZES[name]

    def outputs(x):
        found = []
        for layer in build(math.prod(image), classes, rngs=nnx.Rngs(0)).layers:
            x = layer(x)
            found.append(x)
        return found

    shapes = iter(
        [x.shape[1:] for x in jax.eval_shape(outputs, jnp.zeros((2, *image)))]
    )
    for stage in [image, *STAGES[name], (classes,)]:
        assert stage in shapes, stage  # continues after the last one found


@functools.cache
def shapes_of(name):
    """The model of full size, with shapes in the place of arrays."""
    build, image, classes, *_ = SIZES[name]
    return nnx.eval_shape(lambda: build(math.prod(image), classes, rngs=nnx.Rngs(0)))


def modules(name, kind):
    found = nnx.iter_modules(shapes_of(name))
    return [m for _, m in found if isinstance(m, kind)]


def of_small(row):
    """Rows of tables whose model is quickly built."""
    return row[0] in ("magma_mlp", "lenet", "nin")


@pytest.mark.parametrize(
    ("name", "rates"),
    quick_if(
        of_small,
        [
            ("magma_mlp", []),
            ("lenet", [0.4]),
            ("magma_cnn", [0.25]),
            ("convnet", [0.5] * 4),
            ("nin", [0.5] * 2),
            ("vgg16", [0.3, *[0.4] * 7, 0.5, 0.5]),
            ("vgg16 torch", [0.3, *[0.4] * 7, 0.5, 0.5]),
            ("resnet20", []),
            ("wrn-16-8", []),
        ],
    ),
)
def test_dropout_rates(name, rates):
    assert sorted(m.rate for m in modules(name, nnx.Dropout)) == rates


@pytest.mark.parametrize(
    ("name", "count", "settings"),  # (epsilon, momentum)
    quick_if(
        of_small,
        [
            ("lenet", 0, set()),
            ("nin", 9, {(1e-3, 0.9)}),
            ("vgg16", 14, {(1e-3, 0.99)}),
            ("vgg16 torch", 14, {(1e-3, 0.9), (1e-5, 0.9)}),
            ("resnet32", 33, {(1e-5, 0.9)}),  # one after each convolution
            ("resnet32 pad", 31, {(1e-5, 0.9)}),
            ("wrn-16-8", 13, {(1e-5, 0.9)}),  # before all convolutions but 4; last
        ],
    ),
)
def test_batch_normalization(name, count, settings):
    norms = modules(name, nnx.BatchNorm)
    assert len(norms) == count
    assert {(m.epsilon, m.momentum) for m in norms} == settings


@pytest.mark.parametrize(
    ("name", "order"),
    quick_if(
        of_small,
        [
            ("vgg16", "Conv relu BatchNorm Dropout Conv relu BatchNorm max_pool"),
            ("vgg16 torch", "Conv BatchNorm relu Dropout Conv BatchNorm relu max_pool"),
            ("nin", "Conv BatchNorm relu Conv BatchNorm relu Conv BatchNorm relu"),
        ],
    ),
)
def test_order_of_the_first_stage(name, order):
    layers = shapes_of(name).layers
    names = [getattr(f, "__name__", type(f).__name__) for f in layers]
    expected = order.split()
    assert names[1 : 1 + len(expected)] == expected


# Compiling takes most of the time here; the programs run only a few times.
compiled = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)

# --- in training and in evaluation --------------------------------------------------


class Small(NamedTuple):
    """A model with few weights, and its properties."""

    build: object
    image: tuple
    dropout: bool
    norm: bool


def resnet(**options):
    return models.resnet(**{"depth": 8, "width": 4, "image": (8, 8, 3)} | options)


SMALL = {
    "resnet50": Small(
        models.resnet50(image=(24, 20, 3), blocks=(1, 2), width=8),
        (24, 20, 3),
        False,
        True,
    ),
    "resnet50 crossbow": Small(
        models.resnet50(image=(24, 20, 3), blocks=(1, 1), width=8, variant="crossbow"),
        (24, 20, 3),
        False,
        True,
    ),
    "vit": Small(
        models.vit(size=(1, 16, 2, 32), patch=8, image=(16, 24, 3), dropout=0.1),
        (16, 24, 3),
        True,
        False,
    ),
    "magma_mlp": Small(models.magma_mlp(image=(8, 8, 1)), (8, 8, 1), False, False),
    "lenet": Small(
        models.lenet(image=(16, 18, 1), hidden=64), (16, 18, 1), True, False
    ),
    "magma_cnn": Small(models.magma_cnn(image=(8, 10, 3)), (8, 10, 3), True, False),
    "convnet": Small(models.convnet(widths=(16, 8, 8, 8)), (32, 32, 3), True, False),
    "nin": Small(models.nin(image=(8, 6, 3)), (8, 6, 3), True, True),
    "vgg16": Small(models.vgg16(width=4, hidden=16), (32, 32, 3), True, True),
    "vgg16 torch": Small(
        models.vgg16(width=4, hidden=16, variant="torch", dropout=(0.0, 0.0, 0.0)),
        (32, 32, 3),
        False,
        True,
    ),
    "resnet": Small(
        resnet(image=(25, 28, 3), pool="crossbow"), (25, 28, 3), False, True
    ),
    "resnet biased": Small(
        resnet(shortcut="projection_everywhere", zero_gamma=True),
        (8, 8, 3),
        False,
        True,
    ),
    "wide_resnet": Small(
        models.wide_resnet(depth=10, widen=2, image=(8, 8, 3), dropout=0.3),
        (8, 8, 3),
        True,
        True,
    ),
}
B, C = 8, 5
KEYS = jax.random.split(jax.random.key(1), 2)


@functools.cache
def begun(name):
    """(model, a split of inputs, parameters, state); only the start is compiled."""
    row = SMALL[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(B, *row.image)).astype(np.float32)
    split = Split(x, rng.integers(C, size=B).astype(np.int32))
    model = as_model(row.build, Dataset(split, split, C))
    return model, split, *compiled(model.init)(jax.random.key(0))


@functools.cache
def runner(name):
    """Run a model with one of two step keys; compiled once."""
    model, split, params, state = begun(name)
    x = split.x

    @compiled
    def train(params, state, key):
        def loss(params):
            logits, after = model.apply(params, state, x, key, True)
            return cross_entropy(logits, split.y).mean(), (logits, after)

        return jax.grad(loss, has_aux=True)(params)

    @compiled
    def evaluate(params, state, key):  # as data comes from files of flat rows
        return model.apply(params, state, x.reshape(B, -1), key, False)

    @functools.cache
    def run(i):
        gradients, (logits, after) = train(params, state, KEYS[i])
        before, later = (evaluate(params, s, KEYS[i]) for s in (state, after))
        return {
            "grad_sum": gradients,
            "train": logits,
            "states": (state, before[1], after, later[1]),
            "evaluated": (before[0], later[0]),
        }

    return lambda i: jax.device_get(run(i))


# One of each kind is always trained: a perceptron, a transformer, a convolutional
# network with batch statistics. All others take long to compile.
QUICK = ("magma_mlp", "vit", "resnet")


def rows(table):
    """All names of a table; those of most models are full."""
    return quick_if(lambda name: name in QUICK, table)


@pytest.mark.parametrize("name", rows(SMALL))
def test_logits(name):
    found = runner(name)(0)
    for logits in (found["train"], *found["evaluated"]):
        assert logits.shape == (B, C)
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
        assert len({tuple(row) for row in logits}) == B  # examples have different ones


@pytest.mark.parametrize("name", rows(SMALL))
def test_dropout_is_drawn_from_the_step_key_and_off_in_evaluation(name):
    first, other = runner(name)(0), runner(name)(1)
    assert (first["train"] != other["train"]).any() == SMALL[name].dropout
    np.testing.assert_array_equal(first["evaluated"][0], other["evaluated"][0])


@pytest.mark.parametrize("name", rows(SMALL))
def test_batch_statistics_move_in_training_only(name):
    found = runner(name)(0)
    start, evaluated, after, later = found["states"]
    assert bool(jax.tree.leaves(start)) == SMALL[name].norm
    jax.tree.map(np.testing.assert_array_equal, start, evaluated)
    jax.tree.map(np.testing.assert_array_equal, after, later)
    for path, moved in jax.tree.leaves_with_path(
        jax.tree.map(lambda a, b: (a != b).any(), start, after)
    ):
        assert moved, path_name(path)
    if SMALL[name].norm:
        assert (found["evaluated"][0] != found["evaluated"][1]).any()
    # training differs from evaluation if there is dropout or batch statistics
    same = np.array_equal(found["train"], found["evaluated"][0])
    assert same == (not SMALL[name].norm and not SMALL[name].dropout)


@pytest.mark.parametrize("name", rows(SMALL))
def test_gradients_reach_every_parameter(name):
    """The rounding errors of a zero gradient do not count."""
    leaves = jax.tree.leaves_with_path(runner(name)(0)["grad_sum"])
    assert all(np.isfinite(g).all() for _, g in leaves)
    still = {path_name(path) for path, g in leaves if abs(g).max() < 1e-6}
    # Parameters before a scale of 0 do not move: all of a block but its last norm.
    block = ("0/kernel", "1/scale", "1/bias", "3/kernel")
    zero = {f"layers/{i}/branch/layers/{leaf}" for i in (4, 5, 6) for leaf in block}
    assert still == (zero if name == "resnet biased" else set())


# --- initial weights ----------------------------------------------------------------

CUT = (1 - 4 * 0.0539910 / 0.9544997) ** 0.5  # a unit normal's deviation, cut at 2


def fans(shape):
    area = math.prod(shape[:-2])
    return area * shape[-2], area * shape[-1]


def uniform(variance):
    return variance**0.5, (3 * variance) ** 0.5


INITS = {  # kernel shape -> (standard deviation, largest value)
    "resnet50": lambda s: (
        ((2 / fans(s)[1]) ** 0.5, None) if len(s) == 4 else uniform(1 / 3 / fans(s)[0])
    ),
    "resnet50 crossbow": lambda s: uniform(2 / sum(fans(s))),
    "vit": lambda s: (0.02 * CUT, 0.04),
    "lenet": lambda s: (0.1 * CUT, 0.2),
    "convnet": lambda s: uniform(1 / 3 / fans(s)[0]),
    "nin": lambda s: (0.05, None),
    "vgg16": lambda s: uniform(2 / sum(fans(s))),
    "vgg16 torch": lambda s: (
        ((2 / fans(s)[1]) ** 0.5, None) if len(s) == 4 else uniform(1 / 3 / fans(s)[0])
    ),
    "resnet": lambda s: uniform(1 / fans(s)[0]),
    "wide_resnet": lambda s: (
        ((2 / fans(s)[1]) ** 0.5, None) if len(s) == 4 else uniform(1 / 3 / fans(s)[0])
    ),
    "magma_cnn": lambda s: (
        ((2 / sum(fans(s))) ** 0.5, None)
        if len(s) == 4
        else uniform(2 / 3 / fans(s)[0])
    ),
}


def initial(name):
    leaves = jax.tree.leaves_with_path(jax.device_get(begun(name)[2]))
    return {path_name(path): x for path, x in leaves}


@pytest.mark.parametrize("name", rows(INITS))
def test_initial_weights(name):
    kernels = [x for k, x in initial(name).items() if k.endswith("kernel")]
    assert max(x.size for x in kernels) > 1000
    for x in kernels:
        x = np.asarray(x, np.float64)
        deviation, bound = INITS[name](x.shape)
        # four times the deviation of a standard deviation of n samples
        error = 4 / (2 * x.size) ** 0.5
        np.testing.assert_allclose(x.std(), deviation, rtol=error)
        assert abs(x.mean()) < 2**0.5 * error * deviation
        if bound is not None:
            assert abs(x).max() <= bound * (1 + 1e-6)


@pytest.mark.full  # many large models
def test_initial_biases():
    for name in SMALL:
        for path, x in initial(name).items():
            if path.endswith("bias"):
                tenth = name == "lenet" and path != "layers/1/bias"
                np.testing.assert_array_equal(x, np.float32(0.1 if tenth else 0))


@pytest.mark.full  # two models
def test_initial_scales():
    last = {f"layers/{i}/branch/layers/4/scale" for i in (4, 5, 6)}
    for name in ("resnet", "resnet biased"):
        scales = {k: v for k, v in initial(name).items() if k.endswith("scale")}
        assert last < scales.keys()
        for path, x in scales.items():
            zero = name == "resnet biased" and path in last
            np.testing.assert_array_equal(x, 0 if zero else 1)


# --- blocks -------------------------------------------------------------------------


@pytest.mark.full  # a whole model
def test_padded_shortcuts_of_a_resnet_whose_branches_are_zero():
    """The result is every fourth pixel of the stem, with zeros in the new channels."""

    @compiled
    def outputs(x):
        build = resnet(shortcut="pad", zero_gamma=True)
        model = build(8 * 8 * 3, C, rngs=nnx.Rngs(0))
        model.eval()
        stem = nnx.Sequential(*model.layers[:4])(x)
        head = model.layers[-1]
        return model(x), stem, head.kernel[...], head.bias[...]

    x = jax.random.normal(KEYS[0], (B, 8, 8, 3))
    logits, stem, kernel, bias = jax.device_get(outputs(x))
    pooled = stem[:, ::4, ::4].mean((1, 2))  # four channels of sixteen
    # the order of sums differs
    np.testing.assert_allclose(logits, pooled @ kernel[:4] + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.full  # a whole model
def test_wide_blocks_activate_before_the_shortcut_only_where_it_is_a_convolution():
    @compiled
    def outputs(x):
        build = models.wide_resnet(depth=16, widen=2, image=(8, 8, 3))
        model = build(8 * 8 * 3, C, rngs=nnx.Rngs(0))
        model.eval()
        first, second = model.layers[2:4]
        convs = first.branch.layers[-1], second.branch.layers[-1].layers[-1]
        for layer in convs:  # of a branch: its output is zero
            layer.kernel[...] = jnp.zeros_like(layer.kernel[...])
        y = first(x)
        return y, second(y), first.shortcut.kernel[...]

    x = jax.random.normal(KEYS[0], (B, 8, 8, 16))
    y, z, kernel = jax.device_get(outputs(x))
    h = np.maximum(x, 0) / (1 + 1e-5) ** 0.5  # statistics are still 0 and 1
    expected = np.einsum("bhwi,io->bhwo", h, kernel[0, 0])
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
    assert (y < 0).any()  # no ReLU after the sum
    np.testing.assert_array_equal(z, y)


# --- with the rest of the library ---------------------------------------------------


@pytest.mark.full  # a hundred steps
def test_a_convolutional_network_learns_digits():
    data = hj.data.digits()
    task = hj.classification(models.magma_cnn(image=(8, 8, 1)), data)
    buckets = make_buckets(data.train, 64)
    optimizer = optax.adam(3e-3)
    params, state = compiled(task.init)(KEYS[0])
    opt_state = optimizer.init(params)

    @compiled
    def step(params, opt_state, batch, key):
        gradient = jax.grad(lambda p: task.loss(p, state, batch, key)[0].mean())(params)
        updates, opt_state = optimizer.update(gradient, opt_state)
        return optax.apply_updates(params, updates), opt_state

    rng = np.random.default_rng(0)
    for key in jax.random.split(KEYS[1], 100):
        rows = rng.integers(len(data.train.y), size=64)
        batch = make_batch(data.train, rows, buckets)
        params, opt_state = step(params, opt_state, batch, key)
    everything = np.arange(len(data.test.y))
    batch = make_batch(data.test, everything, make_buckets(data.test, len(everything)))
    assert compiled(task.metrics)(params, state, batch)["accuracy"].mean() > 0.9


# --- errors -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIZES)
def test_data_of_another_size_is_an_error(name):
    build, image, classes, *_ = SIZES[name]
    with pytest.raises(ValueError, match=f"65 features.*{math.prod(image)}.*image="):
        build(65, classes, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: models.lenet(image=(15, 28, 1)), "too small"),
        (lambda: models.magma_cnn(image=(5, 32, 3)), "too small"),
        (lambda: models.convnet(image=(32, 31, 3)), "too small"),
        (lambda: models.nin(image=(3, 32, 3)), "too small"),
        (lambda: models.vgg16(image=(31, 32, 3)), "too small"),
        (lambda: models.resnet(image=(24, 32, 3), pool="crossbow"), "too small"),
        (lambda: models.resnet(depth=18), "depth=18.*6 n \\+ 2"),
        (lambda: models.resnet(depth=2), "depth=2.*6 n \\+ 2"),
        (lambda: models.resnet(shortcut="id"), "shortcut='id'.*projection.*pad"),
        (lambda: models.resnet(pool="max"), "pool='max'.*global.*crossbow"),
        (lambda: models.wide_resnet(depth=20), "depth=20.*6 n \\+ 4"),
        (lambda: models.wide_resnet(depth=4), "depth=4.*6 n \\+ 4"),
        (lambda: models.wide_resnet(widen=0), "of at least 1"),
        (lambda: models.vgg16(variant="vgg"), "variant='vgg'.*crossbow.*torch"),
        (lambda: models.vgg16(dropout=(0.3, 1.0, 0.5)), "dropout=.*from 0 to below 1"),
        (lambda: models.vgg16(dropout=(0.3, 0.4)), "dropout=.*a sequence of 3 numbers"),
        (lambda: models.vgg16(dropout=0.3), "dropout=0.3.*a sequence of 3 numbers"),
        (lambda: models.lenet(dropout=-0.1), "dropout=-0.1: pass a number from 0"),
        (lambda: models.lenet(hidden=0), "of at least 1"),
        (lambda: models.magma_mlp(hidden=(8, 0)), "of at least 1"),
        (
            lambda: models.resnet50(variant="tf"),
            "variant='tf': choose one of torch, crossbow",
        ),
        (lambda: models.resnet50(blocks=(3, 0)), "of at least 1"),
        (lambda: models.resnet50(image=(4, 4, 3), variant="crossbow"), "too small"),
        (lambda: models.resnet101(image=(224, 224)), "a sequence of 3 whole"),
        (lambda: models.resnet(image=32), "image=32: pass a sequence of 3 whole"),
        (lambda: models.resnet50(dtype="int32"), "dtype='int32'.*floating-point"),
        (lambda: models.resnet50(dtype="float7"), "dtype='float7'.*floating-point"),
        (lambda: models.wide_resnet(dtype=jnp.int8), "dtype=.*floating-point"),
        (lambda: models.vgg16(dtype="bool"), "dtype='bool'.*floating-point"),
        (lambda: models.resnet(dtype="int8"), "dtype='int8'.*floating-point"),
        (lambda: models.vit(size="huge"), "size='huge'.*tiny.*small.*base"),
        (lambda: models.vit(size=(2, 10, 3, 8)), "heads=3.*must divide"),
        (lambda: models.vit(image=(224, 220, 3)), "multiples of the patch, 16"),
        (lambda: models.vit(dropout=1.0), "dropout=.*from 0 to below 1"),
        (lambda: models.vit(dtype="int32"), "dtype='int32'.*floating-point"),
        (lambda: models.distilbert(heads=7), "heads=7.*768"),
        (lambda: models.distilbert(layers=0), "of at least 1"),
        (
            lambda: models.distilbert(dropout=(0.1, 1.0, 0.2)),
            "dropout=.*from 0 to below 1",
        ),
        (lambda: models.distilbert(dtype="int32"), "dtype='int32'.*floating-point"),
    ],
)
def test_invalid_models_are_errors(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.full  # five models
def test_the_smallest_possible_images():
    for build, image in (
        (models.lenet(image=(16, 16, 1)), (16, 16, 1)),
        (models.magma_cnn(image=(6, 6, 3)), (6, 6, 3)),
        (models.nin(image=(4, 4, 3)), (4, 4, 3)),
        (models.resnet(image=(25, 25, 3), pool="crossbow"), (25, 25, 3)),
        (resnet(image=(1, 1, 3)), (1, 1, 3)),
    ):
        x = jnp.zeros((2, *image))
        logits = jax.eval_shape(
            lambda x, build=build, n=math.prod(image): build(n, C, rngs=nnx.Rngs(0))(x),
            x,
        )
        assert logits.shape == (2, C)
