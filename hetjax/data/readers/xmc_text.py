"""Converts XMC text to numbers, half a MB of whole lines at a time.

The fast parser looks at all separators of a text at once: between two of them there is
a label, a feature's index, its value or nothing, and which one only depends on the two
separators and on whether there is anything between them. A text that the fast parser
cannot handle with certainty is parsed again line by line, which accepts unusual but
legal text and finds the line and cause of an error. Both give the same numbers.
"""

import math
import re
from typing import NamedTuple, NoReturn

import numpy as np

from hetjax.data.readers.errors import DataError


class Bounds(NamedTuple):
    """The indices that may occur: features from `first_index`, labels from zero on."""

    first_index: int
    features: int  # number
    labels: int  # number


class Rows(NamedTuple):
    """The rows of a text, in order: R lines with L labels and E features in all."""

    labels_per_row: np.ndarray  # [R]
    labels: np.ndarray  # [L] int32
    features_per_row: np.ndarray  # [R]
    features: np.ndarray  # [E] int32, zero-based
    values: np.ndarray  # [E] float32
    empty: np.ndarray  # [R] bool, lines without a single character


def parse(text: bytes, bounds: Bounds, path: object, first_line: int) -> Rows:
    """The rows of a text whose every line ends in a newline, or a DataError."""
    rows = _parse_at_once(text, bounds)
    return _parse_lines(text, bounds, path, first_line) if rows is None else rows


# The fast parser: kinds of bytes, and roles of the text between two separators.
_DIGIT, _COLON, _COMMA, _BLANK, _NEWLINE, _ODD, _ILLEGAL = range(7)
_NOTHING, _LABEL, _INDEX, _VALUE, _EMPTY_LINE, _WRONG = range(6)


def _kinds() -> bytes:
    """The kind of each of the 256 bytes; numbers contain digits and _ODD bytes."""
    kinds = bytearray([_ILLEGAL] * 256)
    for kind, members in (
        (_DIGIT, b"0123456789"),
        (_COLON, b":"),
        (_COMMA, b","),
        (_BLANK, b" \t"),
        (_NEWLINE, b"\n"),
        (_ODD, b".eE+-"),
    ):
        for byte in members:
            kinds[byte] = kind
    return bytes(kinds)


def _roles() -> np.ndarray:
    """The role of the text between two separators: [before, after, is it empty]."""
    roles = np.full((5, 5, 2), _WRONG)
    for before in (_NEWLINE, _COMMA):
        roles[before, (_COMMA, _BLANK, _NEWLINE), 0] = _LABEL
    for before in (_NEWLINE, _BLANK):
        roles[before, _COLON, 0] = _INDEX
    roles[_COLON, (_BLANK, _NEWLINE), 0] = _VALUE
    roles[_NEWLINE, _BLANK, 1] = _NOTHING
    roles[_BLANK, (_BLANK, _NEWLINE), 1] = _NOTHING
    roles[_NEWLINE, _NEWLINE, 1] = _EMPTY_LINE
    return roles


_KINDS, _ROLES = _kinds(), _roles()


def _parse_at_once(text: bytes, bounds: Bounds) -> Rows | None:
    """The rows, or None if anything is doubtful."""
    text = b"\n" + text  # so that the first row also begins after a newline
    kinds = np.frombuffer(text.translate(_KINDS), np.uint8)
    if kinds.max() == _ILLEGAL:
        return None
    separators = np.flatnonzero((kinds != _DIGIT) & (kinds != _ODD))
    starts, stops = separators[:-1] + 1, separators[1:]
    before, after = kinds[separators[:-1]], kinds[stops]
    role = _ROLES[before, after, (starts == stops).astype(np.intp)]
    odd_so_far = np.cumsum(kinds == _ODD, dtype=np.int32)[separators]
    odd_at = np.append(np.flatnonzero(kinds == _ODD), 0)
    plain = odd_so_far[:-1] == odd_so_far[1:]  # digits only
    integer = (role == _LABEL) | (role == _INDEX)
    if (role == _WRONG).any() or not plain[integer].all():
        return None

    row = np.cumsum(before == _NEWLINE) - 1
    at_label, at_index = np.flatnonzero(role == _LABEL), np.flatnonzero(role == _INDEX)
    labels = _integers(text, starts[at_label], stops[at_label])
    features = _integers(text, starts[at_index], stops[at_index])
    at_value = at_index + 1  # the grammar allows nothing else after a colon
    odd = odd_so_far[at_value], odd_so_far[at_value + 1], odd_at
    values = _values(text, starts[at_value], stops[at_value], *odd)
    if labels is None or features is None or values is None:
        return None
    features -= bounds.first_index
    if not _inside(labels, bounds.labels) or not _inside(features, bounds.features):
        return None
    num_rows = int(row[-1]) + 1
    return Rows(
        labels_per_row=np.bincount(row[at_label], minlength=num_rows),
        labels=labels.astype(np.int32),
        features_per_row=np.bincount(row[at_index], minlength=num_rows),
        features=features.astype(np.int32),
        values=values,
        empty=role[before == _NEWLINE] == _EMPTY_LINE,
    )


def _inside(numbers: np.ndarray, bound: int) -> bool:
    return not numbers.size or (numbers.min() >= 0 and numbers.max() < bound)


def _integers(text: bytes, starts: np.ndarray, stops: np.ndarray) -> np.ndarray | None:
    """The integers [n] int64 whose digits are at these places; None if too long.

    Works digit by digit from the right, on all numbers at once: ten times faster than
    `np.fromstring`.
    """
    buffer = np.frombuffer(text, np.uint8)
    width = stops - starts
    numbers = np.zeros(len(starts), np.int64)
    longest = int(width.max(initial=0))
    if longest > 18:  # 10**18 is the largest power of ten in 63 bits
        return None
    for place in range(longest):
        wide = np.flatnonzero(width > place)
        digits = buffer[stops[wide] - 1 - place] - ord("0")
        numbers[wide] += digits.astype(np.int64) * 10**place
    return numbers


def _values(
    text: bytes,
    starts: np.ndarray,
    stops: np.ndarray,
    odd_before: np.ndarray,
    odd_after: np.ndarray,
    odd_at: np.ndarray,
) -> np.ndarray | None:
    """The values [n] float32 at these places; None if one is not a finite number.

    A decimal of up to 15 digits is exactly an integer over a power of ten, whose
    quotient equals the result of `float`. Other numbers go through `float`. Of the odd
    bytes at `odd_at`, `odd_before` [n] lie before each number, and `odd_after` [n]
    before its end.
    """
    buffer = np.frombuffer(text, np.uint8)
    negative = buffer[starts] == ord("-")
    begins = starts + negative
    odd = odd_after - odd_before - negative  # beside the sign
    point = np.where(odd == 1, odd_at[odd_before + negative], stops)
    digits = stops - begins - odd
    easy = (odd == 0) | ((odd == 1) & (buffer[point] == ord(".")))
    easy &= (digits > 0) & (digits <= 15)

    values = np.empty(len(starts))
    whole = _integers(text, begins[easy], point[easy])
    fraction = _integers(text, point[easy] + 1, stops[easy])
    scale = 10 ** np.maximum(stops[easy] - point[easy] - 1, 0)
    values[easy] = (whole * scale + fraction) / scale
    values[easy & negative] *= -1
    places = zip(starts[~easy].tolist(), stops[~easy].tolist(), strict=True)
    try:
        values[~easy] = [float(text[start:stop]) for start, stop in places]
    except ValueError:
        return None
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    return values if np.isfinite(values).all() else None


# The slow parser.
_INTEGER = re.compile(rb"[+-]?0*\d{1,18}")


def _parse_lines(text: bytes, bounds: Bounds, path: object, first_line: int) -> Rows:
    """The rows, parsed one by one; an error names the line."""
    lines = text.split(b"\n")[:-1]
    rows = []
    for number, line in enumerate(lines, start=first_line):
        try:
            rows.append(_parse_line(line, bounds))
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
    labels, pairs = [row[0] for row in rows], [row[1] for row in rows]
    features = [pair[0] for row in pairs for pair in row]
    values = [pair[1] for row in pairs for pair in row]
    return Rows(
        labels_per_row=np.array([len(row) for row in labels], np.int64),
        labels=np.array([label for row in labels for label in row], np.int32),
        features_per_row=np.array([len(row) for row in pairs], np.int64),
        features=np.array(features, np.int32),
        values=np.array(values, np.float64).astype(np.float32),
        empty=np.array([not line for line in lines], bool),
    )


def _parse_line(
    line: bytes, bounds: Bounds
) -> tuple[list[int], list[tuple[int, float]]]:
    """The labels and (feature, value) pairs of a row; a ValueError if it is invalid."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        found = f"byte 0x{line[error.start]:02x} in column {error.start + 1}"
        _fail(f"not a text file ({found}); damaged, or compressed other than by gzip?")
    words = line.split()  # at any white space
    labels = []
    if words and not line[:1].isspace() and b":" not in words[0]:
        labels = [_label(word, bounds) for word in words.pop(0).split(b",")]
    return labels, [_feature(word, bounds) for word in words]


def _label(word: bytes, bounds: Bounds) -> int:
    if not _INTEGER.fullmatch(word):
        _fail(f"label {_shown(word)} is not an integer")
    if not 0 <= int(word) < bounds.labels:
        _fail(f"label {int(word)} is outside 0..{bounds.labels - 1}")
    return int(word)


def _feature(word: bytes, bounds: Bounds) -> tuple[int, float]:
    """The zero-based index and the value of one `index:value`."""
    index_text, _, value_text = word.partition(b":")
    try:
        value = float(value_text)
    except ValueError:
        value = None
    if value is None or b"_" in value_text or not _INTEGER.fullmatch(index_text):
        _fail(f"feature {_shown(word)} is not index:value")
    if not math.isfinite(value) or abs(value) >= 2.0**128 - 2.0**103:
        _fail(f"feature {_shown(word)} is not finite in float32")
    index, first = int(index_text), bounds.first_index
    if not first <= index < first + bounds.features:
        hint = "; numbered from one? then pass first_index=1" if not first else ""
        hint = hint if index == bounds.features else ""
        last = first + bounds.features - 1
        _fail(f"feature {index} is outside {first}..{last}{hint}")
    return index - first, value


def _fail(message: str) -> NoReturn:
    raise ValueError(message)


def _shown(word: bytes) -> str:
    """A word of the file for a message, cut if it is long."""
    text = word.decode(errors="replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")
