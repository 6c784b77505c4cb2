"""Checks of the settings of output layers."""

import math
from typing import Any

from hetjax.data.dataset_checks import is_real, is_whole


def check_counts(most: int, **settings: Any) -> None:
    """A ValueError that names the first setting that is not a number from 1 to most."""
    for name, value in settings.items():
        if not is_whole(value) or not 1 <= value <= most:
            raise ValueError(
                f"{name}={value!r}: give a whole number of at least 1 and at most "
                f"{most:,}"
            )


def check_decay(name: str, value: Any) -> None:
    """A ValueError unless the value is a finite number of at least 0."""
    if not is_real(value) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name}={value!r}: intervals grow, give a number from 0 on")
