"""The tape: what a run does, as a stream of entries, written before it is played.

The writer (`hetjax.engine.tape_writer`) decides; a player carries out. The tape
consists of

- the events of the clock and the `Actions` of the policy;
- instructions for a player, and
- notes for the records of the run, which are the classes below.

Some entries have an answer, which is sent back to the writer: the result of a round
after its Arrival, an `EvaluatedModel` after `EvaluateRoot`, the stamps of a merge whose
times are measured. A plan, or a test of a policy, only reads the tape. Host world.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.engine.protocols import EvaluatedModel
from hetjax.machine.merge_times import Stamps, Traffic
from hetjax.machine.types import LocalRound, MergeAction

EVALUATE = "evaluate"  # the writer's timer; it comes after all arrivals of its time

# -- instructions ------------------------------------------------------------------


class BeginReplica(NamedTuple):
    """Make a worker's replica from the root's current model."""

    worker: int


class StartRound(NamedTuple):
    """Start a local round from the replica that its worker holds now.

    Its result becomes visible with its Arrival, at which the player checks the replica
    in, and resets it if it is not finite and on_nan="reset".
    """

    worker: int
    local_round: LocalRound
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    nonzeros: Sequence[int]  # in the inputs of each step
    learning_rate: np.float32
    first_step: int  # its number, counted over all rounds of the worker
    start: float  # [s]


class GatherReplicas(NamedTuple):
    """Fetch what a merge reads; the answer is the unreachable members."""

    action: MergeAction


class MeasureMembers(NamedTuple):
    """Evaluate all members on the held-out examples; the answer is the main metrics."""

    action: MergeAction


class MergeReplicas(NamedTuple):
    """Carry out a merge or a fetch; the answer is `MergeTimes` or a `LaunchedMerge`."""

    action: MergeAction
    stats: np.ndarray  # packed, as `Ledger.take_stats` returns them


class DiscardReplica(NamedTuple):
    """Discard a worker's replica: it will begin again from the root's model."""

    worker: int


class DiscardRound(NamedTuple):
    """Discard the round of a worker that is lost, or that was cancelled."""

    worker: int
    cancelled: bool = False


class EvaluateRoot(NamedTuple):
    """Evaluate the root's current model; the answer is an `EvaluatedModel`."""


class Synchronize(NamedTuple):
    """Wait until it is known which rounds so far were finite."""


# -- notes for the records -----------------------------------------------------------


class EvaluationDone(NamedTuple):
    """An evaluation; the answer is the metrics that the policy receives, or None."""

    time: float
    seen: EvaluatedModel


class MergeDone(NamedTuple):
    """A merge was carried out."""

    action: MergeAction
    traffic: Traffic  # of each member
    stamps: Stamps
    missing: tuple[int, ...]  # unreachable members


class MergeLaunched(NamedTuple):
    """A merge may still run: `TapeWriter.settle` waits for it, in the same order."""


class EndRun(NamedTuple):
    """The run ends."""

    why: str


class MergesDone(NamedTuple):
    """The merges after an arrival are done, and no new round has begun."""


Tape = Generator[Any, Any, None]
