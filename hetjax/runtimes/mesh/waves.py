"""The waves of a run: collected, launched one after the other, and read when done.

A wave is all local rounds that run side by side, and the merges that follow their
arrivals. The host runs ahead of the devices: it handles the arrivals of a wave, with
all that the policy asks for, before the wave is launched, and prepares the next one
while it runs. What only the devices know (losses, whether a replica is finite) is read
when the wave is done. Waves of one shape may be launched several at a time.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from hetjax.engine.job import Job
from hetjax.engine.protocols import Assignment
from hetjax.runtimes.mesh.algorithm import Algorithm
from hetjax.runtimes.mesh.feed import Feed
from hetjax.runtimes.mesh.layout import Layout
from hetjax.runtimes.mesh.packing import pack
from hetjax.runtimes.mesh.plan import Asked, Plan, Planner
from hetjax.runtimes.mesh.programs import (
    STEPS,
    Inputs,
    Spec,
    begin_program,
    wave_program,
)
from hetjax.runtimes.mesh.wave import Numbers, Wave, Word, may_unroll


class Part(NamedTuple):
    """What is to be launched of a wave: its steps, merges, or both."""

    wave: Wave
    spec: Spec
    plan: Plan
    steps: Any  # the inputs of its steps, on the host; () if they run already

    def is_like(self, other: "Part") -> bool:
        """Can both be launched by one program?"""
        same = self.spec == other.spec and self.wave.bucket == other.wave.bucket
        return same and self.wave.most == other.wave.most


class Launch(NamedTuple):
    """Waves that run as one program, or whose last program runs."""

    waves: tuple[Wave, ...]
    numbers: Numbers  # on the devices, of each wave: [waves, ...]
    step: int | None  # the only step that it makes, if more follow


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
        longer: str = "",
        explain: Callable[[Exception], Exception] = lambda error: error,
    ):
        """`ahead` launches may wait behind the one that runs.

        `longer` is the step mode of waves that are too long to unroll; "": `step_mode`.
        `explain` returns the true reason of an error that a collective raised.
        """
        self._explain = explain
        self.algorithm, self.layout, self._planner = algorithm, layout, planner
        self._job, self._step_mode, self._ahead = job, step_mode, ahead
        self._longer = longer or step_mode
        self._feed = Feed(layout, job)
        self._forming: dict[int, Assignment] = {}
        self._late: set[int] = set()  # of the wave that is forming
        self._current: Wave | None = None  # its arrivals are being handled
        self._held: list[Part] = []  # complete, but not launched
        self._in_flight: deque[Launch] = deque()
        self._compiled: set[Any] = set()
        self._replicas: Any = None
        self._states: Any = None
        self._held_out = self._feed.held_out()
        self._is_broken = False  # has a program failed?
        self.at_once = 1  # waves of a launch; set by the clock
        # these are set by the clock, too
        self.seconds: Callable[[], float] = lambda: 0.0
        self.paused: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.on_done: Callable[[tuple[Wave, ...], float, Any], None] = lambda *_: None
        self.word: Callable[[], Word] = lambda: Word(0, 0, 0, at_once=1)

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
            self.flush()
        self.wait()
        return self._states[self.algorithm.root]

    # -- collecting --------------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Add a local round to the wave that is forming."""
        self._forming[assignment.worker] = assignment

    def begin_late(self, worker: int) -> None:
        """Let a worker's round in the wave that is forming begin from the root's model.

        All replicas were made before the first wave, and the root has moved since.
        """
        self._late.add(worker)

    def next(self) -> Wave | None:
        """The wave that was forming: its arrivals are handled from now on."""
        if not self._forming:
            return None
        self._current = self._feed.wave(self._forming)
        self._current.late = frozenset(self._late)
        self._forming, self._late = {}, set()
        return self._current

    def ask(self, asked: Asked) -> None:
        """Add a merge to the wave whose arrivals are being handled."""
        if asked.action.partners:
            raise ValueError(
                f"a merge with partners {asked.action.partners} changes replicas of "
                'workers at work, which a mesh cannot: take placement="threads"'
            )
        if self._current is None:
            raise ValueError(
                f"the policy merges {asked.action.members} when no round has just "
                "arrived, but on a mesh a merge is part of a round's program: merge on "
                'an Arrival, or take placement="threads"'
            )
        self._current.asked.append(asked)

    def complete(self) -> None:
        """All arrivals of the current wave are handled: launch it, now or soon."""
        wave, self._current = self._current, None
        if wave is None or wave.is_launched:
            return
        part = self._part(wave)
        if self._held and not self._held[-1].is_like(part):
            self._launch_held()
        self._held.append(part)
        if len(self._held) >= self.at_once or part.spec.step_mode == "dispatch":
            self._launch_held()

    def flush(self) -> None:
        """Launch what is complete, and of the current wave what there is so far."""
        self._launch_held()
        if self._current is not None and not self._current.is_launched:
            self._launch([self._part(self._current)])

    def _part(self, wave: Wave) -> Part:
        """What is to be launched of a wave, which counts as launched from now on."""
        plan = self._planner.plan(wave.asked)
        equal = len(wave.assignments) == self.layout.num_workers and all(
            len(a.rows) == wave.most for a in wave.assignments.values()
        )
        fresh, wave.fresh, wave.asked = wave.fresh, False, []
        if not fresh and self.algorithm.resets:
            plan = self._without_reset(plan, wave)
        spec = Spec(
            layout=self.layout,
            step_mode=self._mode_of(wave),
            equal=equal,
            steps=fresh,
            begins=fresh and bool(wave.late),
            checks=fresh and self.algorithm.resets,
            hears=not self.layout.is_alone,
            stages=plan.stages,
        )
        return Part(wave, spec, plan, self._feed.steps(wave) if fresh else ())

    def _mode_of(self, wave: Wave) -> str:
        unrolls = self._step_mode == "unrolled"
        short = not unrolls or may_unroll(wave.most, self.layout.slots)
        return self._step_mode if short else self._longer

    def _without_reset(self, plan: Plan, wave: Wave) -> Plan:
        """The plan of later merges of a wave: who was reset did no steps.

        For merges that are launched with the steps, the program sees to that.
        """
        while not wave.known:
            self._finish()
        stats = []
        for stage, table in zip(plan.stages, plan.stats, strict=True):
            if not stage.members:
                table = table.copy()
                table[:, STEPS] *= wave.numbers["finite"]
            stats.append(table)
        return plan._replace(stats=tuple(stats))

    def settle(self) -> None:
        """Launch what there is, and wait until its numbers are known."""
        self.flush()
        self.wait()

    # -- launching ---------------------------------------------------------------------

    def _launch_held(self) -> None:
        """Launch what is held: together if it is as many as planned, or one by one."""
        held, self._held = self._held, []
        if len(held) > 1 and len(held) == self.at_once:
            self._launch(held)
            return
        for part in held:
            self._launch([part])

    def _launch(self, parts: Sequence[Part]) -> None:
        """Launch parts that are alike as one program; wait for older launches."""
        spec, local = parts[0].spec, self.layout.local
        if spec.steps and spec.step_mode == "dispatch" and parts[0].wave.most:
            spec = self._launch_steps(parts[0])
        inputs = [
            Inputs(
                p.steps if spec.steps else (),
                tuple(stats[local] for stats in p.plan.stats),
                tuple(here[local] for here in p.plan.taking_part),
                self._spoken(),
            )
            for p in parts
        ]
        self._run(tuple(p.wave for p in parts), spec, inputs)

    def _launch_steps(self, part: Part) -> Spec:
        """Launch a wave's steps one by one; return the spec of what is left."""
        longest = [len(a.rows) for a in part.wave.assignments.values()]
        everyone = len(longest) == self.layout.num_workers
        for i in range(part.wave.most):
            spec = part.spec._replace(
                step_mode="unrolled",
                begins=part.spec.begins and i == 0,
                equal=everyone and min(longest) > i,
                checks=False,
                hears=False,
                stages=(),
            )
            inputs = Inputs(self._feed.step(part.steps, i), (), (), ())
            self._run((part.wave,), spec, [inputs], step=i)
        return part.spec._replace(steps=False, begins=False)

    def _spoken(self) -> Any:
        """The word of process 0, as the input of its first device; () if alone.

        Other processes only say whether they were interrupted.
        """
        layout = self.layout
        if layout.is_alone:
            return ()
        self._make_room()  # so that the stamp is that of the launch
        words = np.zeros((len(layout.local), len(Word._fields)), np.int32)
        own = self.word()
        is_first = layout.local[0] == 0
        words[0] = own if is_first else Word(0, 0, own.interrupted, 0)
        return words

    def _make_room(self) -> None:
        """Wait until no more launches are in flight than may be."""
        while len(self._in_flight) > self._ahead:
            self._finish()

    def _run(
        self,
        waves: tuple[Wave, ...],
        spec: Spec,
        inputs: Sequence[Inputs],
        step: int | None = None,
    ) -> None:
        """Launch a program when there is room; `inputs` are those of each wave.

        A new program is compiled before, while the clock stands.
        """
        programs, compilations = self._job.programs, self._job.compilations
        packed, packing = pack(inputs, len(self.layout.local))
        key = ("mesh wave", self.algorithm, spec, packing)
        make = partial(wave_program, self.algorithm, spec, packing)
        program = programs.once(key, make)
        sent = self.layout.put_local(packed)
        self._make_room()
        shapes = (key, *(x.shape for x in jax.tree.leaves(packed)))
        arguments = (self._replicas, self._states, sent, self._held_out)
        purpose = "step" if spec.steps else "merge"
        if shapes not in self._compiled:
            self.wait()  # what runs meanwhile would not be measured
            with self.paused(), compilations.of(purpose):
                program.lower(*arguments).compile()
            self._compiled.add(shapes)
        for wave in waves:
            wave.launched = min(wave.launched, self.seconds())
        with self._watched(), compilations.of(purpose):
            self._replicas, self._states, numbers = program(*arguments)
        self._in_flight.append(Launch(waves, numbers, step))

    # -- reading -----------------------------------------------------------------------

    def wait(self) -> None:
        """Launch what is complete, and wait until everything launched is done."""
        if self._is_broken:
            return
        self._launch_held()
        while self._in_flight:
            self._finish()

    def read(self, wave: Wave) -> Numbers:
        """The numbers of a wave; launches it, and waits, if need be."""
        if not wave.known:
            self.flush()
            while not wave.known:
                self._finish()
        return wave.numbers

    def _finish(self) -> None:
        """Wait for the oldest launch; keep its numbers on the host."""
        launch = self._in_flight.popleft()
        with self._watched():
            found = jax.tree.map(_on_host, launch.numbers)
            if not self._in_flight:
                jax.block_until_ready(self._states)
        for i, wave in enumerate(launch.waves):
            own = jax.tree.map(lambda x, i=i: x[i], found)
            for accuracy in own.pop("accuracy"):
                self._check_weights(accuracy)
            wave.add(own, launch.step)
            wave.known = launch.step is None
        if launch.step is None:
            word = Word(*found["word"][0].tolist()) if "word" in found else None
            self.on_done(launch.waves, self.seconds(), word)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """If a program fails, nothing runs any more; say which process died, if any.

        What a failed collective leaves raises a ValueError where it is used.
        """
        try:
            yield
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            self._is_broken = True
            if (reason := self._explain(error)) is error:
                raise
            raise reason from error

    def _check_weights(self, accuracy: np.ndarray) -> None:
        """Raise a ValueError for a metric that cannot be a weight."""
        if accuracy.min() < 0:
            raise ValueError(
                f"{self._job.name}: {self._job.programs.task.metric} is used as a "
                "weight and must be at least 0, but a worker's is "
                f"{accuracy.min():.4g}"
            )


def _on_host(x: jax.Array) -> np.ndarray:
    """An array that is the same on all devices."""
    return np.asarray(x.addressable_shards[0].data)
