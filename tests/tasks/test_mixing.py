"""Mixup and CutMix: their formulas, what is drawn, and the loss of a task."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from quick import quick

from hetjax import output
from hetjax.data.batching import Bucket, make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.tasks import augment, classification, from_functions

KEY = jax.random.key(0)
B, H, W, C = 8, 6, 9, 2
MIXES = {
    "mixup": augment.mixup(0.8),
    "mixup of each": augment.mixup(0.8, per_example=True),
    "cutmix": augment.cutmix(1.0),
    "cutmix of each": augment.cutmix(1.0, per_example=True),
}


def images(count=B, seed=0):
    """Images whose pixels are all different."""
    x = np.random.default_rng(seed).permutation(count * H * W * C)
    return x.reshape(count, H, W, C).astype(np.float32)


COMPILED = {name: jax.jit(mix) for name, mix in MIXES.items()}
CHOSEN = quick(MIXES, "mixup", "cutmix of each")


@pytest.mark.parametrize("name", CHOSEN)
def test_the_result_is_made_of_the_pair(name):
    x = images()
    mixed, partner, share = jax.device_get(COMPILED[name](KEY, x))
    assert mixed.shape == x.shape
    assert np.issubdtype(partner.dtype, np.integer)
    np.testing.assert_array_equal(np.sort(partner), np.arange(B))
    assert share.shape == (B,)
    assert len(np.unique(share)) == (B if name == "mixup of each" else 1) or (
        name == "cutmix of each" and len(np.unique(share)) > 2
    )
    for i in range(B):
        own, other = x[i], x[partner[i]]
        if "mixup" in name:
            expected = share[i] * own + (1 - share[i]) * other
            np.testing.assert_allclose(mixed[i], expected, rtol=1e-5)
            continue
        taken = (mixed[i] == other).all(-1)
        kept = (mixed[i] == own).all(-1)
        assert (taken | kept).all()
        if partner[i] != i:
            np.testing.assert_allclose(share[i], kept.mean(), rtol=1e-6)
            rows, columns = taken.any(1), taken.any(0)
            np.testing.assert_array_equal(taken, np.outer(rows, columns))  # a box


@pytest.mark.full  # three programs
def test_one_of_takes_one_for_each_batch():
    first, second = augment.mixup(0.5), augment.cutmix(1.0)
    parts = jax.jit(lambda key, x: (first(key, x), second(key, x)))
    either = jax.jit(augment.one_of(first, second))
    x, found = images(), []
    for seed in range(8):
        _, key = jax.random.split(jax.random.key(seed))
        result = np.asarray(either(jax.random.key(seed), x)[0])
        each = jax.device_get(parts(key, x))
        found.append([np.allclose(result, part[0]) for part in each])
    assert np.sum(found, 1).tolist() == [1] * 8
    assert np.sum(found, 0).min() > 0


@pytest.mark.full  # 20,000 draws by rejection
@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_are_of_a_beta_distribution(alpha):
    count = 20_000
    mix = jax.jit(augment.mixup(alpha, per_example=True))
    share = np.asarray(mix(KEY, jnp.zeros((count, 1)))[2], np.float64)
    assert ((share >= 0) & (share <= 1)).all()
    variance = 1 / (4 * (2 * alpha + 1))
    # five standard errors: the fourth central moment is at most variance / 4
    assert abs(share.mean() - 0.5) < 5 * np.sqrt(variance / count)
    assert abs(share.var() - variance) < 5 * np.sqrt(variance / 4 / count)


@pytest.mark.full
def test_boxes_have_the_area_and_the_centre_of_the_paper():
    """Of 40 x 60 pixels, those at the border are cut off."""
    count, height, width = 4000, 40, 60
    x = jnp.broadcast_to(
        jnp.arange(count, dtype=jnp.float32)[:, None, None, None],
        (count, height, width, 1),
    )
    mixed, partner, _ = jax.jit(augment.cutmix(1.0, per_example=True))(KEY, x)
    box = np.asarray(mixed != x)[..., 0][np.asarray(partner) != np.arange(count)]
    rows, columns = box.any(2).sum(1), box.any(1).sum(1)
    # whole boxes: h / H and w / W are the same, but for whole pixels
    inner = ~(box[:, 0].any(1) | box[:, -1].any(1) | box[:, :, 0].any(1))
    inner &= ~box[:, :, -1].any(1) & (rows > 0) & (columns > 0)
    difference = rows[inner] / height - columns[inner] / width
    assert np.abs(difference).max() <= 1 / height
    # 1 - lambda is uniform, and sqrt of it has the mean 2/3; a side has on average
    # this part of it within the image: 1 - side / 4
    expected = 2 / 3 - 1 / 8
    assert abs(rows.mean() / height - expected) < 0.5 / height + 5 * 0.2 / count**0.5
    assert abs(columns.mean() / width - expected) < 0.5 / width + 5 * 0.2 / count**0.5
    # a center is anywhere: what is covered lies evenly to both sides
    middle = box.mean(0)
    np.testing.assert_allclose(middle[:20].mean(), middle[20:].mean(), atol=0.03)
    np.testing.assert_allclose(middle[:, :30].mean(), middle[:, 30:].mean(), atol=0.03)


@pytest.mark.full
def test_probabilities_choose():
    x = images()
    mix = jax.jit(
        augment.one_of(augment.mixup(), augment.cutmix(), probabilities=(0.0, 1.0))
    )
    for seed in range(4):
        mixed, partner, _ = mix(jax.random.key(seed), x)
        assert ((mixed == x) | (mixed == x[partner])).all()


@pytest.mark.parametrize("name", CHOSEN)
def test_the_key_decides(name):
    x, mix = images(), COMPILED[name]
    found = [mix(jax.random.key(seed), x) for seed in (0, 0, 1)]
    one, again, other = jax.device_get(found)
    chex.assert_trees_all_equal(one, again)
    assert (one[0] != other[0]).any()
    assert (one[1] != other[1]).any()
    assert (one[2] != other[2]).any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: augment.mixup(0), "alpha=0"),
        (lambda: augment.cutmix(-1), "alpha=-1"),
        (lambda: augment.cutmix()(KEY, np.ones((2, 3))), "cutmix needs images"),
        (lambda: augment.one_of(), "nothing to choose from"),
        (lambda: augment.one_of(augment.mixup(), probabilities=(0.5,)), "sum to one"),
        (lambda: augment.one_of(augment.mixup(), probabilities=(0, 1)), "1 numbers"),
    ],
)
def test_wrong_options_are_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# In a task.

CLASSES = 5


def losses_of(z, y):
    """The cross entropy of logits, in NumPy and float64."""
    z = np.asarray(z, np.float64)
    return np.log(np.exp(z).sum(-1)) - z[np.arange(len(y)), y]


def linear(data):
    """A linear model; its weights are its parameters."""

    def init(key):
        return 0.01 * jax.random.normal(key, (data.num_features, CLASSES))

    return from_functions(init, lambda w, x: x.reshape(x.shape[0], -1) @ w)


def data_of(count=11, name="photos"):
    x = images(count) / (count * H * W * C)
    y = np.arange(count, dtype=np.int32) % CLASSES
    return Dataset(Split(x, y), Split(x, y), CLASSES, name)


def padded_batch(data):
    """Seven examples in the bucket of eight."""
    batch = make_batch(data.train, np.arange(2, 9), (Bucket(8),))
    assert len(batch.weight) == 8
    assert batch.weight.sum() == 7
    return batch


@pytest.mark.parametrize("name", CHOSEN)
def test_the_loss_is_that_of_both_labels(name):
    """Of padding, too: it has the inputs and the labels of true examples."""
    data = data_of()
    seen = []

    def mix(key, x):
        mixed = MIXES[name](key, x)
        seen.append((x, *mixed))
        return mixed

    options = {"augment": augment.flip(1), "normalize": (0.5, 2.0)}
    task = classification(linear(data), data, mix=mix, **options)
    batch, w = padded_batch(data), np.asarray(task.init(KEY)[0])
    seen.clear()  # of shapes
    loss = jax.jit(lambda w: (task.loss(w, (), batch, KEY)[0], seen.pop()))
    losses, (before, x, partner, share) = jax.device_get(loss(w))
    flipped = batch.x[:, :, ::-1]  # in training only; mixing comes last
    np.testing.assert_allclose(before, (flipped - 0.5) / 2, rtol=1e-5)
    for i in range(8):
        z = np.reshape(x[i : i + 1], (1, -1)) @ w
        own, other = (losses_of(z, batch.y[[j]])[0] for j in (i, partner[i]))
        expected = share[i] * own + (1 - share[i]) * other
        np.testing.assert_allclose(losses[i], expected, rtol=1e-5)
    # a row of padding is a true example, with its label
    assert (batch.x[7] == batch.x[0]).all()
    assert batch.y[7] == batch.y[0]


def test_augmentation_and_mixing_draw_with_different_keys():
    seen = []

    def remember(key, x):
        if not isinstance(x, jax.core.Tracer):  # shapes are inferred beforehand
            seen.append(tuple(np.asarray(jax.random.key_data(key))))
        return x

    def mix(key, x):
        return remember(key, x), jnp.arange(len(x)), jnp.ones(len(x))

    data = data_of()
    task = classification(linear(data), data, augment=remember, mix=mix)
    task.loss(task.init(KEY)[0], (), padded_batch(data), KEY)
    assert len(set(seen)) == 2
    assert tuple(np.asarray(jax.random.key_data(KEY))) not in seen


def test_partners_of_one_class_change_nothing_in_the_loss_of_labels():
    """Shares sum to one: with one class, the loss is that of the mixed inputs."""
    x = images(6) / 1000
    y = np.zeros(6, np.int32)
    data = Dataset(Split(x, y), Split(x, y), CLASSES)
    mix = augment.mixup(1.0)
    task = classification(linear(data), data, mix=lambda _, x: mix(KEY, x))
    batch = make_batch(data.train, np.arange(6), make_buckets(data.train, 6))
    w = np.asarray(task.init(KEY)[0])
    loss = jax.jit(lambda w: task.loss(w, (), batch, jax.random.key(3))[0])
    losses, mixed = loss(w), np.asarray(jax.jit(mix)(KEY, batch.x)[0])
    expected = losses_of(mixed.reshape(6, -1) @ w, batch.y)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_evaluation_does_not_mix_and_each_step_draws_again():
    data = data_of()
    plain = classification(linear(data), data)
    task = classification(linear(data), data, mix=augment.mixup(1.0))
    batch, w = padded_batch(data), task.init(KEY)[0]
    found, expected = (jax.jit(t.metrics)(w, (), batch) for t in (task, plain))
    chex.assert_trees_all_equal(found, expected)
    loss = jax.jit(lambda key: task.loss(w, (), batch, key)[0])
    one, again, other = (loss(jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert (np.asarray(one) != other).any()


def test_bytes_are_mixed_as_floats():
    x = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4)
    data = Dataset(Split(x, np.arange(6) % CLASSES), Split(x, np.zeros(6)), CLASSES)
    seen = []

    def mix(key, x):
        seen.append(x.dtype)
        return augment.mixup()(key, x)

    classification(linear(data), data, mix=mix)
    assert seen
    assert set(seen) == {np.dtype(np.float32)}


def test_sets_of_labels_and_other_output_layers_are_errors():
    y = sp.csr_array(np.eye(6, CLASSES, dtype=np.float32))
    x = images(6)
    several = Dataset(Split(x, y), Split(x, y), CLASSES, "tags")
    with pytest.raises(ValueError, match="tags: mix needs one class"):
        classification(linear(several), several, mix=augment.mixup())
    data = data_of()
    for layer in ("chunked", "sampled", "slide", output.chunked()):
        with pytest.raises(ValueError, match="does not train on mixed examples"):
            classification(linear(data), data, mix=augment.mixup(), output=layer)
    rows = sp.csr_array(np.eye(6, dtype=np.float32))
    sparse = Dataset(Split(rows, np.arange(6)), Split(rows, np.arange(6)), 6, "rows")
    with pytest.raises(ValueError, match="need dense inputs, one array, and so does"):
        classification(linear(sparse), sparse, mix=augment.mixup())


@pytest.mark.parametrize(
    "mix",
    [
        lambda key, x: x,
        lambda key, x: (x, jnp.arange(2), jnp.ones(())),
        lambda key, x: (x[:, :1], jnp.arange(2), jnp.ones(2)),
        lambda key, x: (x, jnp.ones(2), jnp.ones(2)),
    ],
)
def test_a_wrong_mix_is_an_error(mix):
    data = data_of()
    with pytest.raises(ValueError, match=r"mix returns .*return \(x \[2, 6, 9, 2\]"):
        classification(linear(data), data, mix=mix)
