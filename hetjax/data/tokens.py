"""Sequences of tokens from a long text, for `hetjax.next_token`."""

from typing import Any

import numpy as np

from hetjax.arguments import Count, checked
from hetjax.data.columns import in_memory
from hetjax.data.dataset import Dataset, Split


@checked
def from_tokens(
    train: Any, test: Any, *, length: Count, name: str = "tokens"
) -> Dataset:
    """A data set of consecutive sequences of two texts, with next tokens as targets.

        x_i = text[i T : i T + T],   y_i = text[i T + 1 : i T + T + 1]      T = `length`

    `train` and `test` are arrays [n] of integers, or memory maps of them. Nothing is
    copied: a file of tokens may be larger than the memory. The remainder at a text's
    end is not used. Errors: a ValueError for other arrays, or a text of fewer than
    `length` + 1 tokens.
    """
    return Dataset(
        _sequences("train", train, length), _sequences("test", test, length), 0, name
    )


def _sequences(what: str, text: Any, length: int) -> Split:
    if not isinstance(text, np.ndarray):
        text = np.asarray(text)
    if text.ndim != 1 or text.dtype.kind not in "iu":
        raise ValueError(
            f"{what} is {list(text.shape)} of {text.dtype}: pass the text's tokens as "
            "integers [n]"
        )
    number = (len(text) - 1) // length
    if number < 1:
        raise ValueError(
            f"{what} has {len(text)} tokens: pass more than length={length} of them"
        )
    if in_memory(text) and text.min() < 0:
        raise ValueError(f"{what} has the token {text.min()}: pass numbers from 0 on")
    # views of the text, even if it is a memory map
    x, y = (text[k : k + number * length].reshape(number, length) for k in (0, 1))
    return Split(x, y)
