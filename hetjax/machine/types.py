"""Local rounds, merges, events, and a policy's view of a worker (host, no JAX).

Machines, policies and the loop exchange values of these types. Times are seconds since
the start of the run; workers are numbered from 0.
"""

import enum
from typing import NamedTuple

ROOT = "root"  # the node whose model is the run's model


class WorkerInfo(NamedTuple):
    """A worker as a policy sees it at the start, before measurements."""

    index: int
    name: str
    kind: str  # of device; workers of one kind run the same compiled programs
    place: tuple[str, ...]  # path from the machine's root; () if the machine is flat
    fixed: float  # [s] expected seconds of a step without examples
    per_example: float  # [s/example], with the data's mean number of non-zeros
    device: str = ""  # workers of one device share its speed; "": a device of its own
    present: bool = True  # when the run begins; an absent worker may join later

    def seconds(self, batch_size: float) -> float:
        """Return the expected seconds of a step of `batch_size` examples."""
        return self.fixed + self.per_example * batch_size


class LocalRound(NamedTuple):
    """A worker's work between two reports: local steps of `size` examples each."""

    local_steps: int  # 0 is a timed fetch, which uses no examples
    batch_size: float  # [examples] real-valued; `size` is rounded
    lr_scale: float = 1.0  # factor on the schedule's learning rate
    seconds: float = 0.0  # [s] before the steps, of a timed copy of the model

    @property
    def size(self) -> int:
        """The dispatched batch size [examples], at least 1."""
        return max(1, int(round(self.batch_size)))

    @property
    def examples(self) -> int:
        """The number of examples that the round consumes."""
        return self.local_steps * self.size


class MergeOp(enum.Flag):
    """The operations of a merge: a combination of these flags.

    >>> MergeOp.PUSH in PUSH_FETCH, MergeOp.DELIVER in PUSH_FETCH
    (True, False)
    """

    PUSH = enum.auto()  # the members' models or gradients go into the node's state
    FETCH = enum.auto()  # the members take the node's model
    RESET_TO_CENTER = enum.auto()  # the members restart from the node's model
    REQUEST = enum.auto()  # the node's current model is put into the members' mailboxes
    DELIVER = enum.auto()  # the model in its mailbox replaces each member's model
    STEP = enum.auto()  # the node first makes its own steps (`server_steps`)
    SUBTRACT = enum.auto()  # the members' last gradients leave the node's sum
    CLEAR = enum.auto()  # the node's sum of gradients starts again from zero
    FORGET = enum.auto()  # the members' last gradients count as not in the node's sum
    ACCUMULATE = enum.auto()  # what members would push enters sums; the model stays
    APPLY = enum.auto()  # the node's model changes by what its sums hold

    # fast, since tables are looked up at every merge; Enum's is a Python function
    __hash__ = object.__hash__


PUSH_FETCH = MergeOp.PUSH | MergeOp.FETCH  # the usual merge


class MergeAction(NamedTuple):
    """Merge the replicas of `members` into the state of `node`.

    A Merge declares the operations that it supports; the loop itself does FETCH alone.
    APPLY alone needs no members.
    """

    members: tuple[int | str, ...]  # workers at rest, and nodes below this one
    node: str = ROOT
    op: MergeOp = PUSH_FETCH  # static under jit
    blocking: bool = True  # whether the members wait until the merge is done
    partners: tuple[int, ...] = ()  # workers that take part without waiting
    transfers: int = 2  # of the model over the link: there and back; 0 needs no link
    # steps since the last merge of a node that makes its own steps; else None
    server_steps: int | None = None
    part: str = ""  # of the model, for a merge that has parts; "": the whole model
    weight: float = 1.0  # of its members (`WorkerStats.weight`)


class Arrival(NamedTuple):
    """A worker has computed `local_round`, from `start` to `finish`."""

    worker: int
    local_round: LocalRound
    start: float
    finish: float

    @property
    def time(self) -> float:
        """The time at which the policy receives the event."""
        return self.finish


class Merged(NamedTuple):
    """A merge at a node is done, and its result is visible."""

    node: str
    time: float
    members: tuple[int | str, ...] = ()
    op: MergeOp = PUSH_FETCH


class EvaluationDue(NamedTuple):
    """The model is about to be evaluated; a policy may request merges first."""

    time: float


class Evaluated(NamedTuple):
    """The model was evaluated: `metrics` are floats by name."""

    metrics: dict[str, float]
    time: float


class Timer(NamedTuple):
    """A time at which the policy requested an event."""

    name: str
    time: float


class Leave(NamedTuple):
    """A worker becomes inactive.

    A stopped worker finishes its local round. A worker that is `lost` (killed, failed
    or unresponsive) does not: its round never arrives, and nothing of it is merged.
    """

    worker: int
    time: float
    lost: bool = False
    why: str = ""


class Join(NamedTuple):
    """A worker becomes active and waits for a local round."""

    worker: int
    time: float
    why: str = ""


class Slow(NamedTuple):
    """A scripted fault: a worker's steps take `factor` times as long from now on.

    Only the history records it; a policy sees the slowdown in measured times.
    """

    worker: int
    time: float
    factor: float


Event = Arrival | Merged | EvaluationDue | Evaluated | Timer | Leave | Join | Slow


class RunEnded(Exception):
    """Raised by a clock or policy that has ended; the message is the reason."""
