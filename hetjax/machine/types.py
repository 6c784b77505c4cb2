"""Work, events, and what a policy may know of a worker (host world, no JAX).

These are the words that machines, policies and the loop speak with each other.
Times are seconds since the start of the run; workers are numbered from 0.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

ROOT = "root"  # the node whose model is the run's model


class WorkerInfo(NamedTuple):
    """A worker as a policy sees it when it is born, before anything was measured."""

    index: int
    name: str
    kind: str  # of device: workers of one kind run the same compiled program
    place: tuple[str, ...]  # path from the machine's root, () where it is flat
    fixed: float  # [s] expected seconds of a step of no examples
    per_example: float  # [s/example], with the data's mean number of non-zeros
    device: str = ""  # workers of one device share its speed; "": one of its own
    present: bool = True  # when the run begins; who is not may join later

    def seconds(self, batch_size: float) -> float:
        """Expected seconds of one step on `batch_size` examples, without noise."""
        return self.fixed + self.per_example * batch_size


class LocalRound(NamedTuple):
    """What a worker does between two reports: steps on `size` examples each."""

    local_steps: int  # 0 is a timed fetch: no examples
    batch_size: float  # [examples] real-valued, as the policy computes with it
    lr_scale: float = 1.0  # of the learning rate that the schedule gives
    seconds: float = 0.0  # [s] before the steps: a timed copy

    @property
    def size(self) -> int:
        """The batch size that is dispatched [examples], at least 1."""
        return max(1, int(round(self.batch_size)))

    @property
    def examples(self) -> int:
        """Examples that this work consumes."""
        return self.local_steps * self.size


class MergeOp(enum.Flag):
    """What happens in a merge; a combination of these.

    >>> MergeOp.PUSH in PUSH_FETCH, MergeOp.DELIVER in PUSH_FETCH
    (True, False)
    """

    PUSH = enum.auto()  # the members give what they have
    FETCH = enum.auto()  # the members take the node's model
    RESET_TO_CENTER = enum.auto()  # and forget everything that they remember besides
    REQUEST = enum.auto()  # the node's model, as it is now, is sent to their mailbox
    DELIVER = enum.auto()  # what is in their mailbox replaces their model
    STEP = enum.auto()  # the node first makes its own steps (`server_steps`)
    SUBTRACT = enum.auto()  # their last gradient is taken out of the node's sum
    CLEAR = enum.auto()  # the node's sum of gradients starts again from zero
    FORGET = enum.auto()  # their last gradient is not in the node's sum any more


PUSH_FETCH = MergeOp.PUSH | MergeOp.FETCH  # the usual merge


class MergeAction(NamedTuple):
    """Merge the replicas of `members` into the state of `node`.

    A Merge says which operations it has; FETCH alone is done by the loop for all.
    """

    members: tuple[int | str, ...]  # workers at rest, and nodes below this one
    node: str = ROOT
    op: MergeOp = PUSH_FETCH  # static under jit
    blocking: bool = True  # do the members wait until the merge is done?
    partners: tuple[int, ...] = ()  # workers that take part, and never wait
    transfers: int = 2  # of the model over the link: there, back; 0 needs no link
    server_steps: int | None = (
        None  # steps of a node that steps itself, since the last merge
    )


class Arrival(NamedTuple):
    """A worker reports back: it computed `local_round` from `start` to `finish`."""

    worker: int
    local_round: LocalRound
    start: float
    finish: float

    @property
    def time(self) -> float:
        """When the policy hears of it."""
        return self.finish


class Merged(NamedTuple):
    """A merge at a node is done and its result is visible."""

    node: str
    time: float
    members: tuple[int | str, ...] = ()
    op: MergeOp = PUSH_FETCH


class EvaluationDue(NamedTuple):
    """The model is about to be evaluated: a policy may order merges before that."""

    time: float


class Evaluated(NamedTuple):
    """The model was evaluated: `metrics` are floats by name."""

    metrics: dict[str, float]
    time: float


class Timer(NamedTuple):
    """A time that the policy asked to be told of."""

    name: str
    time: float


class Leave(NamedTuple):
    """A worker takes no more part.

    One that was stopped finishes the work it has. One that is `lost` (killed, broken,
    silent) does not: no arrival of that work is to come, and nothing of it is merged.
    """

    worker: int
    time: float
    lost: bool = False
    why: str = ""


class Join(NamedTuple):
    """A worker takes part from now on: it waits for work."""

    worker: int
    time: float
    why: str = ""


class Slow(NamedTuple):
    """A worker's steps take `factor` times as long from now on, as scripted.

    Of the books alone: a policy sees what it measures.
    """

    worker: int
    time: float
    factor: float


Event = Arrival | Merged | EvaluationDue | Evaluated | Timer | Leave | Join | Slow


class Stamps(NamedTuple):
    """When the parts of a merge took place [s]."""

    start: float
    gathered: float  # the members' models are where the merge is
    merged: float
    finish: float  # they are back


class MergeTimes(NamedTuple):
    """A real merge as it was measured: stamps, and seconds of compiling within it."""

    stamps: Stamps
    compiling: float = 0.0


class PlannedMerge(NamedTuple):
    """A merge that a clock has carried out, and what its seconds depend on."""

    action: MergeAction
    num_bytes: float  # of a member's model
    seconds: float  # [s] of the members' own, as for looks at held-out data
    below: tuple[int, ...]  # the workers that the members are, or stand for
    run: Callable[[float], MergeTimes]  # carries it out, visible from that time on


class RunEnded(Exception):
    """A clock has no more events: the run that it plays again ended here, and why."""


def per_worker(name: str, value: float | Sequence[float], n: int) -> tuple[float, ...]:
    """A number for each of n workers; what is wrong with them is an error."""
    values = tuple(value) if isinstance(value, Iterable) else (value,) * n
    if len(values) != n:
        raise ValueError(
            f"{name} has {len(values)} entries for {n} workers: give one number for "
            "all, or one for each"
        )
    if any(not v > 0 for v in values):  # NaN too
        raise ValueError(f"{name}={value}: every entry must be positive")
    return values
