"""What threads report to the wall clock about workers."""

from collections.abc import Callable
from typing import NamedTuple


class Completion(NamedTuple):
    """The report of a worker's thread; stamps are those of `time.perf_counter`."""

    worker: int
    began: float
    finished: float
    failure: str = ""  # the traceback of an exception
    received: float = 0.0  # by the thread, before it compiled; 0: when it began
    # [s] that count for its deadline, if more than the round itself was awaited
    waited: float = 0.0


class Vanished(NamedTuple):
    """A worker was lost, whether or not it had a round."""

    worker: int
    why: str
    again: bool = False  # whether a lost worker leaves again, with this reason


class Appeared(NamedTuple):
    """A lost worker can take rounds from now on."""

    worker: int
    why: str
    # called when it joins, after the loss of its predecessor, if there was one
    adopt: Callable[[], None] = lambda: None
