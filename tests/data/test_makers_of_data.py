"""Makers of data: an invalid argument is named before memory is allocated."""

import re

import numpy as np
import pytest

from hetjax.data import dirichlet, from_arrays, iid, synthetic_xmc
from hetjax.data.digits import digits

NAN, INF = float("nan"), float("inf")


def named(argument, value):
    return f"^{argument}={re.escape(repr(value))}: pass"


X, Y = np.ones((4, 2), np.float32), np.arange(4)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("rows", v) for v in (NAN, INF, 2.5, "9", None, True, 0, -1, 2**31, 10**30)],
        ("test_rows", 0.5),
        ("features", 1e30),
        ("labels", NAN),
        ("nonzeros", INF),
        ("nonzeros", "70"),
        ("nonzeros", 1j),
        ("labels_per_row", None),
        ("seed", -1),
        ("seed", 0.5),
        ("seed", NAN),
        ("seed", None),
    ],
)
def test_synthetic_xmc(argument, value):
    with pytest.raises(ValueError, match=named(argument, value)):
        synthetic_xmc(**{argument: value})


@pytest.mark.parametrize(
    ("argument", "sizes"),
    [
        ("rows", {"rows": 10**8}),
        ("test_rows", {"test_rows": 2**31 - 1}),
        ("features", {"features": 2**31 - 1}),
        ("labels", {"labels": 2**31 - 1}),
    ],
)
def test_synthetic_xmc_larger_than_memory(argument, sizes):
    with pytest.raises(ValueError, match=rf"^{argument} is too large: the data would"):
        synthetic_xmc(**sizes)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("test_share", v) for v in (NAN, INF, "0.2", None, True)],
        *[("seed", v) for v in (-1, 0.5, NAN, "0", None)],
        *[("shift", v) for v in (-1, 0.5, 8)],
    ],
)
def test_digits(argument, value):
    with pytest.raises(ValueError, match=named(argument, value)):
        digits(**{argument: value})


@pytest.mark.parametrize("share", [-0.5, 0.0, 1.0, 2.0])
def test_digits_need_two_splits(share):
    with pytest.raises(ValueError, match=f"test_share={share} leaves a split without"):
        digits(test_share=share)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("alpha", v) for v in (NAN, INF, 0, -1.0, "0.1", None)],
        *[("num_workers", v) for v in (0, -1, 2.5, NAN, "2", None)],
        *[("seed", v) for v in (-1, 0.5, None)],
    ],
)
def test_dirichlet(argument, value):
    arguments = {"num_workers": 2, "alpha": 0.5, "seed": 0} | {argument: value}
    with pytest.raises(ValueError, match=named(argument, value)):
        dirichlet(Y, **arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("num_examples", v) for v in (-1, 2.5, NAN, "9", None)],
        *[("num_workers", v) for v in (0, 2.5, INF, None)],
        *[("seed", v) for v in (-1, 0.5, None)],
    ],
)
def test_iid(argument, value):
    arguments = {"num_examples": 9, "num_workers": 2, "seed": 0} | {argument: value}
    with pytest.raises(ValueError, match=named(argument, value)):
        iid(**arguments)


@pytest.mark.parametrize("labels", [[[0], [1, 2]], [0.5, 1.0], ["a"], None])
def test_labels_to_partition_by(labels):
    with pytest.raises(ValueError, match=r"labels must be \[N\] integers or \[N, C\]"):
        dirichlet(labels, 1, alpha=1.0, seed=0)


@pytest.mark.parametrize("value", [NAN, INF, 5.5, "5", True, 0, -1, 2**31, 10**30])
def test_num_classes_of_arrays(value):
    with pytest.raises(ValueError, match=named("num_classes", value)):
        from_arrays((X, Y), (X, Y), num_classes=value)


ODD = [
    (([[1.0], [1.0, 2.0]], [0, 1]), "train x cannot be an array: "),
    ((X, [[0], [1, 2], [3], [0]]), "train y cannot be an array: "),
    ((np.ma.masked_less(X, 2), Y), "train x is masked: pass numbers for"),
    ((X, np.ma.masked_less(Y, 2)), "train y is masked"),
    ((None, Y), "train x must hold real numbers, not object"),
    ((X, None), r"train y must be \[N\] or \[N, C\], not \(\)"),
    ((X, ["a", "b", "c", "d"]), "train y: class ids must be integers, not <U1"),
    ((X.astype("datetime64[s]"), Y), "train x must hold real numbers, not datetime64"),
    ((X, Y[:3]), "train: x has 4 rows, but y has 3"),
    ((X, Y + 2**30), "class id 1073741827 would make 1073741828 classes"),
]


@pytest.mark.parametrize(("train", "message"), ODD, ids=[m[:20] for _, m in ODD])
def test_odd_arrays(train, message):
    with pytest.raises(ValueError, match=message):
        from_arrays(train, (X, Y))
