"""The waves of a run: collected, launched one after the other, and read when done.

A wave is all local rounds that run side by side, and the merges that follow their
arrivals. The host runs ahead of the devices: it handles the arrivals of a wave, with
all that the policy asks for, before the wave is launched, and prepares the next one
while it runs. What only the devices know (losses, whether a replica is finite) is read
when the wave is done.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import Batch, Bucket
from hetjax.data.uneven import common_bucket, make_uneven_batches
from hetjax.engine.job import Job
from hetjax.engine.protocols import Assignment
from hetjax.runtimes.mesh.layout import Layout
from hetjax.runtimes.mesh.plan import Asked, Plan, Planner
from hetjax.runtimes.mesh.programs import (
    Algorithm,
    Inputs,
    Spec,
    begin_program,
    wave_program,
)

Numbers = dict[str, Any]


class Wave:
    """Local rounds side by side, and the merges after them."""

    def __init__(self, assignments: dict[int, Assignment], bucket: Bucket):
        """`bucket` is the shape of all batches."""
        self.assignments, self.bucket = assignments, bucket
        self.most = max(len(a.rows) for a in assignments.values())
        self.asked: list[Asked] = []  # merges that are not launched yet
        self.batches: Any = None  # on the devices, until the steps are launched
        self.numbers: Numbers | None = None  # on the devices, once launched
        self.known: Numbers | None = None  # on the host, once it is done
        self.launched = self.done = float("nan")  # [s]

    def outcome(self, worker: int, waves: "Waves") -> "LateOutcome":
        """The outcome of a worker's round, whose numbers are read when needed."""
        return LateOutcome(self, worker, waves)


class Waves:
    """The replicas, the states, and the waves that change them."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: Layout,
        planner: Planner,
        job: Job,
        *,
        step_mode: str,
        ahead: int,
    ):
        """`ahead` waves may be launched behind the one that runs."""
        self.algorithm, self.layout, self._planner = algorithm, layout, planner
        self._job, self._step_mode, self._ahead = job, step_mode, ahead
        self._forming: dict[int, Assignment] = {}
        self._current: Wave | None = None  # its arrivals are being handled
        self._in_flight: deque[Wave] = deque()
        self._compiled: set[Any] = set()
        self._replicas: Any = None
        self._states: Any = None
        self._held_out = self._measured_on()
        # set by the clock
        self.seconds: Callable[[], float] = lambda: 0.0
        self.paused: Callable[[], AbstractContextManager[Any]] = (
            job.compilations.waiting
        )
        self.on_done: Callable[[Wave], None] = lambda wave: None

    def begin(self, model: tuple[Any, Any]) -> None:
        """Make all replicas and states from the initial model."""
        layout, programs = self.layout, self._job.programs
        key = ("mesh begin", self.algorithm, layout)
        begin = programs.once(key, lambda: begin_program(self.algorithm, layout))
        with self._job.compilations.of("init"):
            self._replicas, self._states = begin(*layout.everyone(model))

    def root_state(self) -> Any:
        """The root's state after all merges so far, [1, ...] on a local device."""
        if self._current is not None and self._current.asked:
            self.launch()
        self.wait()
        return self._states[self.algorithm.root]

    # -- collecting --------------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Add a local round to the wave that is forming."""
        self._forming[assignment.worker] = assignment

    def next(self) -> Wave | None:
        """The wave that was forming, whose batches are on their way to the devices."""
        if not self._forming:
            return None
        chosen = dict(sorted(self._forming.items()))
        self._forming = {}
        job = self._job
        bucket = common_bucket(
            job.train,
            [a.rows for a in chosen.values()],
            job.buckets,
            exact=job.programs.has_statistics,
        )
        wave = self._current = Wave(chosen, bucket)
        wave.batches = self._send(wave)
        return wave

    def expected_steps(self) -> dict[int, tuple[int, int]]:
        """(steps, batch size) of each worker in the wave that is forming."""
        return {
            k: (len(a.rows), len(a.rows[0]) if a.rows else 0)
            for k, a in self._forming.items()
        }

    def ask(self, asked: Asked) -> None:
        """Add a merge to the wave whose arrivals are being handled."""
        assert self._current is not None  # merges follow arrivals
        self._current.asked.append(asked)

    # -- launching ---------------------------------------------------------------------

    def launch(self) -> None:
        """Launch the current wave: its steps, unless they run already, and merges."""
        wave = self._current
        if wave is None or not (wave.batches is not None or wave.asked):
            return
        while len(self._in_flight) > self._ahead and self._in_flight[0] is not wave:
            self._finish(self._in_flight.popleft())
        plan = self._planner.plan(wave.asked)
        wave.asked = []
        for spec, inputs in self._programs_of(wave, plan):
            self._run(wave, spec, inputs)
        wave.batches = None
        if wave not in self._in_flight:
            self._in_flight.append(wave)

    def _programs_of(self, wave: Wave, plan: Plan) -> Iterator[tuple[Spec, Inputs]]:
        """The programs of a wave: one, or one for each step and one for the merges."""
        merging = self.layout.put((plan.stats, plan.taking_part))
        fresh = wave.batches is not None
        equal = len(wave.assignments) == self.layout.num_workers and all(
            len(a.rows) == wave.most for a in wave.assignments.values()
        )
        checks = fresh and self.algorithm.resets
        mode = self._step_mode
        if fresh and mode == "dispatch":
            for i in range(wave.most):
                running = equal or all(
                    len(a.rows) > i for a in wave.assignments.values()
                )
                one = Spec(self.layout, "unrolled", running, True, False, ())
                yield one, Inputs(*self._one_step(wave, i), (), ())
            fresh = False
        spec = Spec(self.layout, mode, equal, fresh, checks, plan.stages)
        steps = wave.batches if fresh else ((), (), ())
        yield spec, Inputs(*steps, *merging)

    def _one_step(self, wave: Wave, i: int) -> tuple[Any, Any, Any]:
        """The inputs of step i alone."""
        raise NotImplementedError

    def _run(self, wave: Wave, spec: Spec, inputs: Inputs) -> None:
        """Launch a program; before, compile it if need be, while the clock stands."""
        programs, compilations = self._job.programs, self._job.compilations
        key = ("mesh wave", self.algorithm, spec)
        program = programs.once(key, lambda: wave_program(self.algorithm, spec))
        shapes = tuple(x.shape for x in jax.tree.leaves(inputs))
        arguments = (self._replicas, self._states, inputs, self._held_out)
        purpose = "step" if spec.steps else "merge"
        if (key, shapes) not in self._compiled:
            with self.paused(), compilations.of(purpose):
                program.lower(*arguments).compile()
            self._compiled.add((key, shapes))
        if wave.launched != wave.launched:
            wave.launched = self.seconds()
        with compilations.of(purpose):
            self._replicas, self._states, numbers = program(*arguments)
        accuracy = (*(wave.numbers or {}).get("accuracy", ()), *numbers["accuracy"])
        wave.numbers = {**(wave.numbers or {}), **numbers, "accuracy": accuracy}

    # -- batches -----------------------------------------------------------------------

    def _send(self, wave: Wave) -> tuple[Any, Any, Any]:
        """Batches, numbers and learning rates of this process's workers, on devices."""
        layout, job = self.layout, self._job
        devices, slots = len(layout.local), layout.slots
        mine = [d * slots + s for d in layout.local for s in range(slots)]
        found = [wave.assignments.get(k) for k in mine]
        batches: Batch = make_uneven_batches(
            job.train, [a.rows if a else () for a in found], wave.most, wave.bucket
        )
        numbers = np.array(
            [
                (len(a.rows), job.seed, k, a.first_step) if a else (0, 0, k, 0)
                for k, a in zip(mine, found, strict=True)
            ],
            np.uint32,
        )
        rates = np.array([a.learning_rate if a else 0 for a in found], np.float32)
        tree = jax.tree.map(
            lambda x: x.reshape(devices, slots, *x.shape[1:]),
            (batches, numbers, rates),
        )
        return layout.put_local(tree)

    def _measured_on(self) -> Any:
        """The held-out batches [n, ...], for merges that require metrics; or ()."""
        job = self._job
        if not job.held_out:
            return ()
        stacked = jax.tree.map(
            lambda *leaves: np.stack([np.asarray(x) for x in leaves]), *job.held_out
        )
        return self.layout.everyone((stacked, np.float32(job.num_held_out)))

    # -- reading -----------------------------------------------------------------------

    def wait(self) -> None:
        """Wait until everything that was launched is done."""
        while self._in_flight:
            self._finish(self._in_flight.popleft())

    def read(self, wave: Wave) -> Numbers:
        """The numbers of a wave; launches it, and waits, if need be."""
        if wave.known is None:
            if wave.numbers is None:
                self.launch()
            while wave.known is None:
                self._finish(self._in_flight.popleft())
        return wave.known

    def _finish(self, wave: Wave) -> None:
        """Wait for a wave; keep its numbers on the host."""
        assert wave.numbers is not None
        wave.known = {**(wave.known or {}), **jax.tree.map(_on_host, wave.numbers)}
        jax.block_until_ready(self._states)
        wave.done, wave.numbers = self.seconds(), None
        self.on_done(wave)
        for accuracy in wave.known["accuracy"]:
            if accuracy.min() < 0:
                raise ValueError(
                    f"{self._job.name}: {self._job.programs.task.metric} is used as a "
                    "weight and must be at least 0, but a worker's is "
                    f"{accuracy.min():.4g}"
                )


def _on_host(x: jax.Array) -> np.ndarray:
    """An array that is the same on all devices."""
    return np.asarray(x.addressable_shards[0].data)


class LateOutcome:
    """The outcome of a local round on a mesh, whose numbers are known later.

    See `hetjax.engine.protocols.RoundResult`.
    """

    replica = None  # it stays on its device

    def __init__(self, wave: Wave, worker: int, waves: Waves):
        """Of a worker's round in this wave."""
        self._wave, self._worker, self._waves = wave, worker, waves
        rows = wave.assignments[worker].rows
        self.padded = sum(wave.bucket.size - len(r) for r in rows)

    @property
    def known(self) -> bool:
        """Is the wave done, and are its numbers on the host?"""
        return self._wave.known is not None

    @property
    def mean(self) -> float:
        """The mean loss of the last step."""
        return float(self._number("means", 0.0))

    @property
    def finite(self) -> bool:
        """Are all numbers of the replica finite? If not, the program has reset it."""
        return bool(self._number("finite", True))

    @property
    def losses(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows and losses of all steps, if the sampler observes them."""
        rows = self._wave.assignments[self._worker].rows
        if not (self._waves.algorithm.keeps and len(rows)):
            return
        losses = self._number("losses", None)
        if self.finite:
            yield np.stack(rows), losses[: len(rows)]

    def _number(self, name: str, default: Any) -> Any:
        """This worker's number; the default where it was not asked for."""
        found = self._waves.read(self._wave)
        return found[name][self._worker] if name in found else default
