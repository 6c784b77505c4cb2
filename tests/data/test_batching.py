"""Batches: few shapes, all entries and no others, and padding without effect."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.data.batching import (
    RATIO,
    Bucket,
    bucket_of,
    bucket_sizes,
    make_batch,
    make_buckets,
    nonzeros_counter,
)
from hetjax.data.dataset import Dataset, Split
from hetjax.data.uneven import common_bucket, make_uneven_batches
from hetjax.engine.programs.evaluation_batches import EVAL_NUMBERS, evaluation_batches
from hetjax.models import sparse_mlp
from hetjax.sparse import dense, matmul
from hetjax.tasks import classification
from hetjax.tasks.types import make_grad_fn

FEATURES, CLASSES = 7, 5
property_test = settings(max_examples=100, deadline=None, derandomize=True)


def random_csr(rng, rows, columns, lengths):
    """Row i with lengths[i] entries at different columns, none of them zero."""
    indices = [rng.permutation(columns)[:k] for k in lengths]
    data = rng.uniform(0.5, 2.0, int(np.sum(lengths))).astype(np.float32)
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    columns_of = np.concatenate([*indices, []]).astype(np.int32)
    return sp.csr_array((data, columns_of, indptr), shape=(rows, columns))


@st.composite
def sparse_splits(draw):
    """Multi-label splits of up to 12 examples; features and labels may be missing."""
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    counts = st.lists(st.integers(0, CLASSES), min_size=n, max_size=n)
    x = random_csr(rng, n, FEATURES, draw(counts))
    y = random_csr(rng, n, CLASSES, draw(counts))
    y.data[:] = 1.0
    return Split(x, y)


@st.composite
def requests(draw):
    """A split, its buckets, and rows of it that a sampler might draw."""
    split = draw(sparse_splits())
    batch_size = draw(st.integers(1, len(split)))
    row = st.integers(0, len(split) - 1)
    rows = draw(
        st.lists(row, min_size=1, max_size=batch_size, unique=draw(st.booleans()))
    )
    return split, make_buckets(split, batch_size), np.array(rows)


def shortest(split, rows):
    """The first of the rows that have the fewest entries, which pads the batch."""
    return min(rows, key=lambda row: split.x[[row]].nnz + split.y[[row]].nnz)


def as_csr(x, entries):
    """The contents of a BCOO; checks that exactly the padding is out of bounds."""
    data, indices = np.asarray(x.data), np.asarray(x.indices)
    inside = (indices < x.shape).all(1)
    assert inside.sum() == entries
    assert (indices[~inside] == x.shape).all()
    assert (data[~inside] == 0).all()
    assert (np.diff(indices[:, 0]) >= 0).all(), "rows are sorted, padding behind"
    return sp.coo_array((data[inside], tuple(indices[inside].T)), shape=x.shape).tocsr()


@property_test
@given(st.integers(1, 5000))
def test_bucket_sizes_are_close_and_end_at_b_max(batch_size):
    sizes = bucket_sizes(batch_size)
    assert sizes[0] == 1
    assert sizes[-1] == batch_size
    for small, large in zip(sizes[:-1], sizes[1:], strict=True):
        assert small < large
        assert large <= RATIO * small or large == small + 1 <= 4


@property_test
@given(sparse_splits(), st.data())
def test_buckets_grow_and_hold_the_fullest_batch(split, data):
    batch_size = data.draw(st.integers(1, len(split)))
    buckets = make_buckets(split, batch_size)
    assert sorted({b.size for b in buckets}) == bucket_sizes(batch_size)
    for small, large in zip(buckets[:-1], buckets[1:], strict=True):
        assert holds(large, (small.size, *small.capacities))
        assert small != large
    for matrix, capacity in zip(
        (split.x, split.y), buckets[-1].capacities, strict=True
    ):
        fullest = np.sort(np.diff(matrix.indptr))[::-1][:batch_size].sum()
        assert capacity == max(1, fullest)


@property_test
@given(requests())
def test_a_batch_holds_its_examples_and_no_others(request):
    split, buckets, rows = request
    batch, n = make_batch(split, rows, buckets), len(rows)
    size = len(batch.weight)
    assert batch.count == n <= size
    assert batch.x.shape == (size, FEATURES)
    assert batch.y.shape == (size, CLASSES)
    every = np.append(rows, [shortest(split, rows)] * (size - n)).astype(int)
    x = as_csr(batch.x, split.x[every].nnz).toarray()
    y = as_csr(batch.y, split.y[every].nnz).toarray()
    np.testing.assert_array_equal(x, split.x[every].toarray())
    labels = split.y[every].toarray()
    share = labels / np.maximum(labels.sum(1, keepdims=True), 1)
    np.testing.assert_allclose(y, share, rtol=1e-7)
    np.testing.assert_array_equal(batch.weight[:n], labels[:n].any(1))
    assert (batch.weight[n:] == 0).all()
    assert nonzeros_counter(split)([rows, rows[:1]]) == [
        split.x[rows].nnz,
        split.x[rows[:1]].nnz,
    ]


@property_test
@given(requests())
def test_a_batch_has_the_shape_of_the_first_bucket_that_holds_it(request):
    split, buckets, rows = request
    batch = make_batch(split, rows, buckets)
    shape = Bucket(len(batch.weight), (batch.x.nse, batch.y.nse))
    padding = shortest(split, rows)

    def needed(size):
        every = np.append(rows, [padding] * max(0, size - len(rows))).astype(int)
        return len(rows), split.x[every].nnz, split.y[every].nnz

    fitting = [b for b in buckets if holds(b, needed(b.size))]
    if fitting:
        assert shape == fitting[0]
    else:  # only if an example occurs twice, in the batch or as its padding
        assert len(set(rows)) < len(rows) or len(rows) < buckets[-1].size
        assert shape.size == buckets[-1].size
        assert holds(shape, needed(shape.size))


def holds(bucket, needed):
    return all(np.array([bucket.size, *bucket.capacities]) >= needed)


def test_a_sparse_split_may_have_no_entries():
    empty = sp.csr_array((3, FEATURES), dtype=np.float32)
    split = Split(empty, empty)
    buckets = make_buckets(split, 3)
    assert buckets == tuple(Bucket(n, (1, 1)) for n in (1, 2, 3))
    batch = make_batch(split, np.arange(3), buckets)
    assert as_csr(batch.x, 0).nnz == as_csr(batch.y, 0).nnz == 0


def test_an_overflowing_batch_takes_the_next_bucket():
    buckets = (Bucket(4, (16, 2)), Bucket(5, (20, 4)), Bucket(5, (25, 5)))

    def taken(n, *entries):
        return bucket_of(buckets, n, [filled_by(n, *entries)])

    assert taken(3, 16, 2) == buckets[0]
    assert taken(3, 17, 2) == buckets[1]
    assert taken(3, 1, 3) == buckets[1]
    assert taken(5, 21, 1) == buckets[2]


def filled_by(n, *entries):
    """The lengths of n rows, the last of which has all entries of each array."""
    return [np.array([0] * (n - 1) + [each]) for each in entries]


def test_a_bucket_has_room_for_the_examples_that_pad_a_batch():
    """Rows of 4, 6 and 5 entries: 15 + 2 4 = 23 padded to 5 rows, and 19 to 4."""
    lengths = [[np.array([4, 6, 5])]]
    small, large = Bucket(4, (19,)), Bucket(5, (23,))
    assert bucket_of((small, large), 3, lengths) == small
    assert bucket_of((Bucket(4, (18,)), large), 3, lengths) == large
    assert bucket_of((Bucket(5, (22,)),), 3, lengths) == Bucket(5, (28,))
    assert bucket_of((Bucket(5, (15,)),), 3, lengths, exact=True) == Bucket(3, (15,))


def test_repeated_examples_take_larger_capacities():
    """A batch that spans two epochs may contain the fullest examples twice."""
    buckets = (Bucket(4, (16, 0)),)
    assert bucket_of(buckets, 4, [filled_by(4, 17, 0)]) == Bucket(4, (20, 0))
    # ceil(1.25 ceil(20 1.25))
    assert bucket_of(buckets, 4, [filled_by(4, 26, 0)]) == Bucket(4, (32, 0))


def test_a_batch_above_b_max_is_an_error_that_says_what_to_do():
    with pytest.raises(
        ValueError, match="batch of 6 .* of 5: pass a larger batch_size"
    ):
        bucket_of((Bucket(5, (9, 9)),), 6, [filled_by(6, 1, 1)])


def dense_split(n=12):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2, 3)).astype(np.float32)
    return Split(x, rng.integers(CLASSES, size=n).astype(np.int32))


@pytest.mark.parametrize("n", [1, 5, 6, 10])
def test_dense_padding_repeats_the_batch(n):
    split = dense_split()
    rows = np.arange(n)[::-1]
    batch = make_batch(split, rows, make_buckets(split, 10))
    size = len(batch.weight)
    assert size == next(s for s in bucket_sizes(10) if s >= n)
    padded = [rows[i % n] for i in range(size)]
    np.testing.assert_array_equal(batch.x, split.x[padded])
    np.testing.assert_array_equal(batch.y, split.y[padded])
    np.testing.assert_array_equal(batch.weight, np.arange(size) < n)
    assert batch.count == n
    assert nonzeros_counter(split)([rows]) == [0]


def test_the_shapes_of_many_batches_are_few():
    rng = np.random.default_rng(0)
    n, batch_size = 1000, 64
    x = random_csr(rng, n, 200, np.minimum(rng.geometric(0.1, n), 200))
    split = Split(x, np.zeros(n, np.int32))
    sizes, buckets = bucket_sizes(batch_size), make_buckets(split, batch_size)
    shapes, overflows = set(), 0
    for _ in range(300):
        rows = rng.permutation(n)[: rng.integers(1, batch_size + 1)]
        batch = make_batch(split, rows, buckets)
        shapes.add((len(batch.weight), batch.x.nse))
        overflows += len(batch.weight) > min(s for s in sizes if s >= len(rows))
    # capacities leave four standard deviations
    assert overflows <= 3
    assert len(shapes) <= len(sizes) + 1


# --- padding changes nothing ------------------------------------------------------


def sparse_split(multilabel):
    rng = np.random.default_rng(0)
    x = random_csr(rng, 12, FEATURES, rng.integers(0, 5, 12))
    if not multilabel:
        return Split(x, rng.integers(CLASSES, size=12).astype(np.int32))
    y = random_csr(rng, 12, CLASSES, [0, *rng.integers(1, 4, 11)])
    y.data[:] = 1.0
    return Split(x, y)


def unpadded(split, rows):
    """The bucket that these rows fill completely."""
    counts = [c[rows].nnz for c in (split.x, split.y) if sp.issparse(c)]
    return (Bucket(len(rows), tuple(counts)),)


@pytest.fixture(scope="module")
def gradient():
    """A compiled gradient per kind of split."""
    made = {}

    def of(kind, split):
        if kind not in made:
            data = Dataset(split, split, CLASSES)
            task = classification(sparse_mlp(hidden=4), data)
            grad_fn = jax.jit(make_grad_fn(task, jax.random.key(0)))
            made[kind] = grad_fn, jax.jit(task.init)(jax.random.key(0))
        grad_fn, (params, state) = made[kind]

        def apply(batch):
            losses, _, grads = grad_fn(params, state, batch)
            losses = jnp.sum(losses * batch.weight)
            return losses, dense(grads)

        return apply

    return of


@pytest.mark.parametrize("rows", [[3], [0, 5, 2, 9, 7, 1]], ids=["one", "several"])
@pytest.mark.parametrize("kind", ["dense", "sparse", "multilabel"])
def test_padding_and_masks_change_neither_loss_nor_gradient(gradient, kind, rows):
    split = sparse_split(kind == "multilabel")
    if kind == "dense":
        split = Split(split.x.toarray(), split.y)
    rows, apply = np.array(rows), gradient(kind, split)
    capacities = {"dense": (), "sparse": (40,), "multilabel": (40, 20)}[kind]
    padded = (Bucket(9, capacities),)
    exact = apply(make_batch(split, rows, unpadded(split, rows)))
    loose = apply(make_batch(split, rows, padded))
    jax.tree.map(  # to the float32 rounding of sums in another order
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-6, atol=2e-7),
        loose,
        exact,
    )


def test_the_gradient_of_a_batch_is_the_mean_of_those_of_its_examples(gradient):
    """An example without labels has no gradient, but counts in the mean."""
    split = sparse_split(True)
    apply, rows = gradient("multilabel", split), np.array([0, 5, 2])
    padded = (Bucket(9, (40, 20)),)
    losses, grads = apply(make_batch(split, rows, padded))
    parts = [apply(make_batch(split, rows[i : i + 1], padded)) for i in range(3)]
    assert parts[0][0] == 0.0  # row 0 has no label
    total = jax.tree.map(lambda *xs: sum(xs), *parts)
    expected = total[0], jax.tree.map(lambda g: g / 3, total[1])
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-6, atol=2e-7),
        (losses, grads),
        expected,
    )


def unit_length(x, w):
    """h / |h|, which is undefined for an empty row."""
    h = matmul(x, w)
    return h / jnp.linalg.norm(h, axis=-1, keepdims=True)


def log_sums(x, w):
    """log of a row's sum, times w: not finite for an empty row."""
    return jnp.log(matmul(x, jnp.ones(x.shape[-1])))[:, None] * w[:1]


def log_labels(y, w):
    """Like `log_sums`, of an example's share of labels."""
    return jnp.log(jax.ops.segment_sum(y.data, y.indices[:, 0], 9))[:, None] * w[:1]


@pytest.mark.parametrize("of", [unit_length, log_sums, log_labels])
@pytest.mark.parametrize("uneven", [False, True], ids=["alone", "mesh"])
def test_padding_is_finite_where_the_batch_is(of, uneven):
    rng = np.random.default_rng(0)
    x = random_csr(rng, 12, FEATURES, rng.integers(1, 5, 12))
    y = random_csr(rng, 12, CLASSES, rng.integers(1, 4, 12))
    y.data[:] = 1.0
    split, rows, full = Split(x, y), np.array([7, 2, 3, 9, 5, 1]), np.arange(9)
    buckets = make_buckets(split, 9)[-1:]
    if uneven:
        steps = [[rows], [full, full]]
        bucket = common_bucket(split, steps, buckets)
        stacked = make_uneven_batches(split, steps, 2, bucket)
        batch = jax.tree.map(lambda leaf: leaf[0, 0], stacked)
    else:
        batch = make_batch(split, rows, buckets)
    w = rng.normal(size=(FEATURES, 3)).astype(np.float32)

    def loss(w, batch):
        seen = batch.y if of is log_labels else batch.x
        losses = jnp.cos(of(seen, w)).sum(-1)
        return jnp.sum(losses * batch.weight) / batch.count

    dense_x = x[rows].toarray() @ w
    outputs = {
        unit_length: dense_x / np.linalg.norm(dense_x, axis=1, keepdims=True),
        log_sums: np.log(x[rows].sum(1))[:, None] * w[:1],
        log_labels: np.zeros((6, 3)),  # the shares of an example add up to 1
    }
    value, grad = jax.jit(jax.value_and_grad(loss))(w, batch)
    np.testing.assert_allclose(value, np.cos(outputs[of]).sum(-1).mean(), rtol=1e-5)
    assert np.isfinite(grad).all()


def test_batches_of_an_evaluation_have_one_shape_with_room_for_padding():
    rng = np.random.default_rng(0)
    lengths = [1, 1, 1, 1, 4, 5]  # the last batch of 4 repeats row 4: 4 + 5 + 2 4
    split = Split(random_csr(rng, 6, FEATURES, lengths), np.arange(6, dtype=np.int32))
    first, last = evaluation_batches(split, EVAL_NUMBERS // 4)
    assert first.x.nse == last.x.nse == 17
    np.testing.assert_array_equal(last.y, [4, 5, 4, 4])
    x = as_csr(last.x, 17).toarray()
    np.testing.assert_array_equal(x, split.x[[4, 5, 4, 4]].toarray())
    np.testing.assert_array_equal(last.weight, [1, 1, 0, 0])
