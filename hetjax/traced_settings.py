"""Settings of algorithms that may be numbers, or values that JAX traces.

A number may choose what is computed, such as no momentum buffer without momentum. A
traced value is data: the buffer exists for every value.
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
    """Whether a setting is other than the number 0. An array counts as given."""
    return isinstance(setting, jax.Array) or bool(setting != 0)


def memoized(make: Callable[_Arguments, _Made]) -> Callable[_Arguments, _Made]:
    """Make a function return the same object for the same settings, as `lru_cache`.

    Results for arrays are not cached: a traced array ends with its trace.
    """
    cached = lru_cache(make)

    @wraps(make)
    def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Made:
        given = (*args, *kwargs.values())
        traced = any(isinstance(x, jax.Array | np.ndarray) for x in given)
        return make(*args, **kwargs) if traced else cached(*args, **kwargs)

    return made
