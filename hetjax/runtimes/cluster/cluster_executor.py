"""The executor of a cluster: local rounds are calls of members.

Replies come on threads of the cluster's library, which pass them on to the clock and
wake the loop; the loop itself stays on the thread that began the run. So a pause, in
which the loop waits for all rounds, ends although the loop does not run.
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
from hetjax.engine.local_steps import RoundOutcome
from hetjax.engine.player_parts import Assignment
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.protocols import TakeTurns
from hetjax.runtimes.cluster.cluster_store import Arrived
from hetjax.runtimes.cluster.messages import RoundCall, RoundReport
from hetjax.runtimes.cluster.remote_calls import HEALTH, RemoteActor
from hetjax.runtimes.cluster.supervisor import Supervisor
from hetjax.runtimes.cluster.worker_group import ANSWER, WorkerGroup
from hetjax.runtimes.real.wall_clock import Completion, WallClock

END = 5.0  # [s] that members have to end, on top of their usual remaining time


class _Call(NamedTuple):
    """A round that a member was given."""

    worker: int
    taken: float  # stamp of `time.perf_counter`
    rows: Sequence[np.ndarray]
    wanted: tuple[int, ...]  # leaves of the replica that come with the report
    report: Future
    leaves: Future
    number: int
    member: RemoteActor | None  # which the worker had then


class ClusterExecutor:
    """Runs every worker's assignments in its member."""

    def __init__(
        self,
        crew: WorkerGroup,
        clock: WallClock,
        step_modes: Sequence[str],
        compilations: Compilations,
        recruiter: Supervisor,
    ):
        """`step_modes` of all workers; the recruiter hears of those that are lost."""
        self._crew, self._clock, self._step_modes = crew, clock, step_modes
        self._compilations, self._recruiter = compilations, recruiter
        self._calls: dict[int, _Call] = {}  # by worker: the round that is awaited
        self._left: list[_Call] = []  # rounds that nobody awaits any more
        self._outcomes: dict[int, RoundOutcome] = {}
        self._numbers = itertools.count(1)  # of rounds

    def run_turns(self, take_turns: TakeTurns) -> None:
        """Take all turns on the caller's thread."""
        self._recruiter.begin(self._clock.roster.lost)
        while take_turns(lambda: False):
            self._clock.prepare_wait()
            self._clock.wait()

    def start(self, assignment: Assignment) -> None:
        """Give a round to its worker's member; its replica is there."""
        worker = assignment.worker
        wanted = self._crew.wanted[worker]
        local_round = RoundCall(
            assignment.rows,
            assignment.learning_rate,
            assignment.first_step,
            self._step_modes[worker],
            wanted,
            next(self._numbers),
        )
        taken = time.perf_counter()
        size = len(assignment.rows[0]) if assignment.rows else 0
        report, leaves = self._crew.call_parts(
            worker,
            "run",
            local_round,
            parts=2,
            label=f"local round: {len(assignment.rows)} x {size}",
        )
        number = local_round.number
        member = self._crew.members[worker]
        call = _Call(
            worker, taken, assignment.rows, wanted, report, leaves, number, member
        )
        self._calls[worker] = call
        report.add_done_callback(partial(self._reply, call))

    def _reply(self, call: _Call, future: Future) -> None:
        """A report has come, or will not; on a thread of the cluster's library."""
        finished = time.perf_counter()
        worker, seconds, compiling, failure = call.worker, 0.0, 0.0, ""
        try:
            report: RoundReport = future.result()
            seconds, compiling = report.seconds, report.compiling
            failure = report.failure
            if self._calls.get(worker) is call and not failure:
                self._outcomes[worker] = _outcome(call, report)
        except Unreachable as error:
            failure = str(error)
            self._recruiter.lost(worker, call.member, failure)
        except BaseException:
            failure = traceback.format_exc()
        # durations are the member's, instants the driver's: clocks of machines differ
        began = max(call.taken, finished - seconds)
        # arrays on their way count for deadlines, compiling does not
        waited = max(finished - call.taken - compiling, seconds)
        self._clock.completed(
            Completion(worker, began, finished, failure, call.taken, waited)
        )
        self._clock.wake_leader(urgent=True)

    def flush(self) -> None:
        """Do nothing: `start` has begun every round."""

    def finish(self, worker: int) -> RoundOutcome:
        """Return a worker's outcome; its replica stays with its member."""
        self._calls.pop(worker, None)  # of a continued run there is none
        return self._outcomes.pop(worker)

    def outcome(self, worker: int) -> None:
        """Return None: an outcome is known when it arrives."""

    def restore_outcome(self, worker: int, outcome: RoundOutcome) -> None:
        """Take up a round that was saved with its outcome."""
        self._outcomes[worker] = outcome

    def discard(self, worker: int) -> None:
        """Discard a worker's round; its member ends it after the current step."""
        self._outcomes.pop(worker, None)
        call = self._calls.pop(worker, None)
        if call is not None and not call.report.done():
            self._left.append(call)
            self._crew.call(worker, "cancel", call.number, queue=HEALTH)

    def close(self) -> list[int]:
        """End all rounds; return the workers whose members do not answer."""
        self._recruiter.close()
        calls = [*self._left, *self._calls.values()]
        for call in self._calls.values():
            if not call.report.done():
                self._crew.call(call.worker, "cancel", call.number, queue=HEALTH)
        wait([call.report for call in calls], timeout=self._clock.seconds_left + END)
        stuck = {call.worker for call in calls if not call.report.done()}
        self._calls, self._left = {}, []
        self._recruiter.remove(stuck)  # they would make the next run wait
        ended = [self._crew.end_run(k) for k in self._crew.present if k not in stuck]
        for future in ended:
            with suppress(Unreachable, TimeoutError):  # it is lost, with its programs
                self._compilations.programs.update(future.result(timeout=ANSWER))
        return sorted(stuck)


def _outcome(call: _Call, report: RoundReport) -> RoundOutcome:
    losses: list = list(zip(call.rows, report.losses, strict=False))
    if report.losses and len(report.losses) < len(call.rows):  # one program ran all
        losses = [(np.stack(call.rows), report.losses[0])]
    replica = Arrived(call.worker, call.wanted, call.leaves)
    return RoundOutcome(replica, losses, report.mean, report.padded, report.finite)  # pyright: ignore[reportArgumentType]
