"""The supersteps of a run: collected, planned, and launched in order.

The host runs ahead of the devices: it handles the arrivals of a superstep, with all
requests of the policy, before it launches the superstep, and prepares the next one
while it runs. Supersteps of one shape may share a launch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hetjax.data.batching import Bucket
from hetjax.engine.job import Job
from hetjax.engine.player_parts import Assignment
from hetjax.runtimes.mesh.in_flight import ProgramsInFlight
from hetjax.runtimes.mesh.merge_stages import (
    MergeStages,
    RequestedMerge,
    StagePlanner,
)
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.mesh.mesh_programs import STEPS, Spec, SuperstepInputs
from hetjax.runtimes.mesh.stage_program import Algorithm
from hetjax.runtimes.mesh.superstep import (
    DeferredOutcome,
    Feed,
    Numbers,
    Superstep,
    may_unroll,
)


class LaunchPart(NamedTuple):
    """A part of a superstep to launch: its steps, merges, or both."""

    superstep: Superstep
    spec: Spec
    plan: MergeStages
    steps: Any  # the inputs of its steps, on the host; () if they are launched already

    def is_like(self, other: "LaunchPart") -> bool:
        """Whether one program can run both."""
        own, others = self.superstep, other.superstep
        same_shape = own.bucket == others.bucket and own.max_steps == others.max_steps
        return self.spec == other.spec and same_shape


class Supersteps:
    """The supersteps of one run; `in_flight` has the replicas and the states."""

    def __init__(
        self,
        algorithm: Algorithm,
        layout: MeshLayout,
        planner: StagePlanner,
        job: Job,
        *,
        step_mode: str,
        ahead: int,
        long_step_mode: str = "",
    ):
        """Up to `ahead` launches may queue behind the running one.

        `long_step_mode` is the step mode of supersteps that are too long to unroll (""
        is `step_mode`).
        """
        self.algorithm, self.layout, self._planner = algorithm, layout, planner
        self._step_mode = step_mode
        self._long_step_mode = long_step_mode or step_mode
        self._feed = Feed(layout, job)
        self._forming: dict[int, Assignment] = {}
        self._from_root: set[int] = set()  # of the forming superstep
        self._current: Superstep | None = None  # its arrivals are being handled
        self._pending: list[LaunchPart] = []  # complete, but not yet launched
        self.per_launch: Callable[[], int] = lambda: 1  # supersteps of a launch
        fixed = self._feed.held_out(), self._feed.data
        self.in_flight = ProgramsInFlight(algorithm, layout, job, fixed, ahead=ahead)

    def root_state(self) -> Any:
        """The root's state after all merges so far, [1, ...] on a local device."""
        if self._current is not None and self._current.requested:
            self.flush()
        self.wait()
        return self.in_flight.root_state()

    def connect(self, clock: MeshClock) -> None:
        """Notify the clock of finished launches; it sets their number of supersteps."""
        programs, self.per_launch = self.in_flight, lambda: clock.per_launch
        programs.seconds, programs.paused = clock.seconds, clock.paused
        programs.on_done = clock.finish_launch
        programs.control_message = clock.control_message

    # -- collecting --------------------------------------------------------------------

    def start(self, assignment: Assignment) -> None:
        """Add a local round to the forming superstep."""
        self._forming[assignment.worker] = assignment

    def begin_from_root(self, worker: int) -> None:
        """Begin a worker's round in the forming superstep from the root's model.

        All replicas were created before the first superstep; the root has moved since.
        """
        self._from_root.add(worker)

    def finish(self, worker: int) -> DeferredOutcome:
        """Return the outcome of a round that arrives; its numbers are known later."""
        if self._current is None:
            self.advance()
        assert self._current is not None
        return DeferredOutcome(self._current, worker, self._read)

    def advance(self) -> None:
        """Close the forming superstep; its arrivals are handled from now on."""
        self._current = self._feed.superstep(self._forming)
        self._current.from_root = frozenset(self._from_root)
        self._forming, self._from_root = {}, set()

    def request(self, merge: RequestedMerge) -> None:
        """Add a merge to the superstep whose arrivals are being handled."""
        if merge.action.partners:
            raise ValueError(
                f"a merge with partners {merge.action.partners} changes replicas of "
                'busy workers, which a mesh cannot: use placement="threads"'
            )
        if self._current is None:
            raise ValueError(
                f"the policy merges {merge.action.members} when no round has just "
                "arrived, but on a mesh a merge is part of a round's program: merge on "
                'an Arrival, or use placement="threads"'
            )
        self._current.requested.append(merge)

    def complete(self) -> None:
        """Launch the current superstep, now or soon: all its arrivals are handled."""
        superstep, self._current = self._current, None
        if superstep is None or superstep.is_launched:
            return
        part = self._part(superstep)
        if self._pending and not self._pending[-1].is_like(part):
            self._launch_pending()
        self._pending.append(part)
        if len(self._pending) >= self.per_launch() or part.spec.step_mode == "dispatch":
            self._launch_pending()

    def flush(self) -> None:
        """Launch all complete supersteps, and the current one as far as it is known."""
        self._launch_pending()
        if self._current is not None and not self._current.is_launched:
            self._launch([self._part(self._current)])

    def _part(self, superstep: Superstep) -> LaunchPart:
        """Return the part of a superstep to launch, and mark it as launched."""
        plan = self._planner.plan(superstep.requested)
        equal = len(superstep.assignments) == self.layout.num_workers and all(
            len(a.rows) == superstep.max_steps for a in superstep.assignments.values()
        )
        fresh, superstep.fresh, superstep.requested = superstep.fresh, False, []
        if not fresh and self.algorithm.resets:
            plan = self._without_reset(plan, superstep)
        spec = Spec(
            layout=self.layout,
            step_mode=self._mode_of(superstep),
            equal_steps=equal,
            steps=fresh,
            begins=fresh and bool(superstep.from_root),
            checks=fresh and self.algorithm.resets,
            broadcasts=not self.layout.is_single_process,
            stages=plan.stages,
            batches=self._feed.gathered(superstep) if fresh else None,
        )
        steps = self._feed.steps(superstep) if fresh else ()
        return LaunchPart(superstep, spec, plan, steps)

    def _mode_of(self, superstep: Superstep) -> str:
        unrolls = self._step_mode == "unrolled"
        per_device = self.layout.workers_per_device
        short = not unrolls or may_unroll(superstep.max_steps, per_device)
        return self._step_mode if short else self._long_step_mode

    def _without_reset(self, plan: MergeStages, superstep: Superstep) -> MergeStages:
        """Return the plan of later merges, in which reset replicas have made no steps.

        For merges that are launched with the steps, the program does that.
        """
        while not superstep.known:
            self.in_flight.finish()
        stats = []
        for stage, table in zip(plan.stages, plan.stats, strict=True):
            if not stage.members:
                table = table.copy()
                table[:, STEPS] *= superstep.numbers["finite"]
            stats.append(table)
        return plan._replace(stats=tuple(stats))

    def synchronize(self) -> None:
        """Launch everything, and wait until its numbers are known."""
        self.flush()
        self.wait()

    def resume(self) -> None:
        """Reopen the superstep that was current when the run was saved, for merges.

        Its steps are done, and rounds that were not finite no longer count.
        """
        self._current = superstep = Superstep({}, Bucket(1))
        superstep.fresh, superstep.known = False, True
        superstep.numbers = {"finite": True}

    # -- launching ---------------------------------------------------------------------

    def _launch_pending(self) -> None:
        """Launch the pending parts, together if their number is `per_launch`."""
        pending, self._pending = self._pending, []
        if len(pending) > 1 and len(pending) == self.per_launch():
            self._launch(pending)
            return
        for part in pending:
            self._launch([part])

    def _launch(self, parts: Sequence[LaunchPart]) -> None:
        spec, local = parts[0].spec, self.layout.local
        if spec.steps and spec.step_mode == "dispatch" and parts[0].superstep.max_steps:
            spec = self._launch_steps(parts[0])
        inputs = [
            SuperstepInputs(
                p.steps if spec.steps else (),
                tuple(stats[local] for stats in p.plan.stats),
                tuple(here[local] for here in p.plan.taking_part),
                self.in_flight.outgoing_message(),
            )
            for p in parts
        ]
        self.in_flight.run(tuple(p.superstep for p in parts), spec, inputs)

    def _launch_steps(self, part: LaunchPart) -> Spec:
        """Launch the steps of a superstep one by one; return the spec of the rest."""
        longest = [len(a.rows) for a in part.superstep.assignments.values()]
        all_workers = len(longest) == self.layout.num_workers
        for i in range(part.superstep.max_steps):
            spec = part.spec._replace(
                step_mode="unrolled",
                begins=part.spec.begins and i == 0,
                equal_steps=all_workers and min(longest) > i,
                checks=False,
                broadcasts=False,
                stages=(),
            )
            inputs = SuperstepInputs(self._feed.step(part.steps, i), (), (), ())
            self.in_flight.run((part.superstep,), spec, [inputs], step=i)
        return part.spec._replace(steps=False, begins=False)

    # -- reading -----------------------------------------------------------------------

    def wait(self) -> None:
        """Launch all complete supersteps, and wait until all launches are done."""
        if self.in_flight.failed:
            return
        self._launch_pending()
        self.in_flight.wait()

    def _read(self, superstep: Superstep) -> Numbers:
        """Return the numbers of a superstep; launch it and wait if necessary."""
        if not superstep.known:
            self.flush()
            while not superstep.known:
                self.in_flight.finish()
        return superstep.numbers
