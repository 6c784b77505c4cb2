"""A member's part in one run: its replica, and the local rounds that it does."""

import queue
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.local_steps import RoundOutcome, StepSettings
from hetjax.engine.protocols import Assignment
from hetjax.local import with_merge_buffers
from hetjax.merge.merge_traffic import Change
from hetjax.replica import Replica
from hetjax.runtimes.cluster.messages import RoundCall, RoundReport, RunSettings
from hetjax.runtimes.real.dry_run import DryRun, Shape, compile_steps
from hetjax.runtimes.real.step_mode_choice import choose_step_mode
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.real.throttle import Cancelled, Throttle
from hetjax.runtimes.threads.open_threads import first_quartile, fixed_share


class ActorRun:
    """One worker of one run, in the process of its member."""

    def __init__(
        self,
        opening: RunSettings,
        settings: StepSettings,
        job: Job,
        rows: np.ndarray | None,
        device: Any,
    ):
        """`rows`, in rising order: those of the training split that the job has."""
        self.job = job
        self._worker, self._settings = opening.worker, settings
        self._slowdown, self._factor = opening.slowdown, 1.0
        self._rows, self._device = rows, device
        self._timer = StepTimer(settings, job)
        self._steps = self._timer.steps
        self._pace = Throttle(job.compilations)
        self._begin = job.programs.replica(settings.local_update, settings.buffers)
        model = jax.eval_shape(job.programs.init, jax.random.key(0))
        self._model_structure = jax.tree.structure(model)
        self._structure = jax.tree.structure(jax.eval_shape(self._begin, *model))
        self._replica: Replica | None = None
        # where merges may change replicas during their rounds: those with which rounds
        # begin, the last of them, and what came of it until it is checked in
        self._begins: queue.SimpleQueue[Replica | None] = queue.SimpleQueue()
        self._before: Replica | None = None
        self._after: Replica | None = None
        self._broken = ""  # the traceback of an exception between rounds
        self._number, self._cancelled = 0, 0  # of the last round, and one cancelled

    # -- before the clock starts -----------------------------------------------------

    def costs(self, size: int) -> tuple[float, float]:
        """(fixed, per example) seconds of a step, without the slowdown."""
        small = max(1, size // 4)
        seconds = {
            n: first_quartile(self._timer.seconds(self._device, n))
            for n in {size, small}
        }
        share = fixed_share(size, seconds[size], small, seconds[small])
        return share * seconds[size], (1 - share) * seconds[size] / size

    def step_mode(self, local_steps: int, size: int) -> str:
        """The step mode that is the fastest for such rounds."""
        return choose_step_mode(self._timer, self._device, local_steps, size)[0]

    def compile(self, shapes: Counter[Shape], complete: bool, step_mode: str) -> None:
        """Run a round of every shape once, and what happens between rounds."""
        found = DryRun([shapes], complete=complete)
        compile_steps(self._timer, self.job, [self._device], [step_mode], found)
        model = self.job.programs.init(jax.random.key(0))
        replica = self._from([np.asarray(leaf) for leaf in jax.tree.leaves(model)])
        if self._settings.shared:
            now = self.job.programs.copies(replica)
            self.job.programs.check_in(now, replica, replica)
        self.job.compilations.programs.clear()  # what comes now is of the run

    # -- the replica -----------------------------------------------------------------

    def begin(self, model: Sequence[np.ndarray]) -> None:
        """Begin from a model; what went wrong before is forgotten with the replica."""
        self._broken = ""
        with self._noting():
            self._replica = self._from(model)

    def reset(self, model: Sequence[np.ndarray]) -> None:
        """Begin again from a model, with the buffers that only merges change."""
        with self._noting():
            before = self._replica
            self._replica = self._from(model)
            if before is not None:
                self._replica = with_merge_buffers(
                    self._replica, before, self._settings.buffers
                )

    def _from(self, model: Sequence[np.ndarray]) -> Replica:
        leaves = list(map(self._put, model))
        params, state = jax.tree.unflatten(self._model_structure, leaves)
        with self.job.compilations.of("init"):
            return self._begin(params, state)

    def change(self, changes: Sequence[Change], *parcels: Sequence[np.ndarray]) -> None:
        """Replace leaves of the replica, as a merge has; it sent the parcels."""
        with self._noting():
            sent = [array for parcel in parcels for array in parcel]
            before = jax.tree.leaves(self._replica)
            after = list(before)
            for leaf, number, own, fill in changes:
                like = before[leaf]
                if number is not None:  # each in a buffer of its own
                    after[leaf] = self._put(sent[number])
                elif own is not None:
                    after[leaf] = jnp.copy(before[own])
                else:
                    after[leaf] = self._put(np.full(like.shape, fill, like.dtype))
            self._replica = jax.tree.unflatten(self._structure, after)

    def leaves(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Leaves of the replica, or all; raises what went wrong between rounds."""
        if self._broken:
            raise RuntimeError(self._broken)
        return self._sent(self._replica, numbers)

    def leaves_before(self) -> list[np.ndarray]:
        """All leaves of the replica with which the steps under way began."""
        return self._sent(self._before, None)

    def leaves_after(self) -> list[np.ndarray]:
        """All leaves of what came of the last round."""
        return self._sent(self._after if self._settings.shared else self._replica, None)

    def take_up(
        self, replica: Sequence[np.ndarray] | None, before: Sequence[np.ndarray] | None
    ) -> None:
        """Take up a replica that was saved, and the one with which its round began."""
        with self._noting():
            if replica is not None:
                self._replica = self._unflattened(replica)
            self._before = self._replica
            if before is not None:
                self._before = self._unflattened(before)

    def take_up_after(self, after: Sequence[np.ndarray]) -> None:
        """Take up what came of a round, which was saved."""
        with self._noting():
            self._after = self._unflattened(after)
            if not self._settings.shared:
                self._replica = self._after

    def _unflattened(self, leaves: Sequence[np.ndarray]) -> Replica:
        return jax.tree.unflatten(self._structure, list(map(self._put, leaves)))

    def _put(self, array: np.ndarray) -> jax.Array:
        """An array in a buffer of its own: the one that came may be shared."""
        return jax.device_put(array, self._device, may_alias=False)

    @staticmethod
    def _sent(replica: Replica | None, numbers: Sequence[int] | None) -> list:
        leaves = jax.tree.leaves(replica)
        chosen = leaves if numbers is None else [leaves[i] for i in numbers]
        return [np.asarray(leaf) for leaf in jax.device_get(chosen)]

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep an exception for the next report: nobody waits for these calls."""
        try:
            yield
        except Exception:
            self._broken = self._broken or traceback.format_exc()

    # -- local rounds ------------------------------------------------------------------

    def check_out(self) -> None:
        """The next round begins with the replica as it is now."""
        self._before = self._replica
        self._begins.put(self._replica)

    def check_in(self) -> None:
        """Take what came of the round, plus what merges did meanwhile."""
        with self._noting():
            after, now = self._after, self._replica
            if now is not None and now is not self._before:
                after = self.job.programs.check_in(now, self._before, after)
            self._replica, self._before, self._after = after, None, None

    def run(self, local_round: RoundCall) -> tuple[RoundReport, list[np.ndarray]]:
        """Do a local round: the report, and the leaves of the replica to be sent.

        What goes wrong is in the report.
        """
        compilations = self.job.compilations
        began, compiled = time.perf_counter(), compilations.own_seconds
        self._pace.renew()
        self._number = local_round.number  # from now on `cancel` ends this round
        # a replica that merges may change was checked out when the driver said so
        replica = self._begins.get() if self._settings.shared else self._replica
        failure, outcome = self._broken, None
        try:
            if not failure and local_round.number > self._cancelled:
                outcome = self._outcome(local_round, replica)
        except Cancelled:
            pass  # nobody needs it, but a silent member reports here
        except BaseException:
            failure = traceback.format_exc()
        compiling = compilations.own_seconds - compiled
        seconds = max(time.perf_counter() - began - compiling, 0.0)
        if outcome is None:
            return RoundReport(seconds, compiling, failure), []
        report = RoundReport(
            seconds,
            compiling,
            losses=tuple(np.asarray(values) for _, values in outcome.losses),
            mean=np.asarray(outcome.mean),
            padded=outcome.padded,
            finite=bool(np.asarray(outcome.finite)),
        )
        return report, self._sent(outcome.replica, local_round.send)

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
        self._pace.begin(self._slowdown * self._factor)
        outcome = self._steps.run(
            assignment, local_round.step_mode, self._device, self._pace.between
        ).wait()
        if self._settings.shared:
            self._after = outcome.replica
        else:
            self._replica = outcome.replica
        return outcome

    def slow(self, factor: float) -> None:
        """Steps take `factor` times as long as at the start."""
        self._factor = factor

    def cancel(self, number: int) -> None:
        """End the round of this number after its program, or before it begins."""
        self._cancelled = max(self._cancelled, number)
        if self._number <= number:
            self._pace.cancel()
