"""The heavy models: stages, padding and positions, bfloat16, activations made again."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from PIL import Image
from quick import quick

from hetjax import models
from hetjax.models.vit import interpolate_positions
from hetjax.tasks.model import from_nnx

B, C = 4, 5


def built(build, features, classes=C, seed=0):
    return build(features, classes, rngs=nnx.Rngs(seed))


@nnx.jit
def called(net, x):
    """The model's outputs, compiled."""
    return net(x)


def distilbert(**options):
    small = {"layers": 2, "width": 16, "heads": 2, "hidden": 32, "vocabulary": 40}
    return models.distilbert(**{**small, "positions": 12} | options)


# --- ResNet-50 ------------------------------------------------------------------------


@pytest.mark.full  # traces all of 50 layers, several times
@pytest.mark.parametrize(
    ("variant", "stages"),
    [
        ("torch", [(112, 64), (56, 64), (56, 256), (28, 512), (14, 1024), (7, 2048)]),
        (
            "crossbow",
            [(112, 64), (55, 64), (55, 256), (28, 512), (14, 1024), (7, 2048)],
        ),
    ],
)
def test_stages_of_resnet50(variant, stages):
    """Sides and channels after the stem, its max pool, and each stage."""
    from hetjax.models import blocks

    def outputs(x):
        net = built(models.resnet50(variant=variant), 224 * 224 * 3, 1000)
        found = [jax.nn.relu(net.norm(net.conv(net.images(x))))]
        pad = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jnp.pad(found[0], pad) if net.padded_pool else found[0]
        found.append(blocks.max_pool(x, 3, 2))
        for stage in net.stages:
            x = found[-1]
            for block in stage:
                x = block(x)
            found.append(x)
        return found, net(jnp.zeros((2, 224, 224, 3)))

    found, logits = jax.eval_shape(outputs, jnp.zeros((2, 224, 224, 3)))
    assert [(x.shape[1], x.shape[3]) for x in found] == stages
    assert all(x.shape[1] == x.shape[2] for x in found)
    assert logits.shape == (2, 1000)


@pytest.mark.full  # all of 50 layers
@pytest.mark.parametrize(("variant", "place"), [("torch", 2), ("crossbow", 1)])
def test_where_the_strides_are(variant, place):
    def make():
        return built(models.resnet50(variant=variant), 224 * 224 * 3, 1000)

    net = nnx.eval_shape(make)
    blocks = [block for stage in net.stages for block in stage]
    assert len(blocks) == 3 + 4 + 6 + 3
    for block in blocks:
        strides = [block.conv1.strides, block.conv2.strides, block.conv3.strides]
        strides = [s if isinstance(s, int) else s[0] for s in strides]
        first = isinstance(block.shortcut, nnx.Sequential)
        shrinks = first and block.shortcut.layers[0].strides in (2, (2, 2))
        expected = [1, 1, 1]
        if shrinks:
            expected[place - 1] = 2
        assert strides == expected
    sizes = [block.conv2.kernel_size for block in blocks]
    assert set(sizes) == {(3, 3)}
    assert len([b for b in blocks if isinstance(b.shortcut, nnx.Sequential)]) == 4


@pytest.mark.full  # all of 101 layers
def test_resnet101_has_23_blocks_in_its_third_stage():
    net = nnx.eval_shape(lambda: built(models.resnet101(), 224 * 224 * 3, 1000))
    assert [len(stage) for stage in net.stages] == [3, 4, 23, 3]


def test_scales_that_start_with_zero():
    for zero in (False, True):
        build = models.resnet50(image=(8, 8, 3), blocks=(1,), width=4, zero_gamma=zero)

        @jax.jit
        def scales(build=build):
            (block,) = built(build, 8 * 8 * 3).stages[0]
            return block.norm2.scale[...], block.norm3.scale[...]

        before, last = scales()
        np.testing.assert_array_equal(last, 0.0 if zero else 1.0)
        np.testing.assert_array_equal(before, 1.0)


# --- ViT ------------------------------------------------------------------------------


def by_pillow(positions, old, new):
    """The grid of positions as a picture of each channel, resized by Pillow."""
    grid = np.asarray(positions)[0, 1:].reshape(*old, -1)
    channels = [
        np.asarray(
            Image.fromarray(grid[..., c], mode="F").resize(
                new[::-1], Image.Resampling.BICUBIC
            )
        )
        for c in range(grid.shape[-1])
    ]
    flat = np.stack(channels, -1).reshape(1, -1, grid.shape[-1])
    return np.concatenate([np.asarray(positions)[:, :1], flat], axis=1)


@pytest.mark.parametrize("new", [(6, 8), (4, 9), (3, 4)])
def test_positions_are_interpolated_as_a_picture(new):
    old = (3, 4)
    shape = (1, 1 + old[0] * old[1], 6)
    positions = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    found = jax.jit(interpolate_positions, static_argnums=(1, 2))(positions, old, new)
    expected = positions if new == old else by_pillow(positions, old, new)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.full  # three models
def test_larger_images_meet_interpolated_positions():
    """The same as a model of that size whose positions are those of Pillow."""
    options = {"size": (1, 8, 2, 16), "patch": 4}
    small = built(models.vit(image=(8, 12, 3), **options), 8 * 12 * 3)
    large = built(models.vit(image=(16, 24, 3), **options), 16 * 24 * 3)
    x = np.random.default_rng(1).normal(size=(B, 16, 24, 3)).astype(np.float32)
    state = nnx.state(small, nnx.Param)
    positions = by_pillow(small.positions[...], (2, 3), (4, 6))
    state["positions"] = state["positions"].replace(jnp.asarray(positions))
    nnx.update(large, state)
    np.testing.assert_allclose(called(small, x), called(large, x), atol=1e-5)
    images = x[:, :8, :12]
    flat = called(small, images.reshape(B, -1))
    np.testing.assert_array_equal(flat, called(small, images))


def test_grey_images_of_a_vit():
    net = built(models.vit(size=(1, 8, 2, 16), patch=4, image=(8, 12, 1)), 8 * 12)
    x = np.random.default_rng(1).normal(size=(B, 8, 12)).astype(np.float32)
    expected = called(net, x[..., None])
    np.testing.assert_array_equal(called(net, x), expected)
    np.testing.assert_array_equal(called(net, x.reshape(B, -1)), expected)


@pytest.mark.parametrize("shape", [(9, 12, 3), (8, 12, 1), (8, 12), (12, 3)])
def test_other_inputs_of_a_vit_are_errors(shape):
    build = models.vit(size=(1, 8, 2, 16), patch=4, image=(8, 12, 3))
    with pytest.raises(ValueError, match="neither images of .8, 12, 3. nor"):
        jax.eval_shape(lambda x: built(build, 8 * 12 * 3)(x), jnp.zeros((B, *shape)))


# --- DistilBERT -----------------------------------------------------------------------


def test_sizes_of_distilbert():
    """Hugging Face's: 66,362,880 without a head, 66,955,010 with one of two classes."""

    def count(classes):
        def make():
            net = built(models.distilbert(), 128, classes)
            return nnx.to_pure_dict(nnx.state(net, nnx.Param))

        return sum(x.size for x in jax.tree.leaves(jax.eval_shape(make)))

    d, words, places, layers = 768, 30_522, 512, 6
    layer = 4 * (d * d + d) + 2 * (4 * d * d) + 4 * d + d + 4 * d
    encoder = (words + places) * d + 2 * d + layers * layer
    assert encoder == 66_362_880
    assert count(2) == encoder + d * d + d + 2 * d + 2 == 66_955_010
    assert count(4) == count(2) + 2 * (d + 1)


def test_padding_does_not_change_a_text():
    net = built(distilbert(), 12)
    net.eval()
    tokens = np.random.default_rng(0).integers(1, 40, (B, 7))
    padded = np.zeros((B, 12), np.uint16)
    padded[:, :7] = tokens
    found = called(net, tokens)
    np.testing.assert_allclose(found, called(net, padded), atol=1e-6)
    padded[:, 6] = 1 + padded[:, 6] % 39
    assert (abs(np.asarray(found - called(net, padded))) > 1e-6).any()


def test_texts_do_not_see_each_other():
    net = built(distilbert(), 12)
    net.eval()
    tokens = np.random.default_rng(0).integers(0, 40, (B, 12))
    one = np.concatenate([called(net, tokens[i : i + 1]) for i in range(B)])
    np.testing.assert_allclose(called(net, tokens), one, atol=1e-6)


def test_dropout_of_distilbert_is_drawn_from_the_step_key():
    model = from_nnx(lambda rngs: distilbert(layers=1)(12, C, rngs=rngs))
    logits = logits_of(model)
    keys = jax.random.split(jax.random.key(1), 2)
    first, other, again = (logits(keys[i], True) for i in (0, 1, 0))
    assert (first != other).any()
    np.testing.assert_array_equal(first, again)
    first, other = (logits(k, False) for k in keys)
    np.testing.assert_array_equal(first, other)


def logits_of(model):
    """logits(key, train) of the initial model for some tokens; compiled."""
    params, state = jax.jit(model.init)(jax.random.key(0))
    tokens = np.random.default_rng(0).integers(1, 40, (B, 12))

    def logits(key, train):
        return model.apply(params, state, tokens, key, train)[0]

    return jax.jit(logits, static_argnums=1)


@pytest.mark.full  # a model for each
@pytest.mark.parametrize("place", range(3))
def test_each_rate_of_dropout_counts(place):
    rates = [0.0] * 3
    rates[place] = 0.5
    build = distilbert(dropout=tuple(rates))
    logits = logits_of(from_nnx(lambda rngs: build(12, C, rngs=rngs)))
    first, other = (logits(k, True) for k in jax.random.split(jax.random.key(1), 2))
    assert (first != other).any()


@pytest.mark.full  # two models
def test_attention_is_that_of_its_formula_with_and_without_dropout():
    """With a rate of zero in evaluation, both ways to compute it are one formula."""
    plain = built(distilbert(dropout=(0.1, 0.0, 0.2)), 12)
    dropped = built(distilbert(dropout=(0.1, 0.4, 0.2)), 12)
    nnx.update(dropped, nnx.state(plain, nnx.Param))
    plain.eval()
    dropped.eval()
    tokens = np.random.default_rng(0).integers(0, 40, (B, 12))
    tokens[:, 0] = 1  # a text has a token at least
    found = [called(net, tokens) for net in (plain, dropped)]
    np.testing.assert_allclose(*found, atol=1e-6)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (jnp.zeros((2, 12)), "integers .B, T."),
        (jnp.zeros((2, 12, 1), int), "integers .B, T."),
        (jnp.zeros((2, 13), int), "13 tokens, but the model has 12 positions"),
    ],
)
def test_other_inputs_of_distilbert_are_errors(x, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda x: built(distilbert(), 12)(x), x)


def test_longer_texts_than_positions_are_an_error():
    with pytest.raises(ValueError, match="13 tokens, but the model has 12 positions"):
        built(distilbert(), 13)


# --- dtype and remat ------------------------------------------------------------------

IMAGE = (16, 16, 3)
MAKE = {  # name -> (builder of options, has it remat?)
    "resnet": (lambda **o: models.resnet(depth=8, width=4, image=IMAGE, **o), True),
    "wide_resnet": (
        lambda **o: models.wide_resnet(
            depth=10, widen=2, image=IMAGE, dropout=0.3, **o
        ),
        True,
    ),
    "vgg16": (
        lambda **o: models.vgg16(image=(32, 32, 3), width=4, hidden=16, **o),
        False,
    ),
    "resnet50": (
        lambda **o: models.resnet50(image=IMAGE, blocks=(1, 1), width=4, **o),
        True,
    ),
    "vit": (
        lambda **o: models.vit(
            size=(2, 16, 2, 32), patch=8, image=IMAGE, dropout=0.1, **o
        ),
        True,
    ),
    "distilbert": (distilbert, True),
}
WITH_REMAT = [name for name, (_, remat) in MAKE.items() if remat]


def inputs(name):
    rng = np.random.default_rng(0)
    if name == "distilbert":
        return jnp.asarray(rng.integers(1, 40, (B, 12)))
    side = 32 if name == "vgg16" else 16
    return jnp.asarray(rng.normal(size=(B, side, side, 3)), jnp.float32)


def stepped(name, **options):
    """A training step: gradients, (logits, state after); and its model."""
    x = inputs(name)
    build = MAKE[name][0](**options)
    features = math.prod(x.shape[1:])
    model = from_nnx(lambda rngs: build(features, C, rngs=rngs))

    def loss(params, state, x, key):
        logits, state = model.apply(params, state, x, key, True)
        return (logits**2).sum(), (logits, state)

    return jax.grad(loss, has_aux=True), model


def compared(name, one, two, atol):
    x, key = inputs(name), jax.random.key(2)
    (first, model), (second, other) = one, two
    params, state = jax.jit(model.init)(jax.random.key(0))
    again, _ = jax.jit(other.init)(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    found = [jax.jit(step)(params, state, x, key) for step in (first, second)]
    scale = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(found[0]))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol * scale), *found
    )
    return found


@pytest.mark.parametrize("name", quick(MAKE, "vit"))
def test_bfloat16_is_inside_only(name):
    dtype = jnp.bfloat16 if name in ("vit", "resnet") else "bfloat16"  # both are valid
    step, model = stepped(name, dtype=dtype)
    params, state = jax.eval_shape(model.init, jax.random.key(0))
    x, key = inputs(name), jax.random.key(2)
    grads, (logits, after) = jax.eval_shape(step, params, state, x, key)
    for tree in (params, state, grads, logits, after):
        found = {leaf.dtype.name for leaf in jax.tree.leaves(tree)}
        assert found <= {"float32"}
    program = str(jax.make_jaxpr(step)(params, state, x, key))
    heavy = [
        line
        for line in program.splitlines()
        if "= dot_general[" in line or "= conv_general_dilated[" in line
    ]
    # all but the last layer and its gradients
    inside = [line for line in heavy if "bf16[" in line.split("=")[0]]
    assert len(heavy) > 4
    assert len(inside) > 0.6 * len(heavy)


@pytest.mark.full  # every model twice
@pytest.mark.parametrize("name", MAKE)
def test_bfloat16_is_close_to_float32(name):
    """To some of the three digits that bfloat16 has, in evaluation."""
    x = inputs(name)
    models_of = [stepped(name, dtype=dtype)[1] for dtype in (jnp.float32, "bfloat16")]
    params, state = jax.jit(models_of[0].init)(jax.random.key(0))
    key = jax.random.key(0)
    full, half = (
        jax.jit(lambda p, s, m=m: m.apply(p, s, x, key, False)[0])(params, state)
        for m in models_of
    )
    assert (full != half).any()
    scale = float(abs(full).max())
    np.testing.assert_allclose(full, half, rtol=0, atol=0.05 * scale)


@pytest.mark.full  # two training steps of every model
@pytest.mark.parametrize("name", WITH_REMAT)
def test_remat_changes_nothing_but_memory(name):
    """Gradients, logits, and statistics that moved once, with the same dropout."""
    plain, again = stepped(name), stepped(name, remat=True)
    compared(name, plain, again, atol=1e-6)


@pytest.mark.parametrize("name", quick(WITH_REMAT, "vit"))
def test_remat_keeps_less(name):
    x, key = inputs(name), jax.random.key(2)
    kept = []
    for remat in (False, True):
        step, model = stepped(name, remat=remat)
        params, state = jax.eval_shape(model.init, jax.random.key(0))
        assert ("remat" in str(jax.make_jaxpr(step)(params, state, x, key))) == remat

        def residuals(params, state, model=model):
            def forward(params):
                return (model.apply(params, state, x, key, True)[0] ** 2).sum()

            return jax.tree.leaves(jax.vjp(forward, params)[1])

        leaves = jax.eval_shape(residuals, params, state)
        kept.append(sum(leaf.size * leaf.dtype.itemsize for leaf in leaves))
    assert kept[1] < 0.8 * kept[0]


@pytest.mark.full  # two training steps of every model
@pytest.mark.parametrize("name", WITH_REMAT)
def test_remat_of_vmapped_replicas(name):
    step, model = stepped(name, remat=True)
    first = jax.device_get(jax.jit(model.init)(jax.random.key(0)))
    x, keys = inputs(name), jax.random.split(jax.random.key(2), 2)
    many = jax.tree.map(lambda leaf: np.stack([leaf, np.float32(1.1) * leaf]), first)
    together = jax.jit(jax.vmap(step))(*many, jnp.stack([x, x]), keys)
    alone = jax.jit(step)
    for k in range(2):
        one = alone(*jax.tree.map(lambda leaf, k=k: leaf[k], many), x, keys[k])
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(together), strict=True):
            scale = max(1.0, float(abs(a).max()))
            np.testing.assert_allclose(a, b[k], rtol=0, atol=2e-5 * scale)
