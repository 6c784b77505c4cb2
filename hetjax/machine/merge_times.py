"""The transfers and times of a merge, as clocks, players and records exchange them."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from hetjax.machine.types import ROOT, MergeAction, MergeOp, WorkerInfo

_FORWARD = 1 / 3  # seconds of a forward pass, as a share of a training step


class Moves(NamedTuple):
    """What an operation does, cached because testing a Flag is slow."""

    pushes: bool  # the members' work is used now: PUSH or ACCUMULATE
    fetches: bool
    requests: bool
    delivers: bool
    changes: bool  # there is a new version of the node's model: PUSH or APPLY

    @property
    def moves(self) -> bool:
        """Whether anything moves between the node and its members."""
        return self.pushes or self.fetches or self.requests or self.delivers


@functools.cache
def moves_of(op: MergeOp) -> Moves:
    """Return what an operation does."""
    return Moves(
        pushes=bool(op & (MergeOp.PUSH | MergeOp.ACCUMULATE)),
        fetches=MergeOp.FETCH in op,
        requests=MergeOp.REQUEST in op,
        delivers=MergeOp.DELIVER in op,
        changes=bool(op & (MergeOp.PUSH | MergeOp.APPLY)),
    )


class Traffic(NamedTuple):
    """What a merge moves from each of its members, and to it [bytes]."""

    up: float
    down: float


def changes_root(action: MergeAction) -> bool:
    """Whether a merge changes the run's model."""
    adds = MergeOp.ACCUMULATE in action.op and not moves_of(action.op).changes
    return action.node == ROOT and counts_as_merge(action) and not adds


def counts_as_merge(action: MergeAction) -> bool:
    """Whether an action merges members: it is no mere fetch, or step of a node."""
    return action.op not in (MergeOp.FETCH, MergeOp.STEP)


class Stamps(NamedTuple):
    """The times of the stages of a merge [s]."""

    start: float
    gathered: float  # the members' models are on the node's device
    merged: float
    finish: float  # the members' models are back on their devices


class MergeTimes(NamedTuple):
    """The stamps of a measured merge, and its seconds of compiling."""

    stamps: Stamps  # of `time.perf_counter`
    compiling: float = 0.0


class MergeRequest(NamedTuple):
    """A merge, with everything that determines its duration."""

    action: MergeAction
    num_bytes: float | Traffic  # that a member sends and receives
    seconds: float  # [s] of the members' own time, such as to evaluate held-out data
    below: tuple[int, ...]  # workers that are members or below a member node


class PlannedMerge(NamedTuple):
    """The times of a merge that a clock knows before it is carried out."""

    visible: float  # [s] from which the node's new model is visible
    stamps: Stamps | None = None  # None: measured when it is carried out
    # unreachable members in the replayed run: they are absent
    missing: tuple[int, ...] = ()


def seconds_to_measure(
    action: MergeAction, workers: Sequence[WorkerInfo], num_held_out: int
) -> float:
    """Return the seconds of evaluating a merge's members on the held-out examples.

    An evaluation costs a third of a training step. All workers evaluate their own
    models at once, or the fastest worker evaluates all, whichever takes less time.
    """
    members = [workers[m] for m in action.members if isinstance(m, int)]
    each = [worker.seconds(num_held_out) * _FORWARD for worker in members]
    return min(max(each), len(each) * min(each)) if each else 0.0
