"""The reference player: carries out the instructions of a tape one by one.

It runs local rounds on an executor, and changes replicas and states in a store. It
knows no policy, no clock and no ledger.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from hetjax.engine import tape
from hetjax.engine.evaluation import Evaluator
from hetjax.engine.job import Job
from hetjax.engine.launched_merge import LaunchedMerge
from hetjax.engine.placement import Placement
from hetjax.engine.player_parts import Assignment, Executor
from hetjax.engine.protocols import Plays, RoundResult, Traits
from hetjax.engine.replica_store import ReplicaStore
from hetjax.engine.step_runner import RoundOutcome
from hetjax.machine.merge_times import MergeTimes
from hetjax.machine.types import Arrival, WorkerInfo
from hetjax.strategies.types import Strategy


class ReferencePlayer:
    """Plays the tape of one run on an executor and a store."""

    traits: Traits
    plays: Plays
    store: ReplicaStore
    # called with each outcome, before its replica is checked in
    on_outcome: Callable[[Arrival, RoundOutcome], None] | None = None

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        workers: tuple[WorkerInfo, ...],
        executor: Executor,
        placement: Placement = Placement(),
        open_store: Callable[..., ReplicaStore] = ReplicaStore,
    ):
        """`open_store(strategy, job, placement, topology)` makes the store.

        If the placement is timed, each merge is awaited and its parts are timestamped.
        """
        self._job, self._executor = job, executor
        self.evaluator = Evaluator(job, placement.nodes)
        self.evaluate_whole_test = self.evaluator.evaluate_whole_test
        topology = strategy.policy.topology(workers)
        self._open = partial(open_store, strategy, job, placement, topology)
        self._resets = job.on_nan == "reset"
        self.run_turns = executor.run_turns
        self.flush, self.close = executor.flush, executor.close

    def open(self) -> None:
        """Make the first model."""
        self.store = store = self._open()
        self.model, self.model_of = store.model, store.model_of
        self.save, self.load, self.load_root = store.save, store.load, store.load_root
        self.traits = Traits(
            store.num_bytes,
            measured=lambda node: bool(store.merge_of(node).required_metrics),
        )
        self.plays = {
            tape.BeginReplica: lambda e: store.begin(e.worker),
            tape.StartRound: self._start,
            Arrival: self._finish,
            tape.MeasureMembers: self._measure,
            tape.MergeReplicas: self._merge,
            tape.EvaluateRoot: lambda e: self.evaluator.evaluate(store),
            tape.DiscardReplica: lambda e: store.discard(e.worker),
            tape.DiscardRound: self._discard_round,
        }

    # -- rounds ------------------------------------------------------------------------

    def _start(self, r: tape.StartRound) -> None:
        replica = self.store.check_out(r.worker)
        work = Assignment(r.worker, replica, r.rows, r.learning_rate, r.first_step)
        self._executor.start(work)

    def _finish(self, arrival: Arrival) -> RoundResult:
        """Check in a replica; reset it if it is not finite."""
        outcome: RoundOutcome = self._executor.finish(arrival.worker)
        if self.on_outcome is not None:
            self.on_outcome(arrival, outcome)
        self.store.check_in(arrival.worker, outcome.replica)
        if self._resets:
            outcome = outcome._replace(finite=bool(outcome.finite))
            if not outcome.finite:
                self.store.reset(arrival.worker)
        return outcome

    def _discard_round(self, e: tape.DiscardRound) -> None:
        end = self._executor.cancel if e.cancelled else self._executor.discard
        end(e.worker)

    # -- merges and evaluations --------------------------------------------------------

    def _measure(self, e: tape.MeasureMembers) -> list[float]:
        members = (*e.action.members, *e.action.partners)
        return self.evaluator.member_metrics([*map(self.store.member_model, members)])

    def _merge(self, merge: tape.MergeReplicas) -> MergeTimes | LaunchedMerge | None:
        return self.store.merge(merge.action, merge.stats)

    # -- checkpoints of rounds in flight -----------------------------------------------

    def outcome(self, worker: int) -> RoundOutcome | None:
        """Return the outcome of a round in flight; None if it is not known yet."""
        return self._executor.outcome(worker)

    def saved_outcome(self, outcome: RoundOutcome) -> dict[str, Any]:
        """Return the values of an outcome, for `load_outcome`."""
        return {
            **outcome._asdict(),
            "replica": self.store.leaves_of(outcome.replica),
            "losses": list(outcome.losses),
        }

    def load_outcome(self, worker: int, saved: dict[str, Any]) -> None:
        """Restore the outcome of a round that was in flight."""
        replica = self.store.replica_of(worker, saved["replica"])
        fields: dict[str, Any] = {k: saved[k] for k in RoundOutcome._fields} | {
            "replica": replica
        }
        self._executor.restore_outcome(worker, RoundOutcome(**fields))
