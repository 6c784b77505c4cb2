"""The actor's part in one run: the worker's replica and its local rounds."""

import queue
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.player_parts import Assignment
from hetjax.engine.split_merges import jitted_once
from hetjax.engine.step_runner import RoundOutcome, StepSettings
from hetjax.local import with_merge_buffers
from hetjax.merge.member_program import MemberProgram
from hetjax.merge.merge_exchange import changed_leaves, unpacked
from hetjax.replica import Replica
from hetjax.runtimes.real.dry_run import DryRun, Shape, compile_steps
from hetjax.runtimes.real.step_mode_choice import choose_step_mode
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.real.throttle import Cancelled, Throttle


class RoundCall(NamedTuple):
    """A local round; the actor has the examples, so that only row numbers are sent."""

    rows: Sequence[np.ndarray]
    learning_rate: np.float32
    first_step: int
    step_mode: str
    report_leaves: tuple[int, ...]  # indices of the replica's leaves to return
    number: int  # of the round, unique in the run
    # whether the leaves are returned apart from the report, which they would delay
    leaves_apart: bool = False


class RoundReport(NamedTuple):
    """The result of a local round."""

    seconds: float  # of the round, without compiling
    compile_seconds: float
    failure: str = ""  # the traceback of an exception
    losses: tuple[np.ndarray, ...] = ()  # per step, or one array of all steps
    mean: Any = np.float32(0)
    padded: int = 0
    finite: bool = True
    leaves: Sequence[np.ndarray] = ()  # of the replica, unless they come apart


class ActorRun:
    """The actor's part in one run: the worker's replica and its local rounds."""

    def __init__(
        self,
        worker: int,
        settings: StepSettings,
        job: Job,
        device: Device,
        *,
        rows: np.ndarray | None,
        slowdown: float,
    ):
        """`rows` of the training split that the job has, in ascending order."""
        self.job = job
        self._worker, self._settings, self._device = worker, settings, device
        self._rows, self._slowdown, self._factor = rows, slowdown, 1.0
        self._timer = StepTimer(settings, job)
        self._steps = self._timer.steps
        self._throttle = Throttle(job.compilations)
        self._begin_replica = job.programs.replica(
            settings.local_update, settings.buffers
        )
        model = jax.eval_shape(job.programs.init, jax.random.key(0))
        self._model_structure = jax.tree.structure(model)
        self._structure = jax.tree.structure(
            jax.eval_shape(self._begin_replica, *model)
        )
        self._replica: Replica | None = None
        # where merges may change a replica during its round: the replicas with which
        # rounds begin, the last of these, and its result until it is checked in
        self._checked_out: queue.SimpleQueue[Replica | None] = queue.SimpleQueue()
        self._before: Replica | None = None
        self._after: Replica | None = None
        self.deferred_error = ""  # traceback of an exception between rounds
        self._number, self._cancelled = 0, 0  # numbers of rounds: the last, cancelled

    # -- before the clock starts -----------------------------------------------------

    def costs(self, size: int) -> tuple[float, float]:
        """Measure (fixed, per example) seconds of a step, without the slowdown."""
        return self._timer.costs(self._device, size)

    def step_mode(self, local_steps: int, size: int) -> str:
        """Measure which step mode is the fastest for such rounds."""
        return choose_step_mode(self._timer, self._device, local_steps, size)[0]

    def compile(self, shapes: Counter[Shape], complete: bool, step_mode: str) -> None:
        """Run a round of every shape once, and the programs between rounds."""
        found = DryRun([shapes], complete=complete)
        compile_steps(self._timer, self.job, [self._device], [step_mode], found)
        model = self.job.programs.init(jax.random.key(0))
        replica = self._new_replica(
            [np.asarray(leaf) for leaf in jax.tree.leaves(model)]
        )
        if self._settings.shared:
            now = self.job.programs.copies(replica)
            self.job.programs.check_in(now, replica, replica)
        self.job.compilations.programs.clear()  # from now on, count those of the run

    def compile_merges(self, programs: Sequence[MemberProgram]) -> None:
        """Run the parts of merges that `apply_changes` may be given."""
        for program in programs:
            zeros = [np.zeros(like.shape, like.dtype) for like in program.arguments]
            with self.job.compilations.of("merge"):
                jitted_once(self.job.programs, program)(*map(self._put, zeros))
        self.job.compilations.programs.clear()

    # -- the replica -----------------------------------------------------------------

    def begin(self, model: Sequence[np.ndarray]) -> None:
        """Begin a replica from a model; discard a deferred error of the last one."""
        self.deferred_error = ""
        self._replica = self._new_replica(model)

    def reset(self, model: Sequence[np.ndarray]) -> None:
        """Begin a replica again from a model; keep the buffers that merges own."""
        before = self._replica
        self._replica = self._new_replica(model)
        if before is not None:
            self._replica = with_merge_buffers(
                self._replica, before, self._settings.buffers
            )

    def _new_replica(self, model: Sequence[np.ndarray]) -> Replica:
        leaves = list(map(self._put, model))
        params, state = jax.tree.unflatten(self._model_structure, leaves)
        with self.job.compilations.of("init"):
            return self._begin_replica(params, state)

    def apply_changes(self, packed: bytes, *sent: Sequence[np.ndarray]) -> None:
        """Apply a merge's changes to the replica, with the arrays that it sent.

        They are as in `Parcel.packed`. Some may be computed by their program, which is
        given those of these arrays that have the indices beside it.
        """
        changes, program = unpacked(packed)
        before, arrays = jax.tree.leaves(self._replica), [a for s in sent for a in s]
        jitted = partial(jitted_once, self.job.programs)
        with self.job.compilations.of("merge"):
            after = changed_leaves(before, changes, program, arrays, self._put, jitted)
        self._replica = jax.tree.unflatten(self._structure, after)

    def leaves(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Return these leaves of the replica, or all; raise a deferred error."""
        if self.deferred_error:
            raise RuntimeError(self.deferred_error)
        return self._to_host(self._replica, numbers)

    def leaves_before(self) -> list[np.ndarray]:
        """Return all leaves of the replica with which the current round began."""
        return self._to_host(self._before, None)

    def leaves_after(self) -> list[np.ndarray]:
        """Return all leaves of the last round's result."""
        return self._to_host(
            self._after if self._settings.shared else self._replica, None
        )

    def restore(
        self, replica: Sequence[np.ndarray] | None, before: Sequence[np.ndarray] | None
    ) -> None:
        """Restore a saved replica, and the one with which its round began."""
        if replica is not None:
            self._replica = self._unflattened(replica)
        self._before = self._replica
        if before is not None:
            self._before = self._unflattened(before)

    def restore_after(self, after: Sequence[np.ndarray]) -> None:
        """Restore the saved result of a round."""
        self._after = self._unflattened(after)
        if not self._settings.shared:
            self._replica = self._after

    def _unflattened(self, leaves: Sequence[np.ndarray]) -> Replica:
        return jax.tree.unflatten(self._structure, list(map(self._put, leaves)))

    def _put(self, array: np.ndarray) -> jax.Array:
        """Copy an array to the device: the received buffer may be shared."""
        return jax.device_put(array, self._device, may_alias=False)

    @staticmethod
    def _to_host(replica: Replica | None, numbers: Sequence[int] | None) -> list:
        leaves = jax.tree.leaves(replica)
        chosen = leaves if numbers is None else [leaves[i] for i in numbers]
        return [np.asarray(leaf) for leaf in jax.device_get(chosen)]

    # -- local rounds ------------------------------------------------------------------

    def check_out(self) -> None:
        """Let the next round begin with the replica as it is now."""
        self._before = self._replica
        self._checked_out.put(self._replica)

    def check_in(self) -> None:
        """Set the replica to the round's result plus the merges' changes meanwhile."""
        after, now = self._after, self._replica
        if now is not None and now is not self._before:
            after = self.job.programs.check_in(now, self._before, after)
        self._replica, self._before, self._after = after, None, None

    def run_round(
        self, local_round: RoundCall, before: str = "", *args: Any
    ) -> RoundReport | tuple[RoundReport, Sequence[np.ndarray]]:
        """Run a local round; return its report with the leaves asked for, or apart.

        An exception becomes the failure of the report. `before` names a method that is
        called first, with `args`.
        """
        compiled = self.job.compilations.own_seconds
        if before:
            self.post(before, *args)
        compiled = self.job.compilations.own_seconds - compiled
        report = self._run_round(local_round)
        # deadlines do not include it, whatever was compiled
        report = report._replace(compile_seconds=report.compile_seconds + compiled)
        if not local_round.leaves_apart:
            return report
        return report._replace(leaves=()), report.leaves

    def post(self, method: str, *args: Any) -> None:
        """Call a method; its error is that of the next report."""
        try:
            getattr(self, method)(*args)
        except Exception:
            self.deferred_error = self.deferred_error or traceback.format_exc()

    def _run_round(self, local_round: RoundCall) -> RoundReport:
        compilations = self.job.compilations
        began, compiled = time.perf_counter(), compilations.own_seconds
        self._throttle.renew()
        self._number = local_round.number  # from now on `cancel` ends this round
        # a replica that merges may change was checked out by an earlier call
        replica = self._checked_out.get() if self._settings.shared else self._replica
        failure, outcome = self.deferred_error, None
        try:
            if not failure and local_round.number > self._cancelled:
                outcome = self._outcome(local_round, replica)
        except Cancelled:
            pass  # the driver discards it, but learns that the actor responds
        except BaseException:
            failure = traceback.format_exc()
        compiling = compilations.own_seconds - compiled
        seconds = max(time.perf_counter() - began - compiling, 0.0)
        if outcome is None:
            return RoundReport(seconds, compiling, failure)
        return RoundReport(
            seconds,
            compiling,
            losses=tuple(np.asarray(values) for _, values in outcome.losses),
            mean=np.asarray(outcome.mean),
            padded=outcome.padded,
            finite=bool(np.asarray(outcome.finite)),
            leaves=self._to_host(outcome.replica, local_round.report_leaves),
        )

    def _outcome(self, local_round: RoundCall, replica: Replica | None) -> RoundOutcome:
        rows = local_round.rows
        if self._rows is not None:
            rows = [np.searchsorted(self._rows, r) for r in rows]
        assignment = Assignment(
            self._worker,
            replica,
            rows,
            local_round.learning_rate,
            local_round.first_step,
        )
        self._throttle.begin(self._slowdown * self._factor)
        outcome = self._steps.run(
            assignment, local_round.step_mode, self._device, self._throttle.between
        ).wait()
        if self._settings.shared:
            self._after = outcome.replica
        else:
            self._replica = outcome.replica
        return outcome

    def slow(self, factor: float) -> None:
        """Slow the steps down to `factor` times their initial duration."""
        self._factor = factor

    def cancel(self, number: int) -> None:
        """End round `number` after its current program, or before it begins."""
        self._cancelled = max(self._cancelled, number)
        if self._number <= number:
            self._throttle.cancel()
