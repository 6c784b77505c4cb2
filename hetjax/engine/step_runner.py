"""Run the K local steps of an assignment: one by one, or fused into one program.

No step mode is best everywhere: a convolution inside a loop, or vmapped over workers,
is an order of magnitude slower on a CPU, while dispatching small steps one by one
starves a GPU. The step mode changes the last bits of a result, so it is part of a run's
record.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.data.batching import make_batch
from hetjax.engine.batch_feeds import DeviceFeed, Fed, HostFeed, feed_for
from hetjax.engine.expected_draws import RoundRows
from hetjax.engine.job import Job
from hetjax.engine.placement import Device, is_host
from hetjax.engine.player_parts import Assignment
from hetjax.engine.programs.local_round import step_numbers, step_table
from hetjax.local import LocalUpdate
from hetjax.replica import Replica, Requires
from hetjax.strategies.types import Strategy

ALONE = ("dispatch", "fused", "unrolled")  # step modes of a single worker
STEP_MODES = (*ALONE, "vmapped")  # "vmapped": workers that share a device, together
MOST_AHEAD = 2**28  # bytes of a program's batches that are gathered ahead, at most
LONGEST = 16  # steps to unroll at most, as a program grows with each; more are fused

Between = Callable[[Any], None]  # called with the replica or replicas


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
        is_ready = getattr(self.mean, "is_ready", None)  # NumPy's arrays have none
        return is_ready is None or is_ready()

    def wait(self) -> "RoundOutcome":
        """Wait until the arrays are computed; return the outcome with its numbers."""
        mean, finite = self.mean, self.finite
        if isinstance(mean, jax.Array) and is_host(mean.device):  # shorter
            finite = finite if finite is True else np.asarray(finite)
            return self._replace(mean=np.asarray(mean), finite=bool(finite))
        if not isinstance(mean, jax.Array):  # without any step
            jax.block_until_ready(self.replica)
        # results of the last program: the replica is computed when they are
        mean, finite = jax.device_get((mean, finite))
        return self._replace(mean=mean, finite=bool(finite))


def _mode_of(step_mode: str, steps: int) -> str:
    """Return how one worker makes the steps of an assignment."""
    if steps < 2:
        return "dispatch"
    too_long = step_mode == "unrolled" and steps > LONGEST
    return "fused" if too_long or step_mode == "vmapped" else step_mode


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
        self._job, self._checks = job, job.on_nan == "reset"
        self._parts = settings.local_update, settings.requires
        # a replica that merges may change during its round is still read then
        self._donate = not settings.shared
        self._records_losses = settings.records_losses
        self._feeds: dict[Device | None, HostFeed | DeviceFeed] = {}
        # programs that were called before, by what decides what is compiled
        self._called: dict[Hashable, Callable] = {}

    def run(
        self,
        assignment: Assignment,
        step_mode: str = "dispatch",
        device: Device | None = None,
        between: Between | None = None,
    ) -> RoundOutcome:
        """Enqueue all steps and return their outcome.

        `between` is called after each program. With a device, batches are sent to it
        before the step that needs them.
        """
        a, how = assignment, _mode_of(step_mode, len(assignment.rows))
        call = partial(self._call, how, device, between)
        if not a.rows:  # only a copy of the model
            finite = self._programs.finite(a.replica) if self._checks else True
            return RoundOutcome(a.replica, [], np.zeros(()), 0, finite)
        batches = self._batches(a.rows, how, device)
        if how == "dispatch" and len(a.rows) > 1:
            return self._one_by_one(a, batches, call)
        fed = next(batches)
        table = step_table(self._numbers(a), fed.rows, fed.n)
        if how == "dispatch":
            (table,) = table
        replica, losses, mean, finite = call(a.replica, fed, table)
        padded = (fed.size - fed.n) * len(a.rows)
        recorded = self._recorded(a.rows, losses)
        return self._outcome(replica, recorded, mean, finite, padded)

    def _one_by_one(
        self, a: Assignment, batches: Iterator[Fed], call: Callable
    ) -> RoundOutcome:
        """Run the steps, each as a program."""
        replica, recorded, padded, mean, finite = a.replica, [], 0, None, True
        numbers = self._numbers(a)
        for i, fed in enumerate(batches):
            table = step_table(numbers[i : i + 1], fed.rows, fed.n)[0]
            replica, losses, mean, finite = call(replica, fed, table)
            padded += fed.size - fed.n
            recorded += self._recorded(a.rows[i : i + 1], losses)
        return self._outcome(replica, recorded, mean, finite, padded)

    def vmapped(
        self,
        group: Sequence[Assignment],
        device: Device | None = None,
        between: Between | None = None,
    ) -> list[RoundOutcome]:
        """Run assignments of the same shape in one program; return their outcomes."""
        n, feed = len(group), self._feed(device)
        fed = feed.together([r for a in group for r in a.rows])
        numbers = np.concatenate(list(map(self._numbers, group)))
        table = step_table(numbers, fed.rows, fed.n)
        table = table.reshape(n, -1, table.shape[1])
        if fed.batches is None:
            of_worker = jax.tree.map(lambda x: x.reshape(n, -1, *x.shape[1:]), fed.data)
            fed = fed._replace(data=of_worker)
        before = tuple(a.replica for a in group)
        replicas, losses, means, finite = self._call(
            "vmapped", device, between, before, fed, table
        )
        padded = (fed.size - fed.n) * len(group[0].rows)
        return [
            self._outcome(
                replicas[i],
                self._recorded(a.rows, losses[i]),
                means[i],
                finite[i] if self._checks else True,
                padded,
            )
            for i, a in enumerate(group)
        ]

    def _call(
        self,
        how: str,
        device: Device | None,
        between: Between | None,
        replica: Any,
        fed: Fed,
        table: np.ndarray,
    ) -> Any:
        """Call the program of these inputs; one thread compiles it, others wait."""
        data = fed.data
        if not is_host(device):  # data that are there already stay
            data, table = jax.device_put((data, table), device)
        key = how, self._checks, device, table.shape, fed.shape
        program = self._called.get(key)
        if program is not None:
            outputs = program(replica, data, table)
        else:
            program = self._programs.local_round(
                *self._parts,
                fed.batches,
                how=how,
                checks=self._checks,
                donate=self._donate,
            )
            call, arguments = self._programs.first_calls.call, (replica, data, table)
            with self.compilations.of("step"):
                outputs = call(program, device, key, arguments, self.compilations)
            self._called[key] = program
        if between:
            between(outputs[0])
        return outputs

    def _outcome(
        self,
        replica: Replica,
        recorded: list[tuple[np.ndarray, Any]],
        mean: Any,
        finite: Any,
        padded: int,
    ) -> RoundOutcome:
        for value in (mean, finite):  # so that they are there when they are read
            if isinstance(value, jax.Array) and not is_host(value.device):
                value.copy_to_host_async()
        return RoundOutcome(
            replica, recorded, mean, padded, finite if self._checks else True
        )

    def _recorded(
        self, rows: Sequence[np.ndarray], losses: Any
    ) -> list[tuple[np.ndarray, Any]]:
        """Return rows and losses of steps, if the sampler observes them."""
        if not self._records_losses:
            return []
        return [(rows[0] if len(rows) == 1 else np.stack(rows), losses)]

    def _feed(self, device: Device | None) -> HostFeed | DeviceFeed:
        if device not in self._feeds:
            self._feeds[device] = feed_for(self._job, device)
        return self._feeds[device]

    def gather(self, rows: RoundRows, step_mode: str, device: Device) -> None:
        """Gather the batches of a worker's next round, and send the first ones.

        They are for `run`, in `rows.gathered`. Nothing is gathered if the inputs of the
        first program have more than MOST_AHEAD bytes.
        """
        how, feed = _mode_of(step_mode, len(rows)), self._feed(device)
        first = rows[:1] if how == "dispatch" else rows
        if not rows or feed.num_bytes(first) > MOST_AHEAD:
            return
        batches = self._gathered(rows, how, device)
        try:
            fed = next(batches)
            if not is_host(device):
                fed = fed._replace(data=jax.device_put(fed.data, device))
        except Exception:  # `run` will raise it, if there is such a round
            return
        rows.gathered = how, device, chain((fed,), batches)

    def _batches(
        self, rows: Sequence[np.ndarray], how: str, device: Device | None
    ) -> Iterator[Fed]:
        """Return the batches of a round, which may be gathered already."""
        if isinstance(rows, RoundRows) and rows.gathered is not None:
            (*of, batches), rows.gathered = rows.gathered, None
            if of == [how, device]:
                return batches
        return self._gathered(rows, how, device)

    def _gathered(
        self, rows: Sequence[np.ndarray], how: str, device: Device | None
    ) -> Iterator[Fed]:
        """Yield the batches of each program of a round."""
        feed = self._feed(device)
        if how != "dispatch":
            yield feed.together(rows)
        elif len(rows) > 1:
            yield from feed.one_by_one(rows)
        else:
            yield feed.one(rows[0])

    def arguments(self, replica: Replica, row: np.ndarray) -> tuple[Any, ...]:
        """Return the arguments of the program of one step on these rows."""
        job = self._job
        batch = make_batch(job.train, row, job.buckets, exact=job.programs.exact)
        return replica, batch, np.float32(1e-6), np.zeros(3, np.uint32)

    def lowered(self, arguments: tuple[Any, ...]) -> jax.stages.Lowered:
        """Return the lowered program of one step with these `arguments`."""
        step = self._programs.step(*self._parts, donate=self._donate)
        return step.lower(*arguments)

    def _numbers(self, a: Assignment) -> np.ndarray:
        """Return the numbers [K, 5] of the steps of an assignment."""
        steps, rate = len(a.rows), a.learning_rate
        return step_numbers(self._job.seed, a.worker, a.first_step, steps, rate)
