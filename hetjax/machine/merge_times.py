"""The transfers and times of a merge, as clocks, players and records exchange them."""

import functools
from typing import NamedTuple

from hetjax.machine.types import MergeAction, MergeOp


class Moves(NamedTuple):
    """The transfers of an operation, cached because testing a Flag is slow."""

    pushes: bool
    fetches: bool
    requests: bool
    delivers: bool


@functools.cache
def moves_of(op: MergeOp) -> Moves:
    """Return the transfers of an operation."""
    flags = (MergeOp.PUSH, MergeOp.FETCH, MergeOp.REQUEST, MergeOp.DELIVER)
    return Moves(*(flag in op for flag in flags))


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
    num_bytes: float  # of a member's model
    seconds: float  # [s] of the members' own time, such as to evaluate held-out data
    below: tuple[int, ...]  # workers that are members or below a member node


class PlannedMerge(NamedTuple):
    """The times of a merge that a clock knows before it is carried out."""

    visible: float  # [s] from which the node's new model is visible
    stamps: Stamps | None = None  # None: measured when it is carried out
    # unreachable members in the replayed run: they are absent
    missing: tuple[int, ...] = ()
