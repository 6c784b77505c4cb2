"""Augmentation: against plain NumPy, per key, and in training only."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from flax import nnx
from quick import quick_if

from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks import augment, classification, from_functions

B, H, W, C = 64, 5, 7, 3


def images(seed=0, shape=(B, H, W, C)):
    """Images whose pixels are all different and not zero."""
    x = 1 + np.random.default_rng(seed).permutation(np.prod(shape))
    return x.reshape(shape).astype(np.float32)


def crops_of(image, padding, fill=0.0):
    """All crops of a padded image, by offset."""
    border = np.broadcast_to(np.float32(fill), (C,))
    padded = np.tile(border, (H + 2 * padding, W + 2 * padding, 1))
    padded[padding : padding + H, padding : padding + W] = image
    duration = range(2 * padding + 1)
    return {(i, j): padded[i : i + H, j : j + W] for i in duration for j in duration}


def which(result, crops):
    """The offset of the one crop that equals the result."""
    (found,) = [at for at, crop in crops.items() if np.array_equal(result, crop)]
    return found


# (fill, jit); each operation is compiled without it
CROPS = [(0.0, True), (0.5, True), ((0.1, 0.2, 0.3), True), (0.5, False)]


@pytest.mark.parametrize(("fill", "jit"), quick_if(lambda row: row[1], CROPS))
def test_every_result_is_a_crop_of_its_image(fill, jit):
    apply = augment.pad_crop(2, fill=fill)
    x = images()
    y = np.asarray((jax.jit(apply) if jit else apply)(jax.random.key(0), x))
    assert y.dtype == x.dtype
    offsets = [
        which(result, crops_of(image, 2, fill))
        for result, image in zip(y, x, strict=True)
    ]
    assert len(set(offsets)) > 15  # of 25, in 64 draws


def test_all_places_are_equally_likely():
    """The bright pixel in the middle tells the offset."""
    count = 20_000
    x = np.zeros((count, 3, 3, 1), np.float32)
    x[:, 1, 1] = 1
    y = jax.jit(augment.pad_crop(1))(jax.random.key(0), x)
    share = np.asarray(y).mean(0)[..., 0]
    # five standard errors of a share of 1/9
    np.testing.assert_allclose(share, 1 / 9, atol=5 * np.sqrt(8 / 81 / count))


def test_without_padding_nothing_changes():
    x = images()
    y = augment.pad_crop(0)(jax.random.key(0), x)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("jit", [True, False])
def test_flip_mirrors_left_and_right(jit):
    x = images()
    apply = augment.flip(0.25)
    y = np.asarray((jax.jit(apply) if jit else apply)(jax.random.key(1), x))
    flipped = [np.array_equal(a, b[:, ::-1]) for a, b in zip(y, x, strict=True)]
    kept = [np.array_equal(a, b) for a, b in zip(y, x, strict=True)]
    np.testing.assert_array_equal(flipped, ~np.array(kept))
    assert 4 <= sum(flipped) <= 28  # 16 expected, 3.5 standard deviations
    for probability, expected in ((0, x), (1, x[:, :, ::-1])):
        y = jax.jit(augment.flip(probability))(jax.random.key(1), x)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_normalize(dtype):
    x, mean, std = images(), (0.5, 1.0, 2.0), np.array([1.0, 2.0, 4.0])
    y = augment.normalize(mean, std)(jax.random.key(0), jnp.asarray(x, dtype))
    assert y.dtype == dtype
    tolerance = 1e-6 if dtype == jnp.float32 else 2e-2  # of eight bits
    np.testing.assert_allclose(
        np.asarray(y, np.float32), (x - mean) / std, rtol=tolerance, atol=tolerance
    )
    flat = augment.normalize(0.5, 2)(jax.random.key(0), x[:, 0, 0])
    np.testing.assert_allclose(flat, (x[:, 0, 0] - 0.5) / 2, rtol=1e-6)


def test_chain_applies_its_parts_in_order_with_different_keys():
    x = images()
    crop, flip = augment.pad_crop(2), augment.flip()
    key = jax.random.key(3)
    keys = jax.random.split(key)
    both = jax.jit(augment.chain(crop, flip))(key, x)
    cropped = jax.jit(crop)(keys[0], x)
    np.testing.assert_array_equal(both, jax.jit(flip)(keys[1], cropped))
    np.testing.assert_array_equal(augment.chain()(key, x), x)
    twice = jax.jit(augment.chain(augment.flip(), augment.flip()))(key, x)
    assert (np.asarray(twice) != x).any()  # one key for both would undo the first


@pytest.mark.parametrize("make", [lambda: augment.pad_crop(2), augment.flip])
def test_the_key_decides(make):
    x = images()
    apply = jax.jit(make())
    one, again, other = (apply(jax.random.key(seed), x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.pad_crop(-1), "padding=-1: pass a whole number of at least 0"),
        (lambda: augment.pad_crop(1.5), "padding=1.5"),  # pyright: ignore
        (lambda: augment.pad_crop(fill=np.nan), "fill=nan"),
        (lambda: augment.flip(1.5), "probability=1.5"),
        (lambda: augment.normalize(0, 0), "std=0: pass a number above 0"),
        (lambda: augment.normalize(0, (1, -1, 1)), "std="),
        (
            lambda: augment.normalize(np.zeros((2, 2)), 1),
            "mean=.*: pass a finite number or a sequence",
        ),
    ],
)
def test_wrong_options_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("apply", "x", "message"),
    [
        (
            augment.pad_crop(),
            np.ones((2, 9)),
            r"pad_crop needs images .* x is \[2, 9\]",
        ),
        (augment.flip(), np.ones((2, 9, 9)), r"flip needs images .* \[2, 9, 9\]"),
        (augment.pad_crop(fill=(1, 2)), np.ones((1, 2, 2, 3)), "fill has 2 values"),
        (augment.normalize((1, 2), 1), np.ones((1, 2, 2, 3)), "mean has 2 values"),
        (
            augment.normalize(1, (1, 2)),
            np.ones((1, 2, 2, 3)),
            "std has 2 .* 3 channels",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_errors(apply, x, message):
    with pytest.raises(ValueError, match=message):
        apply(jax.random.key(0), x)


# In a task.

CLASSES = H * W * C


def task_and_batch(**options):
    """The logits of an image are its pixels."""
    x = images(shape=(6, H, W, C)) / (6 * CLASSES)
    y = np.arange(6, dtype=np.int32)
    data = Dataset(Split(x, y), Split(x, y), CLASSES)
    model = from_functions(lambda key: (), lambda params, x: x.reshape(x.shape[0], -1))
    batch = make_batch(data.train, np.arange(6), make_buckets(data.train, 6))
    return classification(model, data, **options), batch


def losses_of(x, y):
    """The cross entropy of pixels as logits, in NumPy and float64."""
    z = np.reshape(x, (len(y), -1)).astype(np.float64)
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]


def test_training_augments_and_evaluation_does_not():
    task, batch = task_and_batch(augment=augment.flip(1))
    losses, _ = jax.jit(task.loss)((), (), batch, jax.random.key(0))
    flipped = losses_of(batch.x[:, :, ::-1], batch.y)
    np.testing.assert_allclose(losses, flipped, rtol=1e-6)
    plain = losses_of(batch.x, batch.y)
    assert (np.abs(plain - flipped) > 1e-4).any()
    values = jax.jit(task.metrics)((), (), batch)
    np.testing.assert_allclose(values["loss"], plain, rtol=1e-6)


@pytest.mark.parametrize(
    "normalize", [(0.5, 0.1), [0.5, np.full(C, 0.1)], augment.normalize(0.5, 0.1)]
)
def test_both_normalise_and_training_does_so_last(normalize):
    def doubled(key, x):
        return 2 * x

    task, batch = task_and_batch(augment=doubled, normalize=normalize)
    losses, _ = jax.jit(task.loss)((), (), batch, jax.random.key(0))
    expected = losses_of((2 * batch.x - 0.5) / 0.1, batch.y)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    values = jax.jit(task.metrics)((), (), batch)
    expected = losses_of((batch.x - 0.5) / 0.1, batch.y)
    np.testing.assert_allclose(values["loss"], expected, rtol=1e-5)


def test_each_step_draws_again_and_repeatably():
    task, batch = task_and_batch(augment=augment.pad_crop(2))
    loss = jax.jit(lambda key: task.loss((), (), batch, key)[0])
    one, again, other = (loss(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()


class Noisy(nnx.Module):
    """A model whose logits are its inputs; it records its random draws."""

    def __init__(self, num_features, num_classes, *, rngs):
        self.rngs = nnx.Rngs(dropout=rngs.params(), params=rngs.params())
        self.weight = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        drawn = [
            jax.random.key_data(self.rngs.dropout()),
            jax.random.key_data(self.rngs.params()),
        ]
        if not isinstance(x, jax.core.Tracer):  # shapes are inferred beforehand
            SEEN.append(np.stack([np.asarray(key) for key in drawn]))
        return self.weight * x.reshape(x.shape[0], -1)


SEEN = []


def test_augmentation_does_not_change_the_models_keys():
    """Adding an augmentation changes the images, not the draws of dropout."""
    SEEN.clear()
    keys = []

    def remember(key, x):
        if not isinstance(x, jax.core.Tracer):  # shapes are inferred beforehand
            keys.append(np.asarray(jax.random.key_data(key)))
        return x

    _, batch = task_and_batch()
    data = Dataset(Split(batch.x, batch.y), Split(batch.x, batch.y), CLASSES)
    for options in ({}, {"augment": remember}):
        task = classification(Noisy, data, **options)
        params, state = task.init(jax.random.key(0))
        task.loss(params, state, batch, jax.random.key(7))
    step_key = jax.random.key(7)
    streams = [jax.random.fold_in(step_key, i) for i in range(9)]  # which nnx starts at
    others = [np.asarray(jax.random.key_data(key)) for key in (step_key, *streams)]
    np.testing.assert_array_equal(SEEN[0], SEEN[1])
    assert len(keys) == 1
    for other in (*others, *SEEN[1]):
        assert (keys[0] != other).any()


def test_sparse_inputs_are_not_augmented():
    x, y = sp.csr_array(np.eye(3, dtype=np.float32)), np.arange(3)
    data = Dataset(Split(x, y), Split(x, y), 3, "rows")
    model = from_functions(lambda key: (), lambda params, x: x)
    for options in ({"augment": augment.flip()}, {"normalize": (0, 1)}):
        with pytest.raises(ValueError, match="rows: augment and normalize need dense"):
            classification(model, data, **options)


@pytest.mark.parametrize("normalize", [0.5, (1, 2, 3), "mean"])
def test_a_wrong_normalize_is_an_error(normalize):
    with pytest.raises(ValueError, match=r"normalize=.*a sequence of 2 values"):
        task_and_batch(normalize=normalize)
