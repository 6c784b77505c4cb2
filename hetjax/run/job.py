"""What the loop is given: a clock to ask, and a job to do on it."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from hetjax.data.batching import Batch, Bucket
from hetjax.data.dataset import Split
from hetjax.machine import Arrival, Event, MergeOrder, Transfer, Work, WorkerInfo
from hetjax.run.programs import Programs


class Clock(Protocol):
    """What the loop asks of a machine; `hetjax.machine.SimulatedClock` is one."""

    workers: tuple[WorkerInfo, ...]
    now: float

    def dispatch(self, worker: int, work: Work, nonzeros: Sequence[int]) -> Arrival:
        """Start work when its worker is free; its arrival is an event to come."""
        ...

    def merge(
        self, order: MergeOrder, num_bytes: float, seconds: float = 0.0
    ) -> Transfer:
        """Occupy the members' link; a Merged event is to come."""
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
        """Move on to the earliest event; None when nothing is pending."""
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
