"""Transforms that change the shape of images: the model is built for what it sees."""

import jax
import numpy as np
import pytest
from flax import linen, nnx
from quick import quick

from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks import augment, classification, regression

KEY = jax.random.key(0)
PIXELS = 4 * 5 * 3  # of the images that the model sees
TRAIN = augment.chain(augment.random_crop((6, 6)), augment.resize((4, 5)))
TEST = augment.chain(augment.resize((4, 5)), augment.normalize(100, 50))
MAKES = {"classification": classification, "regression": regression}


def data_of(name):
    """Six images of 8 x 9 bytes."""
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 9, 3)).astype(np.uint8)
    y = np.arange(6, dtype=np.int32) % 3
    classes = 3 if name == "classification" else 0
    y = y if classes else y.astype(np.float32)
    return Dataset(Split(x, y), Split(x, y), classes, "photos")


class Flat(nnx.Module):
    def __init__(self, num_features, num_outputs, *, rngs):
        assert num_features == PIXELS
        self.dense = nnx.Linear(num_features, num_outputs, rngs=rngs)

    def __call__(self, x):
        assert x.shape[1:] == (4, 5, 3)
        return self.dense(x.reshape(x.shape[0], -1))


class FlatLinen(linen.Module):
    outputs: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.outputs)(x.reshape(x.shape[0], -1))


@pytest.mark.parametrize(
    ("given", "example"),
    [
        ({"augment": augment.flip}, r"augment=.*pass a function, .*flip\(\)"),
        ({"mix": augment.mixup}, r"mix=.*pass a function, such as .*mixup\(0.2\)"),
        ({"mix": "mixup"}, "mix='mixup': pass a function or None"),
        ({"augment": (0.5, 0.5)}, r"augment=\(0.5, 0.5\): pass a function"),
    ],
)
def test_what_is_no_transform_is_named(given, example):
    with pytest.raises(ValueError, match=example):
        classification(Flat, data_of("classification"), **given)


@pytest.mark.parametrize(
    ("kind", "name"),
    quick(
        [(kind, name) for kind in ("nnx", "linen") for name in MAKES],
        ("nnx", "classification"),
        ("linen", "regression"),
    ),
)
def test_the_model_has_the_features_of_what_it_sees(kind, name):
    data = data_of(name)
    model = Flat if kind == "nnx" else FlatLinen(3 if data.num_classes else 1)
    task = MAKES[name](model, data, augment=TRAIN, normalize=TEST)
    params, state = jax.jit(task.init)(KEY)
    assert PIXELS in [leaf.shape[0] for leaf in jax.tree.leaves(params)]
    batch = make_batch(data.train, np.arange(6), make_buckets(data.train, 6))
    losses, _ = jax.jit(task.loss)(params, state, batch, KEY)
    assert losses.shape == (6,)
    assert np.isfinite(losses).all()
    values = jax.jit(task.metrics)(params, state, batch)
    assert values["loss"].shape == (6,)


def test_evaluation_resizes():
    data = data_of("classification")
    task = classification(Flat, data, augment=TRAIN, normalize=TEST)
    params, state = jax.jit(task.init)(KEY)
    batch = make_batch(data.test, np.arange(6), make_buckets(data.test, 6))
    x = np.asarray(jax.jit(TEST)(KEY, np.float32(batch.x)))
    kernel, bias = (np.asarray(params["dense"][part]) for part in ("kernel", "bias"))
    z = x.reshape(6, -1) @ kernel + bias
    expected = np.log(np.exp(z).sum(1)) - z[np.arange(6), batch.y]
    values = jax.jit(task.metrics)(params, state, batch)
    np.testing.assert_allclose(values["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize("name", MAKES)
def test_training_and_evaluation_see_the_same_shape(name):
    data = data_of(name)
    with pytest.raises(
        ValueError,
        match=r"photos: an example is \[4, 5, 3\] in training.*\[8, 9, 3\] in evalua",
    ):
        MAKES[name](Flat, data, augment=TRAIN)


def test_examples_stay_apart():
    data = data_of("classification")
    with pytest.raises(
        ValueError, match=r"must preserve the first axis.*\[1, 8, 9, 3\]"
    ):
        classification(Flat, data, augment=lambda key, x: x[:1])


def test_a_linen_module_sees_floats():
    """Its parameters take their shapes from what evaluation gives it."""
    seen = []

    class Seeing(linen.Module):
        @linen.compact
        def __call__(self, x):
            seen.append((x.shape[1:], x.dtype))
            return linen.Dense(3)(x.reshape(x.shape[0], -1))

    task = classification(Seeing(), data_of("classification"), normalize=TEST)
    task.init(KEY)
    assert set(seen) == {((4, 5, 3), np.dtype(np.float32))}
