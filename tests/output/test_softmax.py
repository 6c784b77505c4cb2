"""The chunked softmax against NumPy in float64, and against the full one."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax.experimental.sparse import BCOO
from softmax_oracle import SHARES, Problem, close

from hetjax import softmax, sparse
from hetjax.tasks.classification import cross_entropy

CHUNKS = (1, 4, 10, 11, 100)  # of 11 labels
# every kind of targets, and every chunk with several labels
CASES = [(kind, 4) for kind in SHARES] + [("several", c) for c in CHUNKS if c != 4]


class AgainstNumpy(chex.TestCase, parameterized.TestCase):
    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(*CASES)
    def test_losses_and_gradients(self, kind, chunk):
        p = Problem(kind=kind)
        run = self.variant(partial(softmax.loss_and_grads, chunk=chunk))
        losses, dh, grad = run(*p.arrays, p.targets, jnp.asarray(p.scale))
        for found, expected in zip(
            (losses, dh, *grad.arrays()), p.expected(), strict=True
        ):
            close(found, expected)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(*CASES)
    def test_automatic_differentiation_finds_the_same(self, kind, chunk):
        p = Problem(kind=kind)

        def total(h, w, b):
            losses = softmax.cross_entropy(h, w, b, p.targets, chunk)
            return jnp.sum(losses * p.scale), losses

        grads, losses = self.variant(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(
            *p.arrays
        )
        for found, expected in zip((losses, *grads), p.expected(), strict=True):
            close(found, expected)

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters(*CHUNKS)
    def test_plain_sgd_on_parts_is_plain_sgd(self, chunk):
        p = Problem()
        h, w, b = p.arrays

        @self.variant
        def step(w, b, rate):
            found = softmax.loss_and_grads(
                h, w, b, p.targets, jnp.asarray(p.scale), chunk
            )
            grads = {"w": found[2], "b": softmax.WithKernel()}
            return sparse.subtract({"w": w, "b": b}, grads, rate)

        moved = step(w, b, 0.3)
        _, _, dw, db = p.expected()
        close(moved["w"], p.w - 0.3 * dw)
        close(moved["b"], p.b - 0.3 * db)


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
    h, w, b = p.arrays
    _, _, grad = softmax.loss_and_grads(h, w, b, p.targets, jnp.asarray(p.scale), 4)
    grads = {"w": grad, "b": softmax.WithKernel()}
    moved = sparse.subtract({"w": 2 * w, "b": b - 1}, grads, 0.3)
    _, _, dw, db = p.expected()
    close(moved["w"], 2 * p.w - 0.3 * dw)
    close(moved["b"], p.b - 1 - 0.3 * db)


# each of them is compiled
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**20),
    size=st.integers(1, 7),
    labels=st.integers(1, 40),
    chunk=st.integers(1, 50),
)
@example(seed=12197, size=2, labels=40, chunk=1)  # 1.1e-6 from all scores in float32
def test_any_chunk_gives_the_full_softmax(seed, size, labels, chunk):
    """Both against float64: each sum in float32 is wrong by up to 6e-7."""
    p = Problem(seed, size, 3, labels)
    rows, columns, shares = p.targets
    indices = jnp.stack([rows, columns], 1)
    y = BCOO((shares, indices), shape=(size, labels), indices_sorted=True)
    for way in both_ways(*p.arrays, y, jnp.asarray(p.scale), chunk):
        for found, expected in zip(way, p.expected(), strict=True):
            close(found, expected)


def test_a_label_that_is_there_twice_counts_by_its_share():
    p = Problem()
    losses, dh, grad = jax.jit(partial(softmax.loss_and_grads, chunk=4))(
        *p.arrays, p.repeated_targets, jnp.asarray(p.scale)
    )
    for found, expected in zip((losses, dh, *grad.arrays()), p.expected(), strict=True):
        close(found, expected)


def test_class_ids_are_targets():
    p = Problem(kind="one")
    y = jnp.asarray(p.t.argmax(1), jnp.int32)
    losses, *_ = softmax.loss_and_grads(
        *p.arrays, softmax.targets_of(y), jnp.asarray(p.scale), 4
    )
    close(losses, p.expected()[0])


def test_large_scores_do_not_overflow():
    p = Problem(kind="one")
    h, w, b = p.arrays
    losses, dh, grad = softmax.loss_and_grads(
        h, 1e4 * w, b, p.targets, jnp.asarray(p.scale), 4
    )
    p.w = 1e4 * p.w
    for found, expected in zip((losses, dh, *grad.arrays()), p.expected(), strict=True):
        close(found, expected, 1e-5)


def test_weights_in_half_precision_keep_their_dtype():
    p = Problem()
    h, w, b = (x.astype(jnp.bfloat16) for x in p.arrays)
    p.h, p.w, p.b = (np.asarray(x, np.float32) for x in (h, w, b))
    losses, _, grad = softmax.loss_and_grads(
        h, w, b, p.targets, jnp.asarray(p.scale), 4
    )
    close(losses, p.expected()[0], 1e-2)
    moved = grad.subtracted(0.3)
    assert [x.dtype for x in moved] == [jnp.bfloat16] * 2
    close(moved[0].astype(np.float32), p.w - 0.3 * p.expected()[2], 1e-2)


def test_sgd_needs_neither_the_scores_nor_a_gradient_of_the_weights_size():
    size, hidden, labels = 8, 16, 50_000
    shapes = ((size, hidden), (labels, hidden), (labels,))
    h, w, b = (jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes)
    y = jax.ShapeDtypeStruct((size,), jnp.int32)

    def step(w, b, h, y):
        scale = jnp.ones(size)
        targets = softmax.targets_of(y)
        losses, dh, grad = softmax.loss_and_grads(h, w, b, targets, scale, 1000)
        return *grad.subtracted(0.1), losses, dh

    lowered = jax.jit(step, donate_argnums=(0, 1)).lower(w, b, h, y)
    needed = lowered.compile().memory_analysis().temp_size_in_bytes
    assert needed < 4 * size * labels / 4  # a quarter of the scores
    text = str(jax.make_jaxpr(step)(w, b, h, y))
    assert f"[{size},{labels}]" not in text
    assert f"[{labels},{size}]" not in text


@pytest.mark.parametrize("labels", [3, 11, 700, 1500])
@pytest.mark.parametrize("chunk", [4, 640, 768, 5000])
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
