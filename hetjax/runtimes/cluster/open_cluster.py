"""Preparation of a run on a cluster: equip, measure and compile before the clock."""

import itertools
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax import tree
from hetjax.engine.job import Job
from hetjax.engine.local_steps import RoundOutcome, StepSettings
from hetjax.engine.placement import Placement
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.protocols import (
    Assignment,
    CheckpointSupport,
    Runtime,
    TakeTurns,
    Unreachable,
)
from hetjax.machine import WorkerInfo
from hetjax.runtimes.cluster.actor import RoundCall, RoundReport, RunSettings
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.cluster.cluster_store import Arrived, ClusterPlayer, ClusterStore
from hetjax.runtimes.cluster.supervisor import Supervisor
from hetjax.runtimes.cluster.worker_group import (
    ANSWER,
    HEALTH,
    STEPS,
    RemoteActor,
    WorkerGroup,
    answer,
)
from hetjax.runtimes.devices import default_device
from hetjax.runtimes.real.deadlines import HICCUP
from hetjax.runtimes.real.dry_run import DryRun, compile_merges, dry_run
from hetjax.runtimes.real.wall_clock import Completion, WallClock
from hetjax.runtimes.threads.open_threads import chosen_before
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import header
from hetjax.tracing.recorder import Recorder

TIMED = Placement(timed=True)
SLOWEST = 25e6  # [bytes/s] of a network on which a model may take its time


def open_cluster(machine: ClusterMachine, strategy: Strategy, job: Job) -> Runtime:
    """Equip and measure the members, compile their programs, and return the runtime."""
    if machine.pool.closed:
        raise ValueError(
            "machine: it was closed (by close(), or at the end of its with block): "
            "make another one with cluster_machine(...)"
        )
    names = [w.name for w in machine.workers]
    path = job.trace or job.usual_trace
    before = chosen_before(names, job, path)
    members = machine.pool.members_of(names)
    crew = WorkerGroup(machine.pool.cluster, members)
    slowdowns = [worker.slowdown for worker in machine.workers]
    about = header(strategy, job, {}, 0, slowdowns)  # reads all data: once
    prepared = _Preparation(machine, strategy, job, crew, about["data"])
    about["step_modes"] = step_modes = prepared.run(before.get("step_modes", {}))
    clock = WallClock(
        prepared.infos,
        faults=machine.faults,
        on_slow=crew.slow,
        is_compiling=crew.is_compiling,
        may_appear=lambda: recruiter.may_appear,
        allowance=HICCUP + prepared.num_bytes * len(names) / SLOWEST,
    )
    recruiter = Supervisor(
        machine,
        crew,
        prepared.prepare,
        appeared=clock.appeared,
        vanished=clock.vanished,
    )

    def failed(worker: int, member: RemoteActor, error: BaseException) -> None:
        if isinstance(error, Unreachable):
            recruiter.lost(worker, member, str(error))
        else:  # what it was told could not be read, or done
            recruiter.silent(worker, member, str(error))

    def lose(worker: int, why: str) -> None:
        recruiter.silent(worker, crew.members[worker], why)

    crew.on_failed = failed
    about["nodes_kind"] = default_device().device_kind
    recorder = Recorder(clock.workers, about, path, continues=job.continues)
    recorder.recording.context = (job.programs.task, job.data, strategy)
    by_worker = [step_modes[w.kind] for w in machine.workers]
    executor = ClusterExecutor(crew, clock, by_worker, job.compilations, recruiter)
    open_store = partial(ClusterStore, crew=crew, lose=lose)
    return Runtime(
        clock,
        ClusterPlayer(strategy, job, clock.workers, executor, TIMED, open_store),
        step_modes,
        real=True,
        recorder=recorder,
        note=machine.described,
        nodes=lambda: [machine.pool.moved.get(w.name, w.node) for w in machine.workers],
        kept=CheckpointSupport("cluster"),
    )


class _Preparation:
    """What the members of a run are given and asked before it begins.

    A member that cannot be reached meanwhile has no part in the run at first.
    """

    infos: tuple[WorkerInfo, ...]  # of all workers, once they are measured
    num_bytes: int  # of the model, likewise

    def __init__(
        self,
        machine: ClusterMachine,
        strategy: Strategy,
        job: Job,
        crew: WorkerGroup,
        about_data: dict[str, Any],
    ):
        """`about_data` is the data's fingerprint."""
        self._machine, self._strategy, self._job = machine, strategy, job
        self._crew, self._settings = crew, StepSettings.of(strategy)
        self._about_data = about_data
        self._shards = self._rows_of_workers()
        self._found = DryRun([])
        self._step_modes: dict[str, str] = {}

    def run(self, before: dict[str, str]) -> dict[str, str]:
        """Prepare all members and the driver; return the step modes by kind of device.

        Those that were chosen `before` stay.
        """
        members = self._crew.members
        with ThreadPoolExecutor(len(members)) as pool:  # they load data side by side
            equipped = {
                k: pool.submit(self.equip, k, member)
                for k, member in enumerate(members)
                if member is not None
            }
        for worker, done in equipped.items():
            self._or_lose(worker, done.result)
        strategy, job = self._strategy, self._job
        model = jax.eval_shape(job.programs.init, jax.random.key(job.seed))
        self.num_bytes = tree.num_bytes(model)
        self.infos = self._machine.infos(self._costs())
        self._found = dry_run(
            strategy,
            self.infos,
            self._machine.faults,
            num_examples=len(job.train),
            seconds=job.instants[-1],
        )
        self._choose_step_modes(before)
        asked = {k: self._compile(k, self._crew.call) for k in self._crew.present}
        # every merge once, as if no member could be reached
        nowhere = WorkerGroup(self._machine.pool.cluster, [None] * len(self.infos))
        open_store = partial(ClusterStore, crew=nowhere, lose=lambda worker, why: None)
        compile_merges(strategy, job, self.infos, TIMED, self._found, open_store)
        for worker, future in asked.items():
            self._or_lose(worker, partial(self._crew.answer, worker, future))
        return self._step_modes

    def prepare(self, worker: int, member: RemoteActor) -> None:
        """Give a new member all that the run needs, and let it compile."""
        self.equip(worker, member)

        def call(worker: int, method: str, *args: Any) -> Any:
            return member.call("do", method, *args, queue=STEPS)[0]

        answer(member, self._compile(worker, call))
        if worker in self._crew.factors:
            answer(member, call(worker, "slow", self._crew.factors[worker]))

    def equip(self, worker: int, member: RemoteActor) -> None:
        """Give a worker's member what the run is made of."""
        job, delivery = self._job, self._machine.pool.delivery
        rows = self._shards.get(worker)
        data = delivery.give_data(member, job, self._about_data, rows)
        opening = RunSettings(
            worker,
            delivery.give(member, self._settings, self._settings),
            delivery.give(member, job.programs.task, job.programs),
            data,
            job.seed,
            job.buckets,
            job.on_nan,
            self._machine.workers[worker].slowdown,
        )
        (opened,) = member.call("open", opening, queue=STEPS)
        answer(member, opened)

    def _compile(self, worker: int, call: Callable[..., Any]) -> Any:
        step_mode = self._step_modes[self._machine.workers[worker].kind]
        found = self._found
        return call(worker, "compile", found.shapes[worker], found.complete, step_mode)

    def _or_lose(self, worker: int, ask: Callable[[], Any]) -> Any:
        """What a member answers; one that does not has no part in the run."""
        try:
            return ask()
        except ModuleNotFoundError as error:
            raise ValueError(f"{self._job.name}: {error}") from error
        except Unreachable as error:
            self._crew.members[worker] = None
            self._machine.pool.remove(self._machine.workers[worker].name)
            if not self._crew.present:
                raise ValueError(
                    f"{self._job.name}: no worker of the cluster is left: {error}"
                ) from error
            return None

    def _rows_of_workers(self) -> Mapping[int, np.ndarray]:
        """The rows that each worker draws from, in order, if not from all."""
        sampler, job = self._strategy.sampler, self._job
        if sampler.rows is None:
            return {}
        anything = {w.name: (0.0, 1.0) for w in self._machine.workers}
        workers = self._machine.infos(anything)
        state = sampler.init(workers, len(job.train), job.seed)
        return {w.index: np.unique(sampler.rows(state, w.index)) for w in workers}

    def _costs(self) -> dict[str, tuple[float, float]]:
        """(fixed, per example) seconds of a step by worker.

        Workers of different nodes are measured at the same time, those of one node in
        turn.
        """
        turns: dict[str, list[int]] = {}
        for worker in self._crew.present:
            turns.setdefault(self._machine.workers[worker].node, []).append(worker)
        costs: dict[str, tuple[float, float]] = {}
        for turn in range(max(map(len, turns.values()))):
            now = [mine[turn] for mine in turns.values() if turn < len(mine)]
            size = self._strategy.batch_size
            asked = {k: self._crew.call(k, "costs", size) for k in now}
            for worker, future in asked.items():
                found = self._or_lose(
                    worker, partial(self._crew.answer, worker, future)
                )
                if found is not None:
                    costs[self._machine.workers[worker].name] = found
        workers = self._machine.workers
        of_kind = {w.kind: costs[w.name] for w in workers if w.name in costs}
        usual = next(iter(of_kind.values()))
        return {w.name: costs.get(w.name, of_kind.get(w.kind, usual)) for w in workers}

    def _choose_step_modes(self, before: dict[str, str]) -> None:
        """Choose the step mode of each kind of device, for its most common round."""
        machine = self._machine
        asked = {}
        for kind in {w.kind for w in machine.workers}:
            mine = [k for k, w in enumerate(machine.workers) if w.kind == kind]
            shapes = sum((self._found.shapes[k] for k in mine), Counter())
            several = {shape: n for shape, n in shapes.items() if shape[0] > 1}
            here = [k for k in mine if k in self._crew.present]
            usual = machine.step_mode or before.get(kind, "dispatch")
            self._step_modes[kind] = (
                usual if several or machine.step_mode else "dispatch"
            )
            if several and here and not machine.step_mode and kind not in before:
                local_steps, size = max(several, key=lambda shape: several[shape])
                future = self._crew.call(here[0], "step_mode", local_steps, size)
                asked[kind] = here[0], future
        for kind, (worker, future) in asked.items():
            found = self._or_lose(worker, partial(self._crew.answer, worker, future))
            self._step_modes[kind] = found or "dispatch"


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
            self._clock.rest()
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
        self._clock.call(urgent=True)

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
        wait([call.report for call in calls], timeout=self._clock.left + END)
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
