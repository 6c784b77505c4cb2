"""The runtime of a cluster: its preparation before the clock starts, and its executor.

Results of local rounds arrive on threads of the cluster's library, which pass them to
the clock and wake the loop; the loop stays on the thread that started the run. So a
pause, in which the loop waits for all rounds, ends although the loop does not run.
"""

import itertools
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.engine.capabilities import CheckpointSupport, Unreachable
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.player_parts import Assignment, TakeTurns
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.protocols import Runtime
from hetjax.engine.step_runner import RoundOutcome, StepSettings
from hetjax.machine import WorkerInfo
from hetjax.runtimes.cluster.actor import RunSettings
from hetjax.runtimes.cluster.actor_run import RoundCall, RoundReport
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.cluster.cluster_store import (
    ArrivedReplica,
    ClusterPlayer,
    ClusterStore,
)
from hetjax.runtimes.cluster.supervisor import Supervisor
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    STATUS_TIMEOUT,
    STEPS,
    RemoteActor,
    WorkerGroup,
    wait_for_result,
)
from hetjax.runtimes.devices import default_device
from hetjax.runtimes.real.deadlines import ALLOWANCE
from hetjax.runtimes.real.dry_run import DryRun, compile_merges, dry_run
from hetjax.runtimes.real.step_mode_choice import choose_step_modes, chosen_before
from hetjax.runtimes.real.wall_clock import Completion, WallClock
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header
from hetjax.tracing.recorder import Recorder

TIMED = Placement(timed=True)
END_TIMEOUT = 5.0  # [s] to wait for rounds at the end, beyond their expected time
SLOWEST_NETWORK = 25e6  # [bytes/s] that deadlines allow for sending a model


def open_cluster(machine: ClusterMachine, strategy: Strategy, job: Job) -> Runtime:
    """Equip and measure the actors, compile their programs, and return the runtime."""
    if machine.pool.closed:
        raise ValueError(
            "machine: it was closed (by close(), or at the end of its with block); "
            "make another one with cluster_machine(...)"
        )
    names = [w.name for w in machine.workers]
    path = job.trace or job.default_trace
    before = chosen_before(names, job, path)
    actors = machine.pool.actors_of(names)
    group = WorkerGroup(machine.pool.cluster, actors)
    slowdowns = [worker.slowdown for worker in machine.workers]
    trace_header = header(strategy, job, {}, 0, slowdowns)  # reads all data
    prepared = _Preparation(machine, strategy, job, group, trace_header["data"])
    trace_header["step_modes"] = step_modes = prepared.run(before.get("step_modes", {}))
    clock = WallClock(
        prepared.infos,
        faults=machine.faults,
        on_slow=group.slow,
        is_compiling=group.is_compiling,
        may_appear=lambda: supervisor.may_appear,
        allowance=ALLOWANCE + prepared.num_bytes * len(names) / SLOWEST_NETWORK,
    )
    supervisor = Supervisor(
        machine,
        group,
        prepared.prepare,
        appeared=clock.appeared,
        vanished=clock.vanished,
    )

    def failed(worker: int, actor: RemoteActor, error: BaseException) -> None:
        if isinstance(error, Unreachable):
            supervisor.lost(worker, actor, str(error))
        else:  # a call could not be unpickled, or raised an error
            supervisor.unresponsive(worker, actor, str(error))

    def unreachable(worker: int, why: str) -> None:
        supervisor.unresponsive(worker, group.actors[worker], why)

    group.on_failed = failed
    trace_header["nodes_kind"] = default_device().device_kind
    recorder = Recorder(clock.workers, trace_header, path, continues=job.continues)
    recorder.recording.context = (job.programs.task, job.data, strategy)
    by_worker = [step_modes[w.kind] for w in machine.workers]
    executor = ClusterExecutor(group, clock, by_worker, job.compilations, supervisor)
    open_store = partial(ClusterStore, group=group, on_unreachable=unreachable)

    def nodes() -> list[str]:
        return [machine.pool.moved.get(w.name, w.node) for w in machine.workers]

    player = ClusterPlayer(
        strategy, job, clock.workers, executor, TIMED, open_store, nodes=nodes
    )
    return Runtime(
        clock,
        player,
        step_modes,
        real=True,
        recorder=recorder,
        notes={"placement": machine.described},
        checkpoints=CheckpointSupport("cluster"),
    )


class _Preparation:
    """Equips and measures the actors of a run before it begins.

    A worker whose actor is unreachable here is vacant at the start of the run.
    """

    infos: tuple[WorkerInfo, ...]  # of all workers; set by `run`
    num_bytes: int  # of the model; set by `run`

    def __init__(
        self,
        machine: ClusterMachine,
        strategy: Strategy,
        job: Job,
        group: WorkerGroup,
        data_fingerprint: dict[str, Any],
    ):
        """Find the rows that each worker needs; `run` does the rest."""
        self._machine, self._strategy, self._job = machine, strategy, job
        self._group, self._settings = group, StepSettings.of(strategy)
        self._data_fingerprint = data_fingerprint
        self._shards = self._rows_of_workers()
        self._dry_run = DryRun([])
        self._step_modes: dict[str, str] = {}

    def run(self, before: dict[str, str]) -> dict[str, str]:
        """Prepare all actors and the driver; return the step modes by kind of device.

        Step modes that were chosen `before` are used again.
        """
        actors = self._group.actors
        with ThreadPoolExecutor(len(actors)) as pool:  # they load data in parallel
            equipped = {
                k: pool.submit(self.equip, k, actor)
                for k, actor in enumerate(actors)
                if actor is not None
            }
        for worker, done in equipped.items():
            self._result_or_lose(worker, done)
        strategy, job = self._strategy, self._job
        model = jax.eval_shape(job.programs.init, jax.random.key(job.seed))
        self.num_bytes = tree.num_bytes(model)
        self.infos = self._machine.infos(self._costs())
        self._dry_run = dry_run(
            strategy,
            self.infos,
            self._machine.faults,
            num_examples=len(job.train),
            seconds=job.instants[-1],
        )
        self._step_modes = choose_step_modes(
            self._machine, self._dry_run, before, self._measure_step_mode
        )
        asked = {k: self._compile(k, self._group.call) for k in self._group.present}
        # every merge once, as if no actor were reachable
        without_actors = WorkerGroup(
            self._machine.pool.cluster, [None] * len(self.infos)
        )
        open_store = partial(
            ClusterStore, group=without_actors, on_unreachable=lambda worker, why: None
        )
        compile_merges(strategy, job, self.infos, TIMED, self._dry_run, open_store)
        for worker, future in asked.items():
            self._result_or_lose(worker, future)
        return self._step_modes

    def prepare(self, worker: int, actor: RemoteActor) -> None:
        """Equip a new actor during the run, and let it compile."""
        self.equip(worker, actor)

        def call(worker: int, method: str, *args: Any) -> Any:
            return actor.call("call_run", method, *args, queue=STEPS)[0]

        wait_for_result(actor, self._compile(worker, call))
        if worker in self._group.slowdown_factors:
            wait_for_result(
                actor, call(worker, "slow", self._group.slowdown_factors[worker])
            )

    def equip(self, worker: int, actor: RemoteActor) -> None:
        """Send a worker's actor the task, settings and data of the run, and open it."""
        job, broadcast = self._job, self._machine.pool.broadcast
        rows = self._shards.get(worker)
        run_settings = RunSettings(
            worker,
            broadcast.share(self._settings, lambda: self._settings),
            broadcast.share(job.programs, lambda: job.programs.task),
            broadcast.data_source(job, self._data_fingerprint, rows),
            job.seed,
            job.buckets,
            job.on_nan,
            self._machine.workers[worker].slowdown,
        )
        (opened,) = actor.call("open_run", run_settings, queue=STEPS)
        wait_for_result(actor, opened)

    def _compile(self, worker: int, call: Callable[..., Any]) -> Any:
        step_mode = self._step_modes[self._machine.workers[worker].kind]
        found = self._dry_run
        return call(worker, "compile", found.shapes[worker], found.complete, step_mode)

    def _result_or_lose(self, worker: int, future: Future) -> Any:
        """The result of a worker; one that is unreachable becomes vacant: None."""
        try:
            return self._group.result(worker, future)
        except ModuleNotFoundError as error:
            raise ValueError(f"{self._job.name}: {error}") from error
        except Unreachable as error:
            self._group.actors[worker] = None
            self._machine.pool.remove(self._machine.workers[worker].name)
            if not self._group.present:
                raise ValueError(
                    f"{self._job.name}: no worker of the cluster is left: {error}"
                ) from error
            return None

    def _rows_of_workers(self) -> Mapping[int, np.ndarray]:
        """The sorted rows that each worker draws from; empty if all draw from all."""
        sampler, job = self._strategy.sampler, self._job
        if sampler.rows is None:
            return {}
        anything = {w.name: (0.0, 1.0) for w in self._machine.workers}
        workers = self._machine.infos(anything)
        state = sampler.init(workers, len(job.train), job.seed)
        return {w.index: np.unique(sampler.rows(state, w.index)) for w in workers}

    def _costs(self) -> dict[str, tuple[float, float]]:
        """Measure (fixed, per example) seconds of a step, by worker's name.

        Workers of different nodes are measured at the same time, those of one node in
        turn.
        """
        turns: dict[str, list[int]] = {}
        for worker in self._group.present:
            turns.setdefault(self._machine.workers[worker].node, []).append(worker)
        costs: dict[str, tuple[float, float]] = {}
        for turn in range(max(map(len, turns.values()))):
            now = [mine[turn] for mine in turns.values() if turn < len(mine)]
            size = self._strategy.batch_size
            asked = {k: self._group.call(k, "costs", size) for k in now}
            for worker, future in asked.items():
                found = self._result_or_lose(worker, future)
                if found is not None:
                    costs[self._machine.workers[worker].name] = found
        workers = self._machine.workers
        of_kind = {w.kind: costs[w.name] for w in workers if w.name in costs}
        usual = next(iter(of_kind.values()))
        return {w.name: costs.get(w.name, of_kind.get(w.kind, usual)) for w in workers}

    def _measure_step_mode(
        self, workers: list[int], local_steps: int, size: int, _: int
    ) -> str:
        """Measure the fastest step mode on one of these workers that is present."""
        for worker in workers:
            if worker in self._group.present:
                future = self._group.call(worker, "step_mode", local_steps, size)
                return self._result_or_lose(worker, future) or "dispatch"
        return "dispatch"


class _PendingRound(NamedTuple):
    """A round that was sent to an actor."""

    worker: int
    dispatched: float  # stamp of `time.perf_counter`
    rows: Sequence[np.ndarray]
    report_leaves: tuple[int, ...]  # indices of the leaves that come with the report
    report: Future
    leaves: Future
    number: int
    actor: RemoteActor | None  # that the worker had then


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
        self._pending: dict[int, _PendingRound] = {}  # by worker: the round in flight
        self._abandoned: list[_PendingRound] = []  # discarded, but still in flight
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
        leaf_numbers = self._group.report_leaves[worker]
        local_round = RoundCall(
            assignment.rows,
            assignment.learning_rate,
            assignment.first_step,
            self._step_modes[worker],
            leaf_numbers,
            next(self._numbers),
        )
        dispatched = time.perf_counter()
        report, leaves = self._group.run_round(worker, local_round)
        call = _PendingRound(
            worker,
            dispatched,
            assignment.rows,
            leaf_numbers,
            report,
            leaves,
            local_round.number,
            self._group.actors[worker],
        )
        self._pending[worker] = call
        report.add_done_callback(partial(self._on_report, call))

    def _on_report(self, call: _PendingRound, future: Future) -> None:
        """Pass a report, or its failure, to the clock; on the library's thread."""
        finished = time.perf_counter()
        worker, seconds, compiling, failure = call.worker, 0.0, 0.0, ""
        try:
            report: RoundReport = future.result()
            seconds, compiling = report.seconds, report.compile_seconds
            failure = report.failure
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
        self._clock.completed(
            Completion(worker, began, finished, failure, call.dispatched, waited)
        )
        self._clock.wake_leader(urgent=True)

    def flush(self) -> None:
        """Do nothing: `start` has begun every round."""

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
            self._group.call(worker, "cancel", call.number, queue=HEALTH)

    def close(self) -> list[int]:
        """End all rounds; return the workers whose actors do not answer."""
        self._supervisor.close()
        calls = [*self._abandoned, *self._pending.values()]
        for call in self._pending.values():
            if not call.report.done():
                self._group.call(call.worker, "cancel", call.number, queue=HEALTH)
        wait(
            [call.report for call in calls],
            timeout=self._clock.seconds_left + END_TIMEOUT,
        )
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


def _outcome(call: _PendingRound, report: RoundReport) -> RoundOutcome:
    losses: list = list(zip(call.rows, report.losses, strict=False))
    if report.losses and len(report.losses) < len(call.rows):  # one program ran all
        losses = [(np.stack(call.rows), report.losses[0])]
    replica = ArrivedReplica(call.worker, call.report_leaves, call.leaves)
    return RoundOutcome(replica, losses, report.mean, report.padded, report.finite)  # pyright: ignore[reportArgumentType]
