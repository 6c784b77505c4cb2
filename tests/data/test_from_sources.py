"""Data sets of other libraries, memory maps, trees, texts, as runs read them."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp

import hetjax as hj
from hetjax.data import sources
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.columns import RowsView

N = 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3, 2)).astype(np.float32)
Y = RNG.integers(0, 3, N)
ROWS = np.array([7, 3, 3, 39])


class Pairs:
    """Rows (x, y), as in torch; counts the reads."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return N

    def __getitem__(self, row):
        self.read.append(row)
        return X[row], int(Y[row])


class Named(Pairs):
    """Rows with named fields, several read at once, as in torch."""

    def __getitems__(self, rows):
        self.read += rows
        return [{"image": X[row], "label": Y[row]} for row in rows]


class Columns:
    """Like a Hugging Face data set: columns of lists, in a format."""

    features = ("image", "label", "caption")

    def __init__(self, convert=list, names=features):
        self.convert, self.names = convert, names

    def select_columns(self, names):
        return Columns(self.convert, names)

    def with_format(self, name):
        assert name == "numpy"
        return Columns(np.asarray, self.names)

    def __len__(self):
        return N

    def __getitem__(self, rows):
        assert "caption" not in self.names  # it was not requested
        return {"image": self.convert(X[rows]), "label": self.convert(Y[rows])}


class Subset(Named):
    """Like torch's Subset with a user's transform of single rows."""

    def __getitem__(self, row):
        return {"image": X[row], "label": int(Y[row])}

    def __getitems__(self, rows):
        return [{"image": 100 * X[row], "label": int(Y[row])} for row in rows]


class Transformed(Subset):
    def __getitem__(self, row):
        found = super().__getitem__(row)
        return {"image": 2 * found["image"], "label": found["label"]}


class PassedOn:
    """Changes the rows of another data set, and delegates everything else to it."""

    def __init__(self, data):
        self.data = data

    def __getattr__(self, name):
        return getattr(self.data, name)

    def __len__(self):
        return N

    def __getitem__(self, row):
        found = self.data[row]
        return {"image": 2 * np.asarray(found["image"]), "label": found["label"]}


class WithTransform(Columns):
    """Like a Hugging Face data set after set_transform."""

    format = {"type": "custom", "format_kwargs": {"transform": None}}

    def __getitem__(self, row):
        assert isinstance(row, int)  # rows together would not be those of ds[row]
        return {"pixels": 2 * X[row], "label": int(Y[row])}


KEYS = {"x": "image", "y": "label"}
SOURCES = {
    "pairs": (Pairs, {}),
    "named": (Named, KEYS),
    "columns": (Columns, KEYS),
    "functions": (Named, {"x": lambda r: r["image"], "y": lambda r: r["label"]}),
}


def batch_of(data, rows=ROWS):
    split = data.train
    return make_batch(split, rows, make_buckets(split, len(rows)))


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_gives_the_batches_of_its_arrays(name):
    make, chosen = SOURCES[name]
    data = hj.data.from_source(make(), make(), **chosen)
    arrays = hj.data.from_arrays((X, Y), (X, Y))
    assert (data.num_classes, data.num_features) == (3, 6)
    found, expected = batch_of(data), batch_of(arrays)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)


TRANSFORMED = {
    "inherits": (Transformed, KEYS),
    "passes on": (lambda: PassedOn(Subset()), KEYS),
    "passes on columns": (
        lambda: PassedOn(Columns(np.asarray, ("image", "label"))),
        KEYS,
    ),
    "format": (WithTransform, {"x": "pixels", "y": "label"}),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_rows_are_those_that_an_item_gives(name):
    make, chosen = TRANSFORMED[name]
    data = hj.data.from_source(make(), make(), **chosen)
    np.testing.assert_array_equal(batch_of(data).x[: len(ROWS)], 2 * X[ROWS])
    np.testing.assert_array_equal(data.train.y, Y)


def test_only_the_rows_of_a_batch_are_read():
    source = Pairs()
    data = hj.data.from_source(source, Pairs())
    source.read.clear()
    batch_of(data)
    assert source.read == ROWS.tolist()  # x; the labels were read at the start
    part = data.train.take(np.array([5, 6]))
    np.testing.assert_array_equal(part.x[:], X[5:7])
    assert source.read == [*ROWS, 5, 6]


def test_what_is_chosen_is_of_each_row_alone():
    """A function of the row, not of a batch; other fields may be anything."""

    class Rich(Pairs):
        def __getitem__(self, row):
            ragged = np.zeros(1 + row % 3)
            return {"x": X[row], "y": Y[row], "caption": "words", "boxes": ragged}

    def centered(row):
        return row["x"][:2] - row["x"].mean()

    data = hj.data.from_source(Rich(), Rich(), x=centered, y=lambda row: int(row["y"]))
    expected = np.stack([centered({"x": X[row]}) for row in ROWS])
    np.testing.assert_array_equal(batch_of(data).x[: len(ROWS)], expected)
    np.testing.assert_array_equal(data.train.y, Y)


def test_rows_of_lists_are_arrays():
    rows = [([1.0, 2.0], 0), ([3.0, 4.0], 1)]
    data = hj.data.from_source(rows, rows)
    np.testing.assert_array_equal(data.train.x[:], [[1, 2], [3, 4]])


def test_fields_are_read_together_also_of_a_part_of_a_part():
    source = Pairs()
    data = hj.data.from_source(source, Pairs(), x=lambda row: (row[0], row[0] + 1))
    part = data.train.take(np.arange(9)).take(np.array([4, 2]))
    source.read.clear()
    batch = make_batch(part, np.arange(2), make_buckets(part, 2))
    assert source.read == [4, 2]
    np.testing.assert_array_equal(batch.x[1], X[[4, 2]] + 1)


def test_one_thread_reads_at_a_time():
    class Slow(Pairs):
        inside = most = 0

        def __getitem__(self, row):
            Slow.inside += 1
            Slow.most = max(Slow.most, Slow.inside)
            time.sleep(1e-4)
            Slow.inside -= 1
            return super().__getitem__(row)

    data = hj.data.from_source(Slow(), Slow())
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: batch_of(data), range(8)))
    assert Slow.most == 1


@pytest.mark.parametrize("package", ["torch", "datasets", "grain"])
def test_the_real_libraries(package):
    library = pytest.importorskip(package)
    if package == "torch":
        tensors = library.tensor(X), library.tensor(Y)
        source, chosen = library.utils.data.TensorDataset(*tensors), {}
    elif package == "datasets":
        columns = {"image": X.tolist(), "label": Y.tolist()}
        source, chosen = library.Dataset.from_dict(columns), KEYS
    else:
        source, chosen = library.MapDataset.source(Pairs()), {}
    data = hj.data.from_source(source, source, **chosen)
    np.testing.assert_array_equal(batch_of(data).x[:3], X[ROWS[:3]])


def test_transforms_of_hugging_face():
    library = pytest.importorskip("datasets")
    source = library.Dataset.from_dict({"image": X.tolist(), "label": Y.tolist()})

    def doubled(rows):
        images = [2 * np.asarray(x, np.float32) for x in rows["image"]]
        return {"image": images, "label": rows["label"]}

    half = source.with_format("numpy", dtype=np.float16)
    for changed, expected in ((source.with_transform(doubled), 2 * X), (half, X)):
        data = hj.data.from_source(changed, changed, **KEYS)
        found = batch_of(data).x[:4]
        assert found.dtype == np.asarray(changed[0]["image"]).dtype
        np.testing.assert_array_equal(found, expected.astype(found.dtype)[ROWS])


class Loader:
    """Like torch's DataLoader."""

    dataset = ()

    def __len__(self):
        return N


class Ragged(Pairs):
    def __getitem__(self, row):
        return X[row][: 1 + row % 2], int(Y[row])


class Words(Pairs):
    def __getitem__(self, row):
        return "word", 1


NOT_SOURCES = [
    (iter([1]), {}, "train is a list_iterator, which has no length, or no access by"),
    (Loader(), {}, "train is a Loader, .* pass its data set, its .dataset"),
    (Pairs, {}, "train is the class Pairs: pass an"),
    (Named(), {}, "train has rows with image, label: choose the inputs"),
    (
        Named(),
        {"x": "img", "y": "label"},
        r"rows without 'img' .*; they have image, la",
    ),
    ([X[0]], {}, r"train has rows of ndarray: make them pairs \(x, y\)"),
    ([], {}, "train has no rows"),
    ({"x": X}, {}, "train is a dictionary: pass dictionaries of arrays to"),
    (Words(), {}, "train has rows with a str: convert them to numbers"),
]


@pytest.mark.parametrize(("source", "chosen", "message"), NOT_SOURCES)
def test_what_is_no_source_says_what_to_do(source, chosen, message):
    with pytest.raises(ValueError, match=message):
        hj.data.from_source(source, source, **chosen)


def test_rows_of_several_shapes_are_named():
    with pytest.raises(ValueError, match=r"train: rows \[0, 1, 2, .* do not stack"):
        hj.data.from_source(Ragged(), Ragged())


def test_labels_are_read_in_blocks(monkeypatch):
    monkeypatch.setattr(sources, "ROWS_PER_READ", 16)
    sizes = []
    read = sources.Source.read
    monkeypatch.setattr(
        sources.Source, "read", lambda s, rows: sizes.append(len(rows)) or read(s, rows)
    )
    data = hj.data.from_source(Pairs(), Pairs())
    np.testing.assert_array_equal(data.train.y, Y)
    assert set(sizes) == {16, 8}


@pytest.fixture
def mapped(tmp_path):
    """Bytes in a file, and their dtype."""
    images = RNG.integers(0, 256, (N, 4, 4), np.uint8)
    np.save(tmp_path / "images.npy", images)
    return np.load(tmp_path / "images.npy", mmap_mode="r"), images


def test_a_memory_map_is_not_copied_nor_converted(mapped):
    images, content = mapped
    data = hj.data.from_arrays((images, Y), (images[:9], Y[:9]))
    assert data.train.x is images
    assert data.test.x.base is not None
    part = data.train.take(ROWS)
    assert isinstance(part.x, RowsView)
    again = part.take(np.array([3, 0]))
    np.testing.assert_array_equal(again.x[:], content[[39, 7]])
    batch = batch_of(data)
    assert batch.x.dtype == np.uint8
    np.testing.assert_array_equal(batch.x[:4], content[ROWS])


def test_a_copy_of_a_memory_map_is_an_array(mapped):
    images, content = mapped
    copy = images.astype(np.float32)
    assert isinstance(copy, np.memmap)  # as NumPy has it
    copy[0] = np.nan
    with pytest.raises(ValueError, match="train x has 16 values that are NaN"):
        hj.data.from_arrays((copy, Y), (images[:9], Y[:9]))
    data = hj.data.from_arrays((images.copy(), Y), (content[:9], Y[:9]))
    assert not isinstance(data.train.x, np.memmap) or data.train.x._mmap is None


def test_large_targets_are_not_read(tmp_path):
    """Reading stops at the first number that is not a label."""
    wide = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.uint16, (N, 6))
    wide[:] = RNG.integers(0, 50, (N, 6))
    data = hj.data.from_arrays((X, wide), (X, wide))
    assert np.shares_memory(data.train.y, wide)
    assert data.num_classes == 0


def test_maps_that_cannot_be_used_say_so(tmp_path):
    swapped = np.lib.format.open_memmap(tmp_path / "a.npy", "w+", ">f4", (N, 2))
    with pytest.raises(ValueError, match="train x is stored in another byte order"):
        hj.data.from_arrays((swapped, Y), (swapped, Y))
    long = np.lib.format.open_memmap(tmp_path / "b.npy", "w+", np.int64, (N, 2))
    long[3] = 2**32 + 5
    data = hj.data.from_arrays((long, Y), (long, Y))
    with pytest.raises(ValueError, match="the integer 4294967301, beyond 32 bits"):
        batch_of(data)


def test_a_run_on_a_memory_map_is_that_on_its_array_in_floats(mapped):
    images, content = mapped

    def run(x):
        data = hj.data.from_arrays((x, Y), (x[:9], Y[:9]))
        model = hj.models.magma_mlp(image=(4, 4, 1), hidden=(3,))
        task = hj.classification(model, data, normalize=(128.0, 64.0))
        strategy = hj.fed_acc(batch_size=4, learning_rate=0.1)  # holds examples out
        machine = hj.machine.preset("v100x2")
        given = {"seconds": 0.02, "num_evals": 2, "progress": False}
        return hj.train(task, data, machine, strategy, **given)

    assert run(images).evals == run(content.astype(np.float32)).evals


def test_trees_of_arrays():
    x = {"tokens": Y.astype(np.int64)[:, None], "bag": sp.csr_array(X[:, 0])}
    data = hj.data.from_arrays((x, {"mean": X[:, 0, 0]}), (x, {"mean": X[:, 0, 0]}))
    assert (data.num_classes, data.sparse) == (0, True)
    assert data.num_features == {"tokens": 1, "bag": 2}
    batch = batch_of(data)
    np.testing.assert_array_equal(batch.x["tokens"][:4, 0], Y[ROWS])
    np.testing.assert_allclose(batch.x["bag"].todense()[:4], X[ROWS, 0])
    np.testing.assert_array_equal(batch.y["mean"][:4], X[ROWS, 0, 0])


WRONG_TREES = [
    ({"a": X}, {"b": X}, "x of train and test must have the same fields"),
    ({"a": X, "b": X[:3]}, {"a": X, "b": X}, "train: x has 40 rows, but x has 3 rows"),
    ({"a": X}, {"a": X[:, :2]}, "features differ: x of train"),
    ({}, {}, "train x has no fields"),
    ({"a": "words"}, {"a": X}, r"train x\['a'\] must hold real numbers, not <U5"),
    ({"a": Y + 2**40}, {"a": Y}, r"train x\['a'\] has integers beyond 32 bits"),
]


@pytest.mark.parametrize(("train", "test", "message"), WRONG_TREES)
def test_trees_that_do_not_fit(train, test, message):
    with pytest.raises(ValueError, match=message):
        hj.data.from_arrays((train, Y), (test, Y))


def test_floats_are_regression_targets():
    data = hj.data.from_arrays((X, Y.astype(float)), (X, Y.astype(float)))
    assert data.num_classes == 0
    with pytest.raises(ValueError, match="regression targets: use hetjax.regression"):
        hj.classification(hj.models.magma_mlp(image=(3, 2, 1), hidden=(3,)), data)


def test_a_column_of_zeros_and_ones_asks_what_it_is():
    column = (Y > 0).astype(int)[:, None]
    with pytest.raises(
        ValueError, match=r"of zeros and ones: pass class ids as y\[:, 0"
    ):
        hj.data.from_arrays((X, column), (X, column))
    data = hj.data.from_arrays((X, column), (X, column), targets="values")
    assert data.num_classes == 0


def test_tokens_are_pieces_and_what_follows_each():
    text = np.arange(11)
    data = hj.data.from_tokens(text, text + 1, length=3)
    np.testing.assert_array_equal(data.train.x, [[0, 1, 2], [3, 4, 5], [6, 7, 8]])
    np.testing.assert_array_equal(data.train.y, data.train.x + 1)
    assert np.shares_memory(data.train.x, text)
    for wrong, message in (
        (text[:3], "train has 3 tokens: pass more than length=3"),
        (text * 1.5, r"train is \[11\] of float64: pass the text's tokens"),
        (text - 1, "train has the token -1: pass numbers from 0 on"),
    ):
        with pytest.raises(ValueError, match=message):
            hj.data.from_tokens(wrong, text, length=3)
