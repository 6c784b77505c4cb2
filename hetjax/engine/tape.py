"""The tape: what a run does, written by a policy and a clock before it is done.

A run is decided here and carried out elsewhere. The writer owns the policy, the clock,
the draw of examples, the ledger with its statistics, and the learning rate. It yields

- the events of the clock, and the `Actions` of the policy: what happened, what was
  decided;
- instructions for a player (`hetjax.engine.reference_player`), which are the classes
  below;
- what the records of the run are told: `Point`, `MergeDone`, `Stop`.

What was observed is sent back to it: the result of a round after its Arrival, the
`EvaluatedModel` of an `EvaluateRoot`, the stamps of a merge where a clock measures
them. Whoever needs times alone (a plan, a test of a policy) reads the tape and plays
nothing. Host world, no JAX. The file is long because an entry is understood where it is
written.
"""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.engine.protocols import EvaluatedModel
from hetjax.machine.types import ROOT, LocalRound, MergeAction, MergeOp, Stamps

EVALUATE = "evaluate"  # the writer's timer; it comes after all arrivals of its time

# -- instructions ------------------------------------------------------------------


class BeginReplica(NamedTuple):
    """A worker without a replica begins one, from the root's current model."""

    worker: int


class StartRound(NamedTuple):
    """Start a local round, from the replica that its worker holds now.

    Its result is visible to everything else from its Arrival on, after which the
    player takes it in and resets a replica that is not finite, if the run does.
    """

    worker: int
    local_round: LocalRound
    rows: Sequence[np.ndarray]  # of the training split, one array per step
    nonzeros: Sequence[int]  # in the inputs of each step
    learning_rate: np.float32
    first_step: int  # its number, counted over all rounds of the worker
    start: float  # [s]


class GatherReplicas(NamedTuple):
    """Fetch what a merge reads; the answer is the members out of reach."""

    action: MergeAction


class MeasureMembers(NamedTuple):
    """The answer is the main metric of every member on the held-out examples."""

    action: MergeAction


class MergeReplicas(NamedTuple):
    """Carry out a merge or a fetch; the answer is its `MergeTimes`."""

    action: MergeAction
    stats: np.ndarray  # packed, as `Ledger.take_stats` returns them


class DiscardReplica(NamedTuple):
    """A worker has no replica any more: it will begin from the root's model."""

    worker: int


class DiscardRound(NamedTuple):
    """A worker is lost: its round will not arrive."""

    worker: int


class EvaluateRoot(NamedTuple):
    """Evaluate the root's current model; the answer is a `Seen`."""


class Synchronize(NamedTuple):
    """Wait until it is known which of the rounds so far were finite."""


# -- what the records are told --------------------------------------------------------


class EvaluationDone(NamedTuple):
    """An evaluation; the answer is what the policy is told of it."""

    time: float
    seen: EvaluatedModel


class MergeDone(NamedTuple):
    """The times of a merge that was carried out."""

    action: MergeAction
    num_bytes: float
    stamps: Stamps
    missing: tuple[int, ...]  # members that could not be reached


class EndRun(NamedTuple):
    """The run ends here."""

    why: str


class MergesDone(NamedTuple):
    """The merges of an arrival are done, and no round that follows has begun."""


Tape = Generator[Any, Any, None]


def changes_root(action: MergeAction) -> bool:
    """Does this merge change the run's model?"""
    return action.node == ROOT and counts_as_merge(action)


def counts_as_merge(action: MergeAction) -> bool:
    """Does it merge members, and not only hand out a model, or step by itself?"""
    return action.op not in (MergeOp.FETCH, MergeOp.STEP)
