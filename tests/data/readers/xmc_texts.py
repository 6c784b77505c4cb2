"""Texts to read: rows as (labels, (feature, value) pairs), random and written out."""

import gzip

from hypothesis import strategies as st

FEATURES, LABELS = 12, 7
GOOD = "2,3 1:1 4:0.5\n"
TRAIN = b"5 12 7\n1,1,2 3:1 2:4 3:0.5\n 1:1\n4:1\n5\n \n"  # with a case for each note
TEST = b"0 0:1\n6 11:2\n"


def write(folder, name, text, zipped):
    path = folder / (name + ".gz" * zipped)
    path.write_bytes(gzip.compress(text) if zipped else text)
    return path


def text_of(rows, header=None):
    lines = [" ".join(map(str, header))] if header else []
    for labels, pairs in rows:
        words = [f"{index}:{value}" for index, value in pairs]
        lines.append(" ".join([",".join(map(str, labels)), *words]) or " ")
    return "".join(line + "\n" for line in lines).encode()


numbers = st.one_of(
    st.integers(-50, 50).map(str),
    st.decimals(-99, 99, places=6).map(str),
    st.floats(-1e6, 1e6, width=32).map(repr),
    st.sampled_from(
        [".5", "3.", "-.25", "1e-05", "2E3", "+4", "0.1234567890123456789"]
    ),
)
pairs = st.lists(
    st.tuples(st.integers(0, FEATURES - 1), numbers),
    max_size=6,
    unique_by=lambda pair: pair[0],
)
row = st.tuples(st.lists(st.integers(0, LABELS - 1), max_size=4), pairs)
full = ([LABELS - 1], [(FEATURES - 1, "1")])  # fixes the sizes without a header
some_rows = st.lists(row, min_size=1, max_size=12).map(lambda rows: [*rows, full])
