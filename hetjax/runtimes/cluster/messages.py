"""What a driver and its members tell each other, besides arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.data.batching import Bucket


class ActorDevice(NamedTuple):
    """A member's device, as it describes itself."""

    kind: str
    platform: str
    process: int
    host: str


class RunSettings(NamedTuple):
    """What a member needs to know of a run; texts are the keys of what it has."""

    worker: int  # its number in the run
    settings: str  # `StepSettings`
    task: str
    data: str
    seed: int
    buckets: tuple[Bucket, ...]
    on_nan: str
    slowdown: float


class RoundCall(NamedTuple):
    """A local round: row numbers travel, the examples are with the member."""

    rows: Sequence[np.ndarray]
    learning_rate: np.float32
    first_step: int
    step_mode: str
    send: tuple[int, ...]  # leaves of the replica that are sent with the report
    number: int  # of the worker's rounds in this run


class RoundReport(NamedTuple):
    """What became of a local round."""

    seconds: float  # that it took, without compiling
    compiling: float  # [s] besides
    failure: str = ""  # the traceback of an exception
    losses: tuple[np.ndarray, ...] = ()  # of one step, or of all
    mean: Any = np.float32(0)
    padded: int = 0
    finite: bool = True


class ActorStatus(NamedTuple):
    """How a member is: it answers this at once."""

    compiling: bool
