"""Work, events, and what a policy may know of a worker (host world, no JAX).

These are the words that machines, policies and the loop speak with each other.
Times are seconds since the start of the run; workers are numbered from 0.
"""

from collections.abc import Iterable, Sequence
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


class Work(NamedTuple):
    """What a worker does between two reports: `steps` steps on `size` examples each."""

    steps: int  # 0 is a timed fetch: no examples
    batch_size: float  # [examples] real-valued, as the policy computes with it
    rate: float = 1.0  # relative: the loop multiplies by the schedule's value
    seconds: float = 0.0  # [s] before the steps: a timed copy

    @property
    def size(self) -> int:
        """The batch size that is dispatched [examples], at least 1."""
        return max(1, int(round(self.batch_size)))

    @property
    def examples(self) -> int:
        """Examples that this work consumes."""
        return self.steps * self.size


class MergeOrder(NamedTuple):
    """Merge the replicas of `members` into the state of `node`.

    `op` is "" (the members give their models and take the node's), or words with "+"
    between them: "push" (they give), "fetch" (they take), "request" (the node's model
    as it is now is sent to their mailbox), "deliver" (it replaces theirs), "restart"
    (as "", and everything that a member remembers starts anew). Not every Merge knows
    all of them; "fetch" alone the loop does itself.
    """

    members: tuple[int | str, ...]  # workers at rest, and nodes below this one
    node: str = ROOT
    op: str = ""  # static under jit
    blocking: bool = True  # do the members wait until the merge is done?
    passive: tuple[int, ...] = ()  # workers that take part, and never wait
    trips: int = 2  # of the model over the link: there, back; 0 needs no link
    ticks: int | None = None  # steps of a node that steps itself, since the last merge
    level: int = 0  # of the node: 0 merges workers, 1 merges such nodes, ...

    @property
    def words(self) -> tuple[str, ...]:
        """What happens, in words."""
        if self.op in ("", "restart"):
            return ("push", "fetch")
        return tuple(self.op.split("+"))


class Arrival(NamedTuple):
    """A worker reports back: it computed `work` from `start` to `finish`."""

    worker: int
    work: Work
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
    op: str = ""


class Evaluated(NamedTuple):
    """The model was evaluated: `metrics` are floats by name."""

    metrics: dict[str, float]
    time: float


class Alarm(NamedTuple):
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


Event = Arrival | Merged | Evaluated | Alarm | Leave | Join | Slow


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
