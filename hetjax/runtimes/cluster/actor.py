"""The actor of a worker: its process, with its device, data, programs and replica.

`WorkerActor` is a plain class whose methods the driver calls. The calls of one queue
(see `worker_group`) run one by one, in the order in which they were made. `ActorRun` is
the actor's part in one run. The messages between driver and actors come first.
"""

import os
import queue
import socket
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hetjax.data.batching import Bucket
from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import FEW, split_off
from hetjax.data.portable import Portable, open_portable
from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.engine.programs.compilations import Compilations
from hetjax.engine.programs.sharing import programs_of
from hetjax.engine.step_runner import RoundOutcome, StepSettings
from hetjax.local import with_merge_buffers
from hetjax.merge.merge_traffic import Change
from hetjax.recipes import make
from hetjax.replica import Replica
from hetjax.runtimes.devices import default_device
from hetjax.runtimes.real.dry_run import DryRun, Shape, compile_steps
from hetjax.runtimes.real.measured_costs import first_quartile, fixed_share
from hetjax.runtimes.real.step_mode_choice import choose_step_mode
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.real.throttle import Cancelled, Throttle
from hetjax.tracing.fingerprint import data_fingerprint

MAX_DATA_SETS = 2  # that an actor stores, the most recent ones


class ActorDevice(NamedTuple):
    """The device and the process of an actor."""

    kind: str
    platform: str
    process: int
    host: str


class RunSettings(NamedTuple):
    """The settings of a run for one actor; keys refer to values that it stores."""

    worker: int  # its index in the run
    step_settings_key: str  # `StepSettings`
    task_key: str
    data_key: str
    seed: int
    buckets: tuple[Bucket, ...]
    on_nan: str
    slowdown: float


class RoundCall(NamedTuple):
    """A local round; the actor has the examples, so that only row numbers are sent."""

    rows: Sequence[np.ndarray]
    learning_rate: np.float32
    first_step: int
    step_mode: str
    report_leaves: tuple[int, ...]  # indices of the replica's leaves to return
    number: int  # of the round, unique in the run


class RoundReport(NamedTuple):
    """The result of a local round."""

    seconds: float  # of the round, without compiling
    compile_seconds: float
    failure: str = ""  # the traceback of an exception
    losses: tuple[np.ndarray, ...] = ()  # per step, or one array of all steps
    mean: Any = np.float32(0)
    padded: int = 0
    finite: bool = True


class ActorStatus(NamedTuple):
    """The answer to a health check."""

    compiling: bool


class ActorRun:
    """The actor's part in one run: the worker's replica and its local rounds."""

    def __init__(
        self,
        run_settings: RunSettings,
        settings: StepSettings,
        job: Job,
        rows: np.ndarray | None,
        device: Any,
    ):
        """`rows` of the training split that the job has, in ascending order."""
        self.job = job
        self._worker, self._settings = run_settings.worker, settings
        self._slowdown, self._factor = run_settings.slowdown, 1.0
        self._rows, self._device = rows, device
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
        self._deferred_error = ""  # traceback of an exception between rounds
        self._number, self._cancelled = 0, 0  # numbers of rounds: the last, cancelled

    # -- before the clock starts -----------------------------------------------------

    def costs(self, size: int) -> tuple[float, float]:
        """Measure (fixed, per example) seconds of a step, without the slowdown."""
        small = max(1, size // 4)
        seconds = {
            n: first_quartile(self._timer.seconds(self._device, n))
            for n in {size, small}
        }
        share = fixed_share(size, seconds[size], small, seconds[small])
        return share * seconds[size], (1 - share) * seconds[size] / size

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

    # -- the replica -----------------------------------------------------------------

    def begin(self, model: Sequence[np.ndarray]) -> None:
        """Begin a replica from a model; discard a deferred error of the last one."""
        self._deferred_error = ""
        with self._deferring_errors():
            self._replica = self._new_replica(model)

    def reset(self, model: Sequence[np.ndarray]) -> None:
        """Begin a replica again from a model; keep the buffers that merges own."""
        with self._deferring_errors():
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

    def apply_changes(
        self, changes: Sequence[Change], *payloads: Sequence[np.ndarray]
    ) -> None:
        """Apply a merge's changes to the replica, with the arrays that it sent."""
        with self._deferring_errors():
            sent = [array for payload in payloads for array in payload]
            before = jax.tree.leaves(self._replica)
            after = list(before)
            for leaf, number, copy_of, fill in changes:
                like = before[leaf]
                if number is not None:
                    after[leaf] = self._put(sent[number])
                elif copy_of is not None:
                    after[leaf] = jnp.copy(before[copy_of])
                else:
                    after[leaf] = self._put(np.full(like.shape, fill, like.dtype))
            self._replica = jax.tree.unflatten(self._structure, after)

    def leaves(self, numbers: Sequence[int] | None = None) -> list[np.ndarray]:
        """Return these leaves of the replica, or all; raise a deferred error."""
        if self._deferred_error:
            raise RuntimeError(self._deferred_error)
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
        with self._deferring_errors():
            if replica is not None:
                self._replica = self._unflattened(replica)
            self._before = self._replica
            if before is not None:
                self._before = self._unflattened(before)

    def restore_after(self, after: Sequence[np.ndarray]) -> None:
        """Restore the saved result of a round."""
        with self._deferring_errors():
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

    @contextmanager
    def _deferring_errors(self) -> Iterator[None]:
        """Defer an exception to the next report: nothing waits for these calls."""
        try:
            yield
        except Exception:
            self._deferred_error = self._deferred_error or traceback.format_exc()

    # -- local rounds ------------------------------------------------------------------

    def check_out(self) -> None:
        """Let the next round begin with the replica as it is now."""
        self._before = self._replica
        self._checked_out.put(self._replica)

    def check_in(self) -> None:
        """Set the replica to the round's result plus the merges' changes meanwhile."""
        with self._deferring_errors():
            after, now = self._after, self._replica
            if now is not None and now is not self._before:
                after = self.job.programs.check_in(now, self._before, after)
            self._replica, self._before, self._after = after, None, None

    def run_round(self, local_round: RoundCall) -> tuple[RoundReport, list[np.ndarray]]:
        """Run a local round; return its report, and the leaves asked for.

        An exception becomes the failure of the report.
        """
        compilations = self.job.compilations
        began, compiled = time.perf_counter(), compilations.own_seconds
        self._throttle.renew()
        self._number = local_round.number  # from now on `cancel` ends this round
        # a replica that merges may change was checked out by an earlier call
        replica = self._checked_out.get() if self._settings.shared else self._replica
        failure, outcome = self._deferred_error, None
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
            return RoundReport(seconds, compiling, failure), []
        report = RoundReport(
            seconds,
            compiling,
            losses=tuple(np.asarray(values) for _, values in outcome.losses),
            mean=np.asarray(outcome.mean),
            padded=outcome.padded,
            finite=bool(np.asarray(outcome.finite)),
        )
        return report, self._to_host(outcome.replica, local_round.report_leaves)

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


class WorkerActor:
    """The class that every actor of the cluster is an instance of."""

    def __init__(self, name: str, platform: str | None):
        """Set up the worker `name`; a given `platform` is the only one JAX may use."""
        self._name = name
        if platform is not None:
            jax.config.update("jax_platforms", platform)
        # the steps have their own thread: asynchronous dispatch would add latency
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        self._device = default_device()
        self._stored: dict[str, Any] = {}
        self._data: dict[str, tuple[Split, np.ndarray | None]] = {}
        self._counting = ExitStack()
        self._run: ActorRun | None = None

    def __repr__(self) -> str:
        return f"hetjax {self._name}"

    def describe(self) -> ActorDevice:
        """Describe the device and the process."""
        device = self._device
        return ActorDevice(
            device.device_kind, device.platform, os.getpid(), socket.gethostname()
        )

    # -- values that runs need ---------------------------------------------------------

    def store(self, key: str, value: Any, evicted: Sequence[str]) -> None:
        """Store a value under a key, and delete those of the `evicted` keys."""
        for old in evicted:
            del self._stored[old]
        self._stored[key] = value

    def load_data(
        self,
        key: str,
        recipe: dict[str, Any],
        fingerprint: dict[str, Any],
        held_out_seed: int | None,
        rows: np.ndarray | None,
    ) -> None:
        """Load a data set by its recipe; store its training split, or these rows of it.

        Errors: ValueError if the data differ from the driver's; the reader's errors.
        """
        data = make(recipe, {})
        found = data_fingerprint(data)
        if found != fingerprint:
            raise ValueError(
                f"{self._name} on {socket.gethostname()} reads other data from "
                f"{recipe['function']} than the driver: {found}, not {fingerprint}; "
                "all nodes must have the same files"
            )
        train = data.train
        if held_out_seed is not None:
            train, _ = split_off(train, held_out_seed, FEW)
        self._store_data(key, train if rows is None else train.take(rows), rows)

    def receive_data(self, key: str, train: Portable, rows: np.ndarray | None) -> None:
        """Store a training split, or these rows of one.

        Errors: OSError or ValueError for a memory map that is missing, or differs.
        """
        try:
            self._store_data(key, open_portable(train), rows)
        except (OSError, ValueError) as error:
            raise type(error)(
                f"{self._name} on {socket.gethostname()}: {error}; all nodes must have "
                "the same files"
            ) from error

    def _store_data(self, key: str, train: Split, rows: np.ndarray | None) -> None:
        for old in list(self._data)[: 1 - MAX_DATA_SETS]:
            del self._data[old]
        self._data[key] = train, rows

    def open_run(self, run_settings: RunSettings) -> None:
        """Open a run, in place of the one that is open."""
        programs = programs_of(self._stored[run_settings.task_key])
        train, rows = self._data[run_settings.data_key]
        self._counting.close()
        compilations = Compilations()
        self._counting.enter_context(compilations.counting())
        job = Job(
            name="actor",
            data=Dataset(train, train.take(np.zeros(0, np.int64))),
            programs=programs,
            compilations=compilations,
            train=train,
            buckets=run_settings.buckets,
            test=(),
            num_test=0,
            whole_test=(),
            num_whole_test=0,
            held_out=(),
            num_held_out=0,
            instants=(),
            seed=run_settings.seed,
            on_nan=run_settings.on_nan,
        )
        settings = self._stored[run_settings.step_settings_key]
        self._run = ActorRun(run_settings, settings, job, rows, self._device)

    # -- the open run ------------------------------------------------------------------

    def call_run(self, method: str, *args: Any) -> Any:
        """Call a method of the open run."""
        assert self._run is not None, "no run is open"
        return getattr(self._run, method)(*args)

    def end_run(self) -> dict[str, int]:
        """End the open run; return the numbers of compiled programs, by purpose."""
        run, self._run = self._run, None
        self._counting.close()
        return {} if run is None else dict(run.job.compilations.programs)

    def status(self) -> ActorStatus:
        """Answer a health check."""
        run = self._run
        return ActorStatus(run is not None and run.job.compilations.busy)
