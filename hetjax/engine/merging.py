"""A merge as one transaction: held-out metrics, clock, statistics, program, records.

All steps of a `MergeAction` are here, in their order: evaluate the members on held-out
data if the merge needs it, ask the clock for the times, take the members' statistics,
run the compiled merge, and tell the history, the ledger and the sampler.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetjax.engine.evaluation import Evaluations
from hetjax.engine.job import Job
from hetjax.engine.protocols import Clock
from hetjax.engine.records.history import History
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.replicas import ReplicaStore
from hetjax.machine import (
    ROOT,
    MergeAction,
    MergeOp,
    MergeTimes,
    PlannedMerge,
    Stamps,
    Topology,
)


class Merging(NamedTuple):
    """Everything that the merges of one run read and write."""

    clock: Clock
    job: Job
    topology: Topology
    store: ReplicaStore
    ledger: Ledger
    evaluations: Evaluations
    history: History
    share: Callable[[], np.ndarray | None]  # of the data; None: all use all of it
    learning_rate: Callable[[], float]  # now, at the largest batch size
    observe: Callable[[int], None]  # shows a worker's losses to the sampler
    settle: Callable[[MergeAction], None]  # makes sure that what members did counts
    miss: Callable[[int], None]  # a member cannot be reached: what it did is lost

    def carry_out(self, action: MergeAction) -> None:
        """Carry out one merge or fetch, at the times that the clock sets."""
        asked_at = self.clock.now
        accuracy, seconds = self._look_at_members(action)
        done = self.clock.carry_out(
            PlannedMerge(
                action,
                self.store.num_bytes,
                seconds,
                self.topology.workers_below(action.members),
                lambda visible, missing=(): self._run(
                    action, accuracy, visible, missing
                ),
            )
        )
        self._note(action, asked_at, done)

    def _look_at_members(self, action: MergeAction) -> tuple[list[float] | None, float]:
        """The members' held-out metrics if the merge needs them, and their seconds."""
        wanted = self.store.merge_of(action.node).required_metrics
        if not wanted or MergeOp.PUSH not in action.op or self.store.measures_members:
            return None, 0.0
        return self.evaluations.of_members(action)

    def _run(
        self,
        action: MergeAction,
        accuracy: list[float] | None,
        visible: float,
        missing: Sequence[int],
    ) -> MergeTimes:
        """Take the members' statistics, run the merge, and return its times.

        `missing` are members that could not be reached in the run that is replayed.
        """
        if action.node == ROOT and action.op == MergeOp.STEP:
            self.evaluations.show()
        elif changes_root(action):
            self.evaluations.hold_until(visible)
        for member in (*action.members, *action.partners):
            if isinstance(member, int):
                self.store.replica(member)  # a first copy must predate the merge
        self.settle(action)
        for worker in missing:
            self.store.forget(worker)
            self.store.replica(worker)
        missing = (*missing, *self.store.gather(action))
        for worker in missing:
            self.miss(worker)
        stats = self.ledger.take_stats(
            action,
            share=self.share(),
            accuracy=accuracy,
            learning_rate=self.learning_rate(),
        )
        compiling = self.job.compilations.own_seconds
        stamps = self.store.merge(action, stats)
        num_bytes = 0 if self.store.measures_traffic else self.store.num_bytes
        due = self.evaluations.due[0] if self.evaluations.due else visible
        self.ledger.record_models(action, num_bytes, visible, next_look=due)
        compiled = self.job.compilations.own_seconds - compiling
        return MergeTimes(stamps, compiled, missing)

    def _note(self, action: MergeAction, asked_at: float, done: Stamps) -> None:
        """Tell the history, the ledger and the sampler."""
        history = self.history
        if changes_root(action):
            times = history.merge_times  # never before the previous merge
            times.append(max(done.finish, times[-1] if times else 0.0))
        if counts_as_merge(action):
            history.last_members = action.members
            history.merges += 1
        if not (action.blocking or self.store.merges_block):
            done = Stamps(*[done.start] * 4)
        for member in action.members:
            if isinstance(member, int):
                self.ledger.record_merge(member, asked_at, done)
                self.observe(member)


def changes_root(action: MergeAction) -> bool:
    """Does this merge change the run's model?"""
    return action.node == ROOT and counts_as_merge(action)


def counts_as_merge(action: MergeAction) -> bool:
    """Does it merge members, and not only hand out a model, or step by itself?"""
    return action.op not in (MergeOp.FETCH, MergeOp.STEP)
