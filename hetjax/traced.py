"""Settings of algorithms that may be numbers, or values that JAX traces.

A number may choose what is computed, such as no momentum buffer without momentum. A
traced value is data: the buffer is there, whatever the value.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike

_Arguments = ParamSpec("_Arguments")
_Made = TypeVar("_Made")


def is_given(setting: ArrayLike) -> bool:
    """Is a setting other than the number 0? An array counts as given."""
    return isinstance(setting, jax.Array) or bool(setting != 0)


def kept(make: Callable[_Arguments, _Made]) -> Callable[_Arguments, _Made]:
    """Let a function return the same object for the same settings, as `lru_cache`.

    What it makes from arrays is not kept: traced ones end with their trace.
    """
    cached = lru_cache(make)

    @wraps(make)
    def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Made:
        given = (*args, *kwargs.values())
        traced = any(isinstance(x, jax.Array | np.ndarray) for x in given)
        return make(*args, **kwargs) if traced else cached(*args, **kwargs)

    return made
