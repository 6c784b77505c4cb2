"""Run the K local steps of an assignment: one by one, or fused into one program.

No step mode is best everywhere: a convolution inside a loop, or vmapped over workers,
is an order of magnitude slower on a CPU, while dispatching small steps one by one
starves a GPU. The step mode changes the last bits of a result, so it is part of a run's
record.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import Batch, make_batch
from hetjax.data.columns import row_bytes
from hetjax.data.uneven import make_batches
from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.player_parts import Assignment
from hetjax.local import LocalUpdate
from hetjax.replica import Replica, Requires
from hetjax.strategies.types import Strategy

ALONE = ("dispatch", "fused", "unrolled")  # step modes of a single worker
STEP_MODES = (*ALONE, "vmapped")  # "vmapped": workers that share a device, together
AT_ONCE = 2**20  # bytes of batches that are gathered before the first one is used
LONGEST = 16  # steps to unroll at most, as a program grows with each; more are fused


class RoundOutcome(NamedTuple):
    """The result of an assignment."""

    replica: Replica
    losses: Sequence[tuple[np.ndarray, Any]]  # rows and losses of one step, or of all
    mean: jax.Array | np.ndarray  # mean loss of the last step
    padded: int  # number of padding examples that were computed too
    finite: Any = True  # whether all numbers of the replica are finite

    @property
    def known(self) -> bool:
        """Always true: the program has been launched."""
        return True

    @property
    def done(self) -> bool:
        """Whether the arrays are computed."""
        return not isinstance(self.mean, jax.Array) or self.mean.is_ready()

    def wait(self) -> "RoundOutcome":
        """Wait until the arrays are computed; return the outcome itself."""
        jax.block_until_ready((self.replica, self.mean, self.finite))
        return self


class StepSettings(NamedTuple):
    """The settings of a strategy's local steps: all that its workers need."""

    local_update: LocalUpdate
    requires: Requires  # the buffers of the lowest merge
    shared: bool  # whether merges may change a replica during its round
    records_losses: bool  # of every step, for the sampler

    @classmethod
    def of(cls, strategy: Strategy) -> "StepSettings":
        """Return the settings of a strategy."""
        merge = strategy.merges[0]
        return cls(
            strategy.local,
            merge.requires,
            merge.updates_busy_workers,
            strategy.sampler.observe is not None,
        )

    @property
    def buffers(self) -> Requires:
        """All buffers of a replica: of the merge and of the local update."""
        return (*self.requires, *self.local_update.requires)


class StepRunner:
    """Runs assignments of one strategy on one training split."""

    def __init__(self, settings: StepSettings, job: Job):
        """Batches are padded, unless that would change statistics or losses."""
        self._programs, self.compilations = job.programs, job.compilations
        self._train, self._buckets, self._seed = job.train, job.buckets, job.seed
        self._exact, self._checks = job.programs.exact, job.on_nan == "reset"
        self._parts = settings.local_update, settings.requires
        # a replica that merges may change during its round is still read then
        self._donate = not settings.shared
        self._records_losses = settings.records_losses
        self._step = self._programs.step(*self._parts, donate=self._donate)

    def run(
        self,
        assignment: Assignment,
        step_mode: str = "dispatch",
        device: Device | None = None,
        between: Callable[[Any], None] | None = None,
    ) -> RoundOutcome:
        """Enqueue all steps and return their outcome.

        `between` is called after each program. With a device, batches are sent to it
        before the step that needs them.
        """
        a, replica = assignment, assignment.replica
        key_data = self._key_data(a)
        losses, padded, mean = [], 0, np.zeros(())
        if step_mode == "dispatch" or len(a.rows) < 2:
            for number, batch in enumerate(self._batches(a.rows)):
                padded += len(batch.weight) - len(a.rows[number])
                work = replica, batch, a.learning_rate, key_data[number]
                replica, values, mean = self._call(self._step, device, between, *work)
                if self._records_losses:
                    losses.append((a.rows[number], values))
        else:
            unrolled = step_mode == "unrolled" and len(a.rows) <= LONGEST
            program = self._programs.steps(
                *self._parts, unrolled=unrolled, donate=self._donate
            )
            batch = make_batches(self._train, a.rows, self._buckets, exact=self._exact)
            padded = batch.weight.size - sum(map(len, a.rows))
            work = replica, batch, a.learning_rate, key_data
            replica, values, mean = self._call(program, device, between, *work)
            if self._records_losses:
                losses.append((np.stack(a.rows), values))
        return self._outcome(replica, losses, mean, padded)

    def vmapped(
        self,
        group: Sequence[Assignment],
        device: Device | None = None,
        between: Callable[[Any], None] | None = None,
    ) -> list[RoundOutcome]:
        """Run assignments of the same shape in one program; return their outcomes."""
        n, rows = len(group), [r for a in group for r in a.rows]
        program = self._programs.vmapped(*self._parts, donate=self._donate)
        batches = make_batches(self._train, rows, self._buckets, exact=self._exact)
        batches = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), batches)
        replicas, values, means = self._call(
            program,
            device,
            between,
            tuple(a.replica for a in group),
            batches,
            np.array([a.learning_rate for a in group]),
            np.stack([self._key_data(a) for a in group]),
        )
        padded = batches.weight.size // n - sum(map(len, group[0].rows))
        outcomes = []
        for i, (a, replica) in enumerate(zip(group, replicas, strict=True)):
            recorded = self._records_losses
            losses = [(np.stack(a.rows), values[i])] if recorded else []
            outcomes.append(self._outcome(replica, losses, means[i], padded))
        return outcomes

    def _call(
        self,
        program: Callable,
        device: Device | None,
        between: Callable[[Any], None] | None,
        replica: Any,
        batch: Batch,
        *rest: Any,
    ) -> Any:
        """Call the program; one thread compiles it while others wait."""
        if device is not None and device.platform != "cpu":
            batch = jax.device_put(batch, device)  # a CPU uses NumPy arrays as they are
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(batch))
        arguments = (replica, batch, *rest)
        call = self._programs.first_calls.call
        with self.compilations.of("step"):
            outputs = call(program, device, shapes, arguments, self.compilations)
        if between:
            between(outputs[0])
        return outputs

    def _outcome(
        self, replica: Replica, losses: list[Any], mean: Any, padded: int
    ) -> RoundOutcome:
        finite = self._programs.finite(replica) if self._checks else True
        return RoundOutcome(replica, losses, mean, padded, finite)

    def _batches(self, rows: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Yield the batch of each step; small dense ones are gathered together."""
        data, buckets, exact = self._train, self._buckets, self._exact
        if data.sparse or len(rows) < 2:
            yield from (make_batch(data, r, buckets, exact=exact) for r in rows)
            return
        several = max(1, AT_ONCE // (len(rows[0]) * row_bytes(data.x)))
        for i in range(0, len(rows), several):
            found = make_batches(data, rows[i : i + several], buckets, exact=exact)
            for k in range(len(found.count)):
                yield jax.tree.map(lambda leaf, k=k: leaf[k], found)

    def arguments(self, replica: Replica, row: np.ndarray) -> tuple[Any, ...]:
        """Return the arguments of the program of one step on these rows."""
        batch = make_batch(self._train, row, self._buckets, exact=self._exact)
        return replica, batch, np.float32(1e-6), np.zeros(3, np.uint32)

    def lowered(self, arguments: tuple[Any, ...]) -> jax.stages.Lowered:
        """Return the lowered program of one step with these `arguments`."""
        return self._step.lower(*arguments)

    def _key_data(self, a: Assignment) -> np.ndarray:
        """Return [K, 3] uint32: (seed, worker, step), which make each step's key."""
        numbers = range(a.first_step, a.first_step + len(a.rows))
        return np.array([(self._seed, a.worker, i) for i in numbers], np.uint32)
