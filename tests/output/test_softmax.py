"""The chunked softmax against NumPy in float64, and against the full one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from quick import quick
from softmax_oracle import SHARES, Problem, close

from hetjax import sparse
from hetjax.output import softmax
from hetjax.tasks.classification import cross_entropy

CHUNKS = (1, 4, 10, 11, 100)  # of 11 labels
# every kind of targets, and every chunk with several labels
CASES = [(kind, 4) for kind in SHARES] + [("several", c) for c in CHUNKS if c != 4]


def by_hand(h, w, b, targets, scale, chunk):
    losses, dh, grad = softmax.loss_and_grads(h, w, b, targets, scale, chunk)
    return losses, dh, *grad.arrays()


def automatic(h, w, b, targets, scale, chunk):
    def total(h, w, b):
        losses = softmax.cross_entropy(h, w, b, targets, chunk)
        return jnp.sum(losses * scale), losses

    grads, losses = jax.grad(total, argnums=(0, 1, 2), has_aux=True)(h, w, b)
    return losses, *grads


def moved(h, w, b, targets, scale, chunk):
    """The weights after a step of SGD at the rate 0.3."""
    grad = softmax.loss_and_grads(h, w, b, targets, scale, chunk)[2]
    parts = {"w": grad, "b": sparse.WithKernel()}
    after = sparse.subtract({"w": w, "b": b}, parts, jnp.float32(0.3))
    return after["w"], after["b"]


WAYS = (by_hand, automatic, moved)


@partial(jax.jit, static_argnames="chunk")
def compiled(*given, chunk):
    """One program of all ways, which all kinds of targets share."""
    return {way.__name__: way(*given, chunk) for way in WAYS}


def found(way, kind, chunk, jitted):
    p = Problem(kind=kind)
    given = *p.arrays, p.targets, jnp.asarray(p.scale)
    if jitted:
        return p, compiled(*given, chunk=chunk)[way.__name__]
    return p, way(*given, chunk)


# without jit: chunks with a rest, and a single one
VARIANTS = [(*case, True) for case in CASES]
VARIANTS += [("several", 4, False), ("several", 100, False)]


@pytest.mark.parametrize(("kind", "chunk", "jitted"), VARIANTS)
@pytest.mark.parametrize("way", [by_hand, automatic])
def test_losses_and_gradients(way, kind, chunk, jitted):
    p, values = found(way, kind, chunk, jitted)
    for value, expected in zip(values, p.expected(), strict=True):
        close(value, expected)


@pytest.mark.parametrize(("kind", "chunk", "jitted"), VARIANTS)
def test_plain_sgd_on_parts_is_plain_sgd(kind, chunk, jitted):
    p, (w, b) = found(moved, kind, chunk, jitted)
    _, _, dw, db = p.expected()
    close(w, p.w - 0.3 * dw)
    close(b, p.b - 0.3 * db)


@partial(jax.jit, static_argnames="chunk")
def both_ways(h, w, b, y, scale, chunk):
    """Losses and gradients in chunks, and from all scores."""

    def full(h, w, b):
        losses = cross_entropy(h @ w.T + b[None], y)
        return jnp.sum(scale * losses), losses

    grads, losses = jax.grad(full, argnums=(0, 1, 2), has_aux=True)(h, w, b)
    targets = softmax.targets_of(y)
    parts = softmax.loss_and_grads(h, w, b, targets, scale, chunk)
    return (*parts[:2], *parts[2].arrays()), (losses, *grads)


def test_other_weights_than_the_gradients_own():
    """As for arrays: what is subtracted is the gradient where it was taken."""
    p = Problem()

    @jax.jit
    def step(h, w, b, targets, scale):
        _, _, grad = softmax.loss_and_grads(h, w, b, targets, scale, 4)
        grads = {"w": grad, "b": sparse.WithKernel()}
        return sparse.subtract({"w": 2 * w, "b": b - 1}, grads, 0.3)

    moved = step(*p.arrays, p.targets, p.scale)
    _, _, dw, db = p.expected()
    close(moved["w"], 2 * p.w - 0.3 * dw)
    close(moved["b"], p.b - 1 - 0.3 * db)


def check_any_chunk(seed, size, labels, chunk):
    """Both against float64: each sum in float32 is wrong by up to 6e-7."""
    p = Problem(seed, size, 3, labels)
    rows, columns, shares = p.targets
    indices = jnp.stack([rows, columns], 1)
    y = BCOO((shares, indices), shape=(size, labels), indices_sorted=True)
    for way in both_ways(*p.arrays, y, jnp.asarray(p.scale), chunk):
        for found, expected in zip(way, p.expected(), strict=True):
            close(found, expected)


@pytest.mark.parametrize(
    ("seed", "size", "labels", "chunk"),
    [
        (12197, 2, 40, 1),  # 1.1e-6 from all scores in float32
        (7, 5, 23, 9),
    ],
)
def test_some_chunks_give_the_full_softmax(seed, size, labels, chunk):
    check_any_chunk(seed, size, labels, chunk)


@pytest.mark.full  # each example is compiled
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**20),
    size=st.integers(1, 7),
    labels=st.integers(1, 40),
    chunk=st.integers(1, 50),
)
def test_any_chunk_gives_the_full_softmax(seed, size, labels, chunk):
    check_any_chunk(seed, size, labels, chunk)


def check_both(values, p, tolerance=1e-6):
    for way in (by_hand, automatic):
        for value, expected in zip(values[way.__name__], p.expected(), strict=True):
            close(value, expected, tolerance)


def test_a_label_that_is_there_twice_counts_by_its_share():
    p = Problem()
    given = *p.arrays, p.repeated_targets, jnp.asarray(p.scale)
    check_both(compiled(*given, chunk=4), p)


def test_class_ids_are_targets():
    p = Problem(kind="one")
    y = jnp.asarray(p.t.argmax(1), jnp.int32)

    @jax.jit
    def losses(h, w, b, y):
        return softmax.cross_entropy(h, w, b, softmax.targets_of(y), 4)

    close(losses(*p.arrays, y), p.expected()[0])


def test_large_scores_do_not_overflow():
    p = Problem(kind="one")
    p.w = 1e4 * p.w
    given = *p.arrays, p.targets, jnp.asarray(p.scale)
    check_both(compiled(*given, chunk=4), p, 1e-5)


def test_weights_in_half_precision_keep_their_dtype():
    p = Problem()
    h, w, b = (x.astype(jnp.bfloat16) for x in p.arrays)
    p.h, p.w, p.b = (np.asarray(x, np.float32) for x in (h, w, b))

    @jax.jit
    def step(h, w, b, targets, scale):
        losses, _, grad = softmax.loss_and_grads(h, w, b, targets, scale, 4)
        return losses, grad.subtracted(0.3)

    losses, moved = step(h, w, b, p.targets, p.scale)
    close(losses, p.expected()[0], 1e-2)
    assert [x.dtype for x in moved] == [jnp.bfloat16] * 2
    close(moved[0].astype(np.float32), p.w - 0.3 * p.expected()[2], 1e-2)


def test_sgd_needs_neither_the_scores_nor_a_gradient_of_the_weights_size():
    size, hidden, chunk = 8, 16, 1000

    def step(w, b, h, y):
        scale = jnp.ones(size)
        targets = softmax.targets_of(y)
        losses, dh, grad = softmax.loss_and_grads(h, w, b, targets, scale, chunk)
        return *grad.subtracted(0.1), losses, dh

    def arguments(labels):
        shapes = ((labels, hidden), (labels,), (size, hidden))
        floats = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
        return *floats, jax.ShapeDtypeStruct((size,), jnp.int32)

    def needed(labels):
        lowered = jax.jit(step, donate_argnums=(0, 1)).lower(*arguments(labels))
        return lowered.compile().memory_analysis().temp_size_in_bytes

    labels = 50_000
    # above one chunk: a GPU's library has 32 MiB of its own, however many labels
    assert needed(labels) - needed(chunk) < 4 * size * labels / 4  # a quarter of them
    text = str(jax.make_jaxpr(step)(*arguments(labels)))
    assert f"[{size},{labels}]" not in text
    assert f"[{labels},{size}]" not in text


# fewer labels than are taken, groups of labels, a rest, and several chunks of groups
TOPS = [
    (labels, chunk) for labels in (3, 11, 700, 1500) for chunk in (4, 640, 768, 5000)
]


@pytest.mark.parametrize(
    ("labels", "chunk"),
    quick(TOPS, (3, 4), (11, 4), (11, 5000), (700, 768), (1500, 768)),
)
def test_the_largest_scores_and_the_first_of_equal_ones(labels, chunk):
    p = Problem(1, size=9, labels=labels)
    # few values, so that many scores are equal
    h, w, b = (np.clip(np.round(x), -1, 1) for x in (p.h, p.w, p.b))
    k = min(5, labels)
    lse, top = jax.jit(partial(softmax.top_k, k=k, chunk=chunk))(h, w, b)
    z = h @ w.T + b
    np.testing.assert_array_equal(top, np.argsort(-z, axis=1, kind="stable")[:, :k])
    close(lse, np.log(np.exp(z.astype(np.float64)).sum(1)))


@pytest.mark.parametrize("values", [3, 40, 400])
@pytest.mark.parametrize("size", [768, 1024, 1000])
def test_the_top_of_groups_is_the_top(values, size):
    """Also where a score occurs in several groups, of which one has a larger one."""
    z = np.random.default_rng(values).integers(values, size=(50, size))
    z = jnp.asarray(z, jnp.float32)
    found, expected = softmax._top_of(z, 5), jax.lax.top_k(z, 5)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
