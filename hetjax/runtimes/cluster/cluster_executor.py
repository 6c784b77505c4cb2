"""The executor of a cluster: every worker's rounds run in its actor.

Results of rounds arrive on threads of Ray, which pass them to the clock and wake the
loop; the loop stays on the thread that started the run.
"""

import itertools
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from hetjax.engine.capabilities import Unreachable
from hetjax.engine.player_parts import Assignment, TakeTurns
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.step_runner import RoundOutcome
from hetjax.runtimes.cluster.actor_run import RoundCall, RoundReport
from hetjax.runtimes.cluster.cluster_store import ArrivedReplica
from hetjax.runtimes.cluster.supervisor import Supervisor
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    STATUS_TIMEOUT,
    RemoteActor,
    WorkerGroup,
)
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.real.worker_reports import Completion

END_TIMEOUT = 5.0  # [s] to wait for rounds at the end, beyond their expected time


class PendingRound(NamedTuple):
    """A round that was sent to an actor."""

    worker: int
    actor: RemoteActor | None  # that the worker had then
    dispatched: float  # stamp of `time.perf_counter`
    local_round: RoundCall
    report: Future
    leaves: Future


class ClusterExecutor:
    """Runs every worker's assignments in its actor."""

    def __init__(
        self,
        group: WorkerGroup,
        clock: WallClock,
        step_modes: Sequence[str],
        compilations: Compilations,
        supervisor: Supervisor,
    ):
        """`step_modes` of all workers; lost workers are reported to the supervisor."""
        self._group, self._clock, self._step_modes = group, clock, step_modes
        self._compilations, self._supervisor = compilations, supervisor
        self._pending: dict[int, PendingRound] = {}  # by worker: the round in flight
        self._abandoned: list[PendingRound] = []  # discarded, but still in flight
        self._outcomes: dict[int, RoundOutcome] = {}
        self._numbers = itertools.count(1)  # of rounds

    def run_turns(self, take_turns: TakeTurns) -> None:
        """Take all turns on the caller's thread."""
        self._supervisor.begin(self._clock.roster.lost)
        while take_turns(lambda: False):
            self._clock.prepare_wait()
            self._clock.wait()

    def start(self, assignment: Assignment) -> None:
        """Send a round to its worker's actor, which has the replica."""
        worker = assignment.worker
        leaves, apart = self._group.report_leaves[worker]
        local_round = RoundCall(
            assignment.rows,
            assignment.learning_rate,
            assignment.first_step,
            self._step_modes[worker],
            leaves,
            next(self._numbers),
            apart,
        )
        actor, dispatched = self._group.actors[worker], time.perf_counter()
        report, *others = self._group.run_round(worker, local_round)
        leaves = others[0] if others else Future()
        call = PendingRound(worker, actor, dispatched, local_round, report, leaves)
        self._pending[worker] = call
        report.add_done_callback(partial(self._on_report, call))

    def _on_report(self, call: PendingRound, future: Future) -> None:
        """Pass a report, or its failure, to the clock; on the library's thread."""
        finished = time.perf_counter()
        worker, seconds, compiling, failure = call.worker, 0.0, 0.0, ""
        try:
            report: RoundReport = future.result()
            seconds, compiling = report.seconds, report.compile_seconds
            failure = report.failure
            if not call.local_round.leaves_apart:
                call.leaves.set_result(report.leaves)
            if self._pending.get(worker) is call and not failure:
                self._outcomes[worker] = _outcome(call, report)
        except Unreachable as error:
            failure = str(error)
            self._supervisor.lost(worker, call.actor, failure)
        except BaseException:
            failure = traceback.format_exc()
        # durations are the actor's, times the driver's: the machines' clocks differ
        began = max(call.dispatched, finished - seconds)
        # deadlines include the time of sending arrays, but not compilation
        waited = max(finished - call.dispatched - compiling, seconds)
        self._clock.report(
            Completion(worker, began, finished, failure, call.dispatched, waited)
        )
        self._clock.wake_leader(urgent=True)

    def flush(self) -> None:
        """Send changes of replicas whose workers have no new round."""
        self._group.flush()

    def finish(self, worker: int) -> RoundOutcome:
        """Return a worker's outcome; its replica stays with its actor."""
        self._pending.pop(worker, None)  # a restored outcome has none
        return self._outcomes.pop(worker)

    def outcome(self, worker: int) -> None:
        """Return None: an outcome is known when it arrives."""

    def restore_outcome(self, worker: int, outcome: RoundOutcome) -> None:
        """Restore the outcome of a round that was saved with it."""
        self._outcomes[worker] = outcome

    def discard(self, worker: int) -> None:
        """Discard a worker's round; its actor ends it after the current step."""
        self._outcomes.pop(worker, None)
        call = self._pending.pop(worker, None)
        if call is not None and not call.report.done():
            self._abandoned.append(call)
            self._cancel(call)

    cancel = discard  # the actor's next round waits for the present one

    def _cancel(self, call: PendingRound) -> None:
        number = call.local_round.number
        self._group.call(call.worker, "cancel", number, queue=HEALTH)

    def close(self) -> list[int]:
        """End all rounds; return the workers whose actors do not answer."""
        self._supervisor.close()
        calls = [*self._abandoned, *self._pending.values()]
        for call in self._pending.values():
            if not call.report.done():
                self._cancel(call)
        timeout = self._clock.seconds_left + END_TIMEOUT
        wait([call.report for call in calls], timeout)
        stuck = {call.worker for call in calls if not call.report.done()}
        self._pending, self._abandoned = {}, []
        self._supervisor.remove(stuck)  # the next run would wait for them
        ended = [self._group.end_run(k) for k in self._group.present if k not in stuck]
        for future in ended:
            with suppress(Unreachable, TimeoutError):  # its count is lost
                self._compilations.programs.update(
                    future.result(timeout=STATUS_TIMEOUT)
                )
        return sorted(stuck)


def _outcome(call: PendingRound, report: RoundReport) -> RoundOutcome:
    rows, leaves = call.local_round.rows, call.local_round.report_leaves
    losses: list = list(zip(rows, report.losses, strict=False))
    if report.losses and len(report.losses) < len(rows):  # one program ran all
        losses = [(np.stack(rows), report.losses[0])]
    replica = ArrivedReplica(call.worker, leaves, call.leaves)
    return RoundOutcome(replica, losses, report.mean, report.padded, report.finite)  # pyright: ignore[reportArgumentType]
