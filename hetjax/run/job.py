"""What the loop is given: a clock to ask, and a job to do on it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from hetjax.data.batching import Batch, Bucket
from hetjax.data.dataset import Split
from hetjax.machine import (
    Arrival,
    Event,
    MergeOrder,
    Stamps,
    Transfer,
    Work,
    WorkerInfo,
)
from hetjax.run.executor import Executor, Inline
from hetjax.run.holdings import Places
from hetjax.run.programs import Programs

ON_NAN = ("stop", "restart")
ON_LOSS = ("go_on", "stop")


class Clock(Protocol):
    """What the loop asks of a machine; `hetjax.machine.SimulatedClock` is one."""

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """All who may ever take part."""
        ...

    @property
    def now(self) -> float:
        """Seconds at the last event."""
        ...

    @property
    def expects(self) -> bool:
        """May somebody who is not there still come?"""
        ...

    def begin(self) -> None:
        """Time runs from now on."""
        ...

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """Start work when its worker is free; its arrival is an event to come.

        The one that is returned says when it starts; its finish is a plan.
        """
        ...

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """When a merge will take place, as far as that is known before it."""
        ...

    def merged(
        self,
        order: MergeOrder,
        transfer: Transfer,
        stamps: Stamps | None = None,
        compiling: float = 0.0,
    ) -> Stamps:
        """When it did, and a Merged event is to come.

        `stamps` are a real merge's, in which so many seconds went into compiling.
        """
        ...

    def paused(self) -> AbstractContextManager[Any]:
        """Time stands still within."""
        ...

    def start(self, worker: int) -> None:
        """Let a worker take part from now on; a Join is to come."""
        ...

    def stop(self, worker: int) -> None:
        """Give a worker no more work; a Leave is to come."""
        ...

    def set_alarm(self, name: str, time: float) -> None:
        """Ask for an Alarm event."""
        ...

    def next(self) -> Event | None:
        """Move on to the earliest event; None when there is none (yet)."""
        ...


class Job(NamedTuple):
    """What is trained, and how it is measured."""

    programs: Programs
    train: Split
    buckets: tuple[Bucket, ...]
    test: list[Batch]  # the evaluation batches of
    num_test: int  # so many examples
    held_out: list[Batch]  # of the training split, for merges that measure
    num_held_out: int
    instants: tuple[float, ...]  # [s] of the evaluations, rising; the last is the end
    seed: int
    executor: Callable[[Any], Executor] = lambda steps: Inline(steps.run)
    places: Places | None = None  # of real devices
    on_nan: str = "stop"  # one of ON_NAN
    on_loss: str = "go_on"  # one of ON_LOSS: of a worker
