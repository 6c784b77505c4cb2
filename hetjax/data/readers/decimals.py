"""Numbers such as 17 and 0.054321 from bytes, all numbers of a text at once.

Eight bytes of the text are one 64-bit integer, whose bytes are combined in parallel: a
number takes some twenty operations, however many digits it has. The first character is
the lowest byte (little-endian). Numbers of up to eight characters are read from one
such integer, those of up to sixteen from two.
"""

import numpy as np

LONGEST = 16  # [bytes] of a number; the text needs 8 bytes behind each start
_EXACT = 15  # digits: such integers, and powers of ten, are exact in float64


def _eight(byte: int) -> np.uint64:
    """The byte, repeated eight times."""
    return np.uint64(byte * 0x0101010101010101)


_U = np.uint64
_ZEROS, _ONES, _HIGHS = _eight(ord("0")), _eight(1), _eight(0x80)
_ABOVE_NINE = _eight(0x80 - 10)  # added to a byte above 9, this reaches the highest bit
_POINT = ord(".") ^ ord("0")  # 0b11110, while digits become 0 to 0b1001
# times 256**p, the highest three bits are 7 - p: the digits behind a point in byte p
_BEHIND = _U(sum((7 - p) << (61 - 8 * p) for p in range(8)))
_POWERS = np.array([float(10**k) for k in range(LONGEST)])


def integers(text: bytes, starts: np.ndarray, widths: np.ndarray) -> np.ndarray | None:
    """The integers [n] int64 at these places; None unless all have 1 to 16 digits."""
    eights = _eights(text)
    packed = _aligned(eights[starts], widths)
    wrong = np.bitwise_or.reduce(_not_digits(packed))
    numbers = _added_up(packed)
    longer = np.flatnonzero(widths > 8)
    if longer.size:
        low, high = _aligned_pair(eights, starts[longer], widths[longer])
        numbers[longer] = _added_up(low) * 10**8 + _added_up(high)
        wrong |= np.bitwise_or.reduce(_not_digits(low) | _not_digits(high))
    if wrong or widths.min(initial=1) < 1 or widths.max(initial=1) > LONGEST:
        return None
    return numbers


def decimals(
    text: bytes, starts: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers [n] float64 at these places, and the indices of unread ones.

    Reads decimals of up to 15 digits, with or without a point: such a number is exactly
    an integer over a power of ten, and the quotient equals the result of `float`.
    """
    eights = _eights(text)
    packed = _aligned(eights[starts], widths)
    packed, point, pointed, wrong = _without_point(packed)
    digits = _added_up(_closed(packed, point, pointed))
    places = (point * _BEHIND >> _U(61)).view(np.int64)
    unread = (wrong != 0) | (widths <= pointed.view(np.int64))  # no digits
    longer = np.flatnonzero(widths > 8)
    if longer.size:
        found = _longer_decimals(eights, starts[longer], widths[longer])
        digits[longer], places[longer], unread[longer] = found
    # unread numbers may have more than 15 places
    return digits / _POWERS.take(places, mode="clip"), np.flatnonzero(unread)


def _longer_decimals(
    eights: np.ndarray, starts: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digits as one integer, the number of decimal places, and whether it is unread."""
    low, high = _aligned_pair(eights, starts, widths)
    low, low_point, in_low, wrong = _without_point(low)
    high, high_point, in_high, wrong_high = _without_point(high)
    # the last digit of `low` moves up to fill the place of a point in `high`
    last = (low >> _U(56)) * in_high
    high = _closed(high, high_point, in_high) + last
    low = _closed(low, low_point, in_low) << _U(8) * in_high
    digits = _added_up(low) * 10**8 + _added_up(high)
    places = (high_point * _BEHIND >> _U(61)) + (
        (low_point * _BEHIND >> _U(61)) + _U(8)
    ) * in_low
    number = widths - (in_low | in_high).view(np.int64)
    unread = (wrong | wrong_high | (in_low & in_high)) != 0
    return digits, places.view(np.int64), unread | (number > _EXACT)


def _eights(text: bytes) -> np.ndarray:
    """Overlapping views of eight bytes, one from each place of the text."""
    return np.ndarray(len(text) - 7, "<u8", text, strides=(1,))


def _aligned(packed: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """Values 0 to 9 instead of digits, with leading zeros, without what follows."""
    packed = packed ^ _ZEROS
    # NumPy shifts by 64 bits or more to zero; so do negative ones as unsigned numbers
    packed <<= (64 - 8 * widths).view(np.uint64)
    return packed


def _aligned_pair(
    eights: np.ndarray, starts: np.ndarray, widths: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The two integers of a number with 9 to 16 characters."""
    return _aligned(eights[starts], widths - 8), eights[starts + widths - 8] ^ _ZEROS


def _not_digits(packed: np.ndarray) -> np.ndarray:
    """Nonzero where a byte is above 9."""
    above = packed + _ABOVE_NINE
    above |= packed
    above &= _HIGHS
    return above


def _without_point(packed: np.ndarray) -> tuple[np.ndarray, ...]:
    """Replace a decimal point by zero; return (packed, point, pointed, wrong).

    `point` is 256**p for a point in byte p, else 0; `pointed` is 1 for a point, else 0;
    `wrong` is nonzero for anything but digits and at most one point. A "/" would be
    taken for a point and a one.
    """
    point = (packed >> _U(4)) & _ONES
    packed = packed - _U(_POINT) * point
    pointed = -point >> _U(63)
    return packed, point, pointed, _not_digits(packed) | (point & (point - pointed))


def _closed(packed: np.ndarray, point: np.ndarray, pointed: np.ndarray) -> np.ndarray:
    """Close the gap of the point: move the digits before it up by a byte."""
    before = packed & (point - pointed)
    return packed + _U(255) * before


def _added_up(packed: np.ndarray) -> np.ndarray:
    """The integers [n] int64 of eight digits: joined to four pairs, two fours, one."""
    packed = packed * _U(10 << 8 | 1)
    packed >>= _U(8)
    packed &= _U(0x00FF00FF00FF00FF)
    packed *= _U(100 << 16 | 1)
    packed >>= _U(16)
    packed &= _U(0x0000FFFF0000FFFF)
    packed *= _U(10_000 << 32 | 1)
    packed >>= _U(32)
    return packed.view(np.int64)
