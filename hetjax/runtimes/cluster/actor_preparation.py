"""The preparation of a cluster's actors for a run: data, programs, measurements."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import jax
import numpy as np

from hetjax import tree
from hetjax.engine.capabilities import Unreachable
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.split_merges import Exchanges
from hetjax.engine.step_runner import StepSettings
from hetjax.machine import WorkerInfo
from hetjax.merge.member_program import MemberProgram
from hetjax.runtimes.cluster.actor import RunSettings
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.cluster.cluster_store import ClusterStore
from hetjax.runtimes.cluster.worker_group import (
    STEPS,
    RemoteActor,
    WorkerGroup,
    wait_for_result,
)
from hetjax.runtimes.real.dry_run import DryRun, compile_merges, dry_run
from hetjax.runtimes.real.step_mode_choice import choose_step_modes
from hetjax.strategies.types import Strategy

TIMED = Placement(timed=True)


class Preparation:
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
        self._member_programs: list[MemberProgram] = []

    def run(self, before: dict[str, str]) -> dict[str, str]:
        """Prepare all actors and the driver; return the step modes by kind of device.

        Step modes that were chosen `before` are used again.
        """
        actors = enumerate(self._group.actors)
        opened = {k: self._open_run(k, actor) for k, actor in actors if actor}
        for worker, future in opened.items():
            self._result_or_lose(worker, future)
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
        self._compile_member_programs()
        return self._step_modes

    def _compile_member_programs(self) -> None:
        """Let the actors compile their parts of the merges that are to come."""
        topology = self._strategy.policy.topology(tuple(self.infos))
        exchanges = Exchanges(self._strategy, self._job.programs, topology)
        self._member_programs = exchanges.member_programs(
            merge.action for merge in self._dry_run.merges.values()
        )
        asked = {
            k: self._group.call(k, "compile_merges", self._member_programs)
            for k in self._group.present
            if self._member_programs
        }
        for worker, future in asked.items():
            self._result_or_lose(worker, future)

    def prepare(self, worker: int, actor: RemoteActor) -> None:
        """Open the run in a new actor, and let it compile."""
        wait_for_result(actor, self._open_run(worker, actor))

        def call(worker: int, method: str, *args: Any) -> Any:
            return actor.call("call_run", method, *args, queue=STEPS)[0]

        wait_for_result(actor, self._compile(worker, call))
        wait_for_result(actor, call(worker, "compile_merges", self._member_programs))
        if worker in self._group.slowdown_factors:
            wait_for_result(
                actor, call(worker, "slow", self._group.slowdown_factors[worker])
            )

    def _open_run(self, worker: int, actor: RemoteActor) -> Future:
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
        return opened

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
        for worker in workers:
            if worker in self._group.present:
                future = self._group.call(worker, "step_mode", local_steps, size)
                return self._result_or_lose(worker, future) or "dispatch"
        return "dispatch"
