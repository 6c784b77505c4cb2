"""The waves of a run: collected, planned, and launched one after the other.

A wave is all local rounds that run side by side, and the merges that follow their
arrivals. The host runs ahead of the devices: it handles the arrivals of a wave, with
all that the policy asks for, before the wave is launched, and prepares the next one
while it runs. What only the devices know (losses, whether a replica is finite) is read
when the wave is done. Waves of one shape may be launched several at a time.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetjax.data.batching import Bucket
from hetjax.engine.job import Job
from hetjax.engine.protocols import Assignment
from hetjax.runtimes.mesh.in_flight import ProgramsInFlight
from hetjax.runtimes.mesh.merge_stages import (
    Algorithm,
    MergeStages,
    RequestedMerge,
    StagePlanner,
)
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.mesh_programs import STEPS, Spec, SuperstepInputs
from hetjax.runtimes.mesh.superstep import (
    DeferredOutcome,
    Feed,
    Numbers,
    Superstep,
    may_unroll,
)


class LaunchPart(NamedTuple):
    """What is to be launched of a wave: its steps, merges, or both."""

    wave: Superstep
    spec: Spec
    plan: MergeStages
    steps: Any  # the inputs of its steps, on the host; () if they run already

    def is_like(self, other: "LaunchPart") -> bool:
        """Can both be launched by one program?"""
        same = self.spec == other.spec and self.wave.bucket == other.wave.bucket
        return same and self.wave.most == other.wave.most


class Supersteps:
    """The waves of one run; `launches` has the replicas and the states."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: MeshLayout,
        planner: StagePlanner,
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
        self.algorithm, self.layout, self._planner = algorithm, layout, planner
        self._step_mode = step_mode
        self._longer = longer or step_mode
        self._feed = Feed(layout, job)
        self._forming: dict[int, Assignment] = {}
        self._late: set[int] = set()  # of the wave that is forming
        self._current: Superstep | None = None  # its arrivals are being handled
        self._held: list[LaunchPart] = []  # complete, but not launched
        self.at_once: Callable[[], int] = lambda: 1  # waves of a launch
        held_out = self._feed.held_out()
        self.launches = ProgramsInFlight(
            algorithm, layout, job, held_out, ahead=ahead, explain=explain
        )

    def root_state(self) -> Any:
        """The root's state after all merges so far, [1, ...] on a local device."""
        if self._current is not None and self._current.asked:
            self.flush()
        self.wait()
        return self.launches.root_state()

    def hear(self, clock: MeshClock) -> None:
        """Let the clock learn when waves are done, and say how many to launch."""
        launches, self.at_once = self.launches, lambda: clock.at_once
        launches.seconds, launches.paused = clock.seconds, clock.paused
        launches.on_done, launches.word = clock.learn, clock.word

    # -- collecting --------------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Add a local round to the wave that is forming."""
        self._forming[assignment.worker] = assignment

    def begin_late(self, worker: int) -> None:
        """Let a worker's round in the wave that is forming begin from the root's model.

        All replicas were made before the first wave, and the root has moved since.
        """
        self._late.add(worker)

    def finish(self, worker: int) -> DeferredOutcome:
        """The outcome of a round, which arrives; its numbers are known later."""
        if self._current is None:
            self.next()
        assert self._current is not None
        return DeferredOutcome(self._current, worker, self._read)

    def next(self) -> None:
        """Handle the arrivals of the wave that was forming from now on."""
        self._current = self._feed.wave(self._forming)
        self._current.late = frozenset(self._late)
        self._forming, self._late = {}, set()

    def ask(self, asked: RequestedMerge) -> None:
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
        if len(self._held) >= self.at_once() or part.spec.step_mode == "dispatch":
            self._launch_held()

    def flush(self) -> None:
        """Launch what is complete, and of the current wave what there is so far."""
        self._launch_held()
        if self._current is not None and not self._current.is_launched:
            self._launch([self._part(self._current)])

    def _part(self, wave: Superstep) -> LaunchPart:
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
        return LaunchPart(wave, spec, plan, self._feed.steps(wave) if fresh else ())

    def _mode_of(self, wave: Superstep) -> str:
        unrolls = self._step_mode == "unrolled"
        short = not unrolls or may_unroll(wave.most, self.layout.workers_per_device)
        return self._step_mode if short else self._longer

    def _without_reset(self, plan: MergeStages, wave: Superstep) -> MergeStages:
        """The plan of later merges of a wave: who was reset did no steps.

        For merges that are launched with the steps, the program sees to that.
        """
        while not wave.known:
            self.launches.finish()
        stats = []
        for stage, table in zip(plan.stages, plan.stats, strict=True):
            if not stage.members:
                table = table.copy()
                table[:, STEPS] *= wave.numbers["finite"]
            stats.append(table)
        return plan._replace(stats=tuple(stats))

    def synchronize(self) -> None:
        """Launch what there is, and wait until its numbers are known."""
        self.flush()
        self.wait()

    def resume(self) -> None:
        """Let merges join the wave that was at hand when the run was saved.

        Its steps are done, and rounds that were not finite do not count any more.
        """
        self._current = wave = Superstep({}, Bucket(1))
        wave.fresh, wave.known, wave.numbers = False, True, {"finite": True}

    # -- launching ---------------------------------------------------------------------

    def _launch_held(self) -> None:
        """Launch what is held: together if it is as many as planned, or one by one."""
        held, self._held = self._held, []
        if len(held) > 1 and len(held) == self.at_once():
            self._launch(held)
            return
        for part in held:
            self._launch([part])

    def _launch(self, parts: Sequence[LaunchPart]) -> None:
        """Launch parts that are alike as one program; wait for older launches."""
        spec, local = parts[0].spec, self.layout.local
        if spec.steps and spec.step_mode == "dispatch" and parts[0].wave.most:
            spec = self._launch_steps(parts[0])
        inputs = [
            SuperstepInputs(
                p.steps if spec.steps else (),
                tuple(stats[local] for stats in p.plan.stats),
                tuple(here[local] for here in p.plan.taking_part),
                self.launches.spoken(),
            )
            for p in parts
        ]
        self.launches.run(tuple(p.wave for p in parts), spec, inputs)

    def _launch_steps(self, part: LaunchPart) -> Spec:
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
            inputs = SuperstepInputs(self._feed.step(part.steps, i), (), (), ())
            self.launches.run((part.wave,), spec, [inputs], step=i)
        return part.spec._replace(steps=False, begins=False)

    # -- reading -----------------------------------------------------------------------

    def wait(self) -> None:
        """Launch what is complete, and wait until everything launched is done."""
        if self.launches.failed:
            return
        self._launch_held()
        self.launches.wait()

    def _read(self, wave: Superstep) -> Numbers:
        """The numbers of a wave; launches it, and waits, if need be."""
        if not wave.known:
            self.flush()
            while not wave.known:
                self.launches.finish()
        return wave.numbers
