"""Files to be parsed and cached, and the content of the cache folder."""

import json

import numpy as np

from hetjax.data.readers import parsed_copies

TRAIN = b"5 12 7\n1,1,2 3:1 2:4 3:0.5\n 1:1\n4:1\n5\n \n"  # with a case for each note
TEST = b"0 0:1\n6 11:2\n"
OTHER = TRAIN.replace(b"2:4", b"2:8")  # of the same size
BOTH = ["train.txt", "test.txt"]


def arrays(data):
    return {
        f"{s}_{a}_{part}": getattr(getattr(getattr(data, s), a), part)
        for s in ("train", "test")
        for a in ("x", "y")
        for part in ("data", "indices", "indptr")
    }


def same(one, other):
    for a, b in zip(arrays(one).values(), arrays(other).values(), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    for a, b in ((one.train, other.train), (one.test, other.test)):
        assert a.x.shape == b.x.shape
        assert a.y.shape == b.y.shape
    assert one.num_classes == other.num_classes
    assert one.name == other.name
    assert one.notes == other.notes


def the_entry(cache):
    (entry,) = cache.iterdir()
    return entry


def described(cache):
    return json.loads((the_entry(cache) / parsed_copies.ABOUT).read_text())["about"]


def file_of(cache, name):
    return the_entry(cache) / described(cache)["folder"] / f"{name}.npy"
