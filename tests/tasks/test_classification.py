"""Losses and metrics of classification against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from hetjax.data.batching import Bucket, make_batch, make_buckets
from hetjax.data.dataset import Dataset, Split
from hetjax.models import linear, sparse_mlp
from hetjax.tasks import classification, from_functions
from hetjax.tasks.classification import cross_entropy

N, CLASSES = 9, 7


def random_logits(seed=0, classes=CLASSES):
    return 5 * np.random.default_rng(seed).normal(size=(N, classes)).astype(np.float32)


def random_labels(seed=0, classes=CLASSES):
    """Labels [N, C] of zeros and ones; row 3 has no label, row 4 has all."""
    labels = np.random.default_rng(seed).random((N, classes)) < 0.3
    labels[3], labels[4] = False, True
    return labels.astype(np.float32)


def log_softmax(logits):
    z = logits.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def mean_loss_of_labels(logits, labels):
    share = labels / np.maximum(labels.sum(1, keepdims=True), 1)
    return -(share * log_softmax(logits)).sum(1)


def multilabel_batch(logits, labels, size=N):
    """A batch of examples whose inputs are their logits, padded to `size`."""
    split = Split(logits, sp.csr_array(labels))
    return make_batch(split, np.arange(N), (Bucket(size, (labels.size,)),))


def identity_task(split, classes=CLASSES):
    """Classification by a model whose outputs are its inputs."""
    model = from_functions(lambda key: (), lambda params, x: x)
    return classification(model, Dataset(split, split, classes))


def test_cross_entropy_with_class_ids():
    logits = random_logits()
    y = np.random.default_rng(1).integers(CLASSES, size=N)
    expected = -log_softmax(logits)[np.arange(N), y]
    np.testing.assert_allclose(cross_entropy(logits, y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [N, N + 3])
def test_cross_entropy_with_several_labels(size):
    """Each true label has the share 1/|labels|; without labels the loss is zero."""
    logits, labels = random_logits(), random_labels()
    expected = mean_loss_of_labels(logits, labels)
    batch = multilabel_batch(logits, labels, size)
    losses = jax.jit(cross_entropy)(batch.x, batch.y)
    np.testing.assert_allclose(losses[:N], expected, rtol=1e-5, atol=1e-6)
    assert losses[3] == 0
    assert (losses[N:] == 0).all()


def test_cross_entropy_of_large_and_of_half_precision_logits():
    logits = jnp.array([[1e4, 0.0, -1e4]], jnp.bfloat16)
    losses = [cross_entropy(logits, jnp.array([c])) for c in range(3)]
    assert all(x.dtype == jnp.float32 for x in losses)
    exact = np.asarray(logits, np.float64)[0]
    np.testing.assert_allclose(np.ravel(losses), exact[0] - exact)


def test_accuracy():
    logits = random_logits()
    y = np.random.default_rng(1).integers(CLASSES, size=N).astype(np.int32)
    y[:3] = logits[:3].argmax(1)
    split = Split(logits, y)
    task = identity_task(split)
    values = task.metrics((), (), make_batch(split, np.arange(N), (Bucket(N, (0,)),)))
    assert task.metric == "accuracy"
    assert values.keys() == {"loss", "accuracy"}
    np.testing.assert_array_equal(values["accuracy"], logits.argmax(1) == y)
    np.testing.assert_allclose(values["loss"], cross_entropy(logits, y))


@pytest.mark.parametrize("size", [N, N + 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_precision_at_k_is_hits_among_the_top_over_k(seed, size):
    logits, labels = random_logits(seed), random_labels(seed)
    task = identity_task(Split(logits, sp.csr_array(labels)))
    values = jax.jit(task.metrics)((), (), multilabel_batch(logits, labels, size))
    assert task.metric == "p@1"
    assert values.keys() == {"loss", "p@1", "p@3", "p@5"}
    best_first = np.argsort(-logits, 1)
    for k in (1, 3, 5):
        hits = np.take_along_axis(labels, best_first[:, :k], 1).sum(1)
        np.testing.assert_allclose(values[f"p@{k}"][:N], hits / k, rtol=1e-6)
        assert values[f"p@{k}"][3] == 0  # no label
        assert values[f"p@{k}"][4] == 1  # all labels


def test_no_precision_beyond_the_number_of_classes():
    logits, labels = random_logits(classes=4), random_labels(classes=4)
    task = identity_task(Split(logits, sp.csr_array(labels)), classes=4)
    values = task.metrics((), (), multilabel_batch(logits, labels))
    assert values.keys() == {"loss", "p@1", "p@3"}


def test_metrics_of_a_split_without_any_label():
    logits, labels = random_logits(), np.zeros((N, CLASSES), np.float32)
    task = identity_task(Split(logits, sp.csr_array(labels)))
    values = task.metrics((), (), multilabel_batch(logits, labels))
    assert all((v == 0).all() for v in values.values())


def test_the_loss_of_a_task_is_that_of_its_logits():
    """For a sparse model on sparse inputs; its row weight is found."""
    x = sp.random_array((N, 20), density=0.2, dtype=np.float32, rng=0).tocsr()
    split = Split(sp.csr_array(x), sp.csr_array(random_labels()))
    data = Dataset(split, split, CLASSES)
    task = classification(sparse_mlp(hidden=3), data)
    params, state = jax.jit(task.init)(jax.random.key(0))
    batch = make_batch(split, np.arange(N), make_buckets(split, N))
    losses, after = jax.jit(task.loss)(params, state, batch, jax.random.key(1))
    w = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    hidden = np.maximum(x @ w["kernel_in"] + w["bias_in"], 0)
    logits = hidden @ w["kernel_out"].T + w["bias_out"]
    expected = mean_loss_of_labels(logits, random_labels())
    np.testing.assert_allclose(losses[:N], expected, rtol=1e-5, atol=1e-6)
    assert after == state == {}
    assert task.row_params == ("kernel_in",)


def test_the_gradient_of_a_linear_model_is_that_of_logistic_regression():
    """At zero, where it starts, all labels are alike; sparse steps see its rows."""
    x = sp.random_array((N, 20), density=0.2, dtype=np.float32, rng=0).tocsr()
    labels = np.arange(N) % CLASSES
    split = Split(sp.csr_array(x), labels.astype(np.int32))
    task = classification(linear(), Dataset(split, split, CLASSES))
    assert task.row_params == ("kernel",)
    params, state = task.init(jax.random.key(0))
    assert not any(leaf.any() for leaf in jax.tree.leaves(params))
    batch = make_batch(split, np.arange(N), make_buckets(split, N))

    def mean_loss(params):
        losses, _ = task.loss(params, state, batch, jax.random.key(1))
        return (losses * batch.weight).sum() / N

    loss, found = jax.jit(jax.value_and_grad(mean_loss))(params)
    assert loss == pytest.approx(np.log(CLASSES), rel=1e-6)
    errors = 1 / CLASSES - np.eye(CLASSES)[labels]
    np.testing.assert_allclose(found["kernel"], x.T @ errors / N, atol=1e-6)
    np.testing.assert_allclose(found["bias"], errors.mean(0), atol=1e-6)
