"""The user's settings for checkpoints."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hetjax.arguments import Count, checked

EVERY = "60s"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


@checked
@dataclass(frozen=True)
class Checkpoint:
    """Where and how often to save checkpoints, for `train(checkpoint=...)`.

    `every` is a wall-clock time ("60s", "10min", "1h"), or a number of evaluations ("5
    evals"). The newest `keep` checkpoints stay; each also holds the model of the best
    evaluation so far. If one cannot be written (the disk is full), the run continues
    with a warning, or ends: on_failure="stop". The run waits while its state is copied
    to the host's memory, from which a thread writes it.

    >>> Checkpoint("runs/a", every="10min").interval
    (600.0, 0)
    """

    path: str | Path
    every: str = EVERY
    keep: Count = 2
    on_failure: Literal["continue", "stop"] = "continue"

    def __post_init__(self):
        _ = self.interval

    @property
    def folder(self) -> Path:
        """The path, with a `~` in it expanded."""
        return Path(self.path).expanduser()

    @property
    def interval(self) -> tuple[float, int]:
        """Seconds and evaluations between two checkpoints; one of them is 0."""
        found = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*(s|min|h|evals?)\s*", self.every)
        number = float(found[1]) if found else 0.0
        if found and found[2] in _UNITS and number > 0:
            return number * _UNITS[found[2]], 0
        if found and found[2] not in _UNITS and number >= 1 and number == int(number):
            return 0.0, int(number)
        raise ValueError(
            f'every={self.every!r}: must be a time, such as "60s", "10min" or "1h", or '
            'a number of evaluations, such as "5 evals"'
        )
