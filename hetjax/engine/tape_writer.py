"""The writer of a tape: a policy and a clock decide what a run does (host world).

It owns everything that decisions depend on: the policy's state, the draw of examples,
the ledger with its statistics, the learning rate. It is a generator, to which the
answers to its entries are sent (see `hetjax.engine.tape`).
"""

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.checkpointable import Checkpointable
from hetjax.engine import tape
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.launched_merge import LaunchedMerge
from hetjax.engine.protocols import Clock, EvaluatedModel, Traits
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.tape import Tape
from hetjax.machine.merge_times import (
    MergeRequest,
    MergeTimes,
    Stamps,
    Traffic,
    changes_root,
    moves_of,
    seconds_to_measure,
)
from hetjax.machine.merge_tree import Topology
from hetjax.machine.types import (
    ROOT,
    Arrival,
    Evaluated,
    EvaluationDue,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    Slow,
    Timer,
)
from hetjax.schedule.action_checks import begin, react
from hetjax.schedule.learning_rates import LearningRateLike, Progress, learning_rate_at
from hetjax.schedule.types import Actions, Policy

NOTHING = Actions()


class _Merge(NamedTuple):
    """A merge that was written, but not recorded yet."""

    action: MergeAction
    traffic: Traffic
    requested: float  # [s]
    visible: float  # [s]
    missing: tuple[int, ...]


class TapeWriter(Checkpointable):
    """Writes the tape of one run."""

    changes = (
        "ledger",
        "examples",
        "due",
        "_state",
        "_awaited",
        "_last",
        "_replicas",
        "_lost",
        "_pending",
    )

    def __init__(
        self,
        policy: Policy,
        clock: Clock,
        examples: Examples,
        ledger: Ledger,
        topology: Topology,
        *,
        num_examples: int,
        learning_rate: LearningRateLike = 0.0,
        traits: Traits = Traits(),
        traffic_of: Callable[[MergeAction], Traffic] | None = None,
        instants: Sequence[float] = (),
        num_held_out: int = 0,
        stops_if_lost: bool = False,
        stopped: Callable[[], object] = lambda: False,
    ):
        """Set up a run on `num_examples`, `num_held_out` of the training split.

        `traffic_of(action)` is what a member of a merge moves, by default whole models.
        `instants` [s] of evaluations increase. `stops_if_lost`: whether a loss ends the
        run. `stopped()`: whether it ends before the policy receives the present event.
        """
        self._policy, self._clock, self._topology = policy, clock, topology
        self.examples, self.ledger = examples, ledger
        self._num_examples, self._num_held_out = num_examples, num_held_out
        self._learning_rate, self._traits = learning_rate, traits
        self._stops_if_lost, self._stopped = stops_if_lost, stopped
        whole = Traffic(traits.num_bytes, traits.num_bytes)
        self._traffic_of = traffic_of or (lambda action: whole)
        self.due = deque(instants)  # of the evaluations that remain
        # (time, evaluation of the model that is visible until then)
        self.held: deque[tuple[float, EvaluatedModel]] = deque()
        self._replicas: set[int] = set()  # workers
        self._state: Any = None  # the policy's
        self._awaited = 0  # merges and timers whose events the policy will receive
        self._last: Event | None = None  # the last one that the policy received
        self._pending = Actions()  # decided, of which only the merges are written
        # merges that have not been settled
        self.launched: deque[tuple[_Merge, LaunchedMerge]] = deque()
        # workers known to be lost; the clock's roster may be ahead of this
        self._lost = set(clock.roster.lost)

    def write(self) -> Tape:
        """Write the whole tape, until no event is pending; most never end."""
        yield from self.begin()
        while (event := self._clock.next()) is not None:
            yield from self.handle(event)

    def begin(self) -> Tape:
        """Write the policy's first decisions."""
        for instant in self.due:
            self._clock.set_timer(tape.EVALUATE, instant)
        workers = self._clock.workers
        self._state, actions = begin(self._policy, workers, self._num_examples)
        yield from self._write(actions)

    def resume(self) -> Tape:
        """Write what was decided, but not written, when the run was saved."""
        yield from self._write_rest(self._pending)
        self._pending = Actions()

    # -- events ------------------------------------------------------------------------

    def handle(self, event: Event) -> Tape:
        """Write an event and the decisions that follow."""
        result = yield event
        if isinstance(event, Arrival):
            self._take_in(event, result)
        elif isinstance(event, Timer) and event.name == tape.EVALUATE:
            yield from self._evaluate(event.time)
            return
        elif isinstance(event, (Merged, Timer)):
            self._awaited -= 1
        elif isinstance(event, Join):
            self._lost.discard(event.worker)
        elif isinstance(event, Leave) and event.lost:
            yield from self._lose(event)
            return
        elif isinstance(event, Slow):  # policies see it in measured times alone
            return
        if not self._stopped():
            yield from self._react(event)

    def _take_in(self, arrival: Arrival, result: Any) -> None:
        """Record a round; one known not to be finite counts for nothing."""
        if result is None:  # there is no player
            self.ledger.record_arrival(arrival, 0)
        elif not result.known or result.finite:
            self.ledger.record_arrival(arrival, result.padded)
            self.examples.arrived(arrival.worker, result)
        else:
            self.ledger.record_arrival(arrival, result.padded, finite=False)
            self.ledger.versions.fetch(arrival.worker)

    def _lose(self, leave: Leave) -> Tape:
        """Discard a lost worker and the work that it did not merge.

        If it is known to be lost, this Leave only adds the reason.
        """
        worker, clock = leave.worker, self._clock
        name = clock.workers[worker].name
        if worker not in self._lost:
            self._lost.add(worker)
            yield tape.DiscardRound(worker)
            self.ledger.record_loss(worker, leave.time)
            self.examples.discard(worker)
            yield from self._discard_replica(worker)
            if self._stops_if_lost:
                yield tape.EndRun(f"worker {name} was lost: {leave.why}")
            if not self._stopped():  # other rounds may still be merged
                yield from self._react(leave)
        if not clock.roster.active and not clock.has_pending_joins:
            yield tape.EndRun(f"worker {name}, the last one, was lost: {leave.why}")

    def _react(self, event: Event) -> Tape:
        """Let the policy react to an event, and write its actions."""
        if not isinstance(event, (EvaluationDue, Evaluated)):
            self._last = event
        self._state, actions = react(self._policy, self._state, event)
        arrived = isinstance(event, Arrival)
        if arrived or actions != NOTHING:
            yield from self._write(actions, arrived=arrived)
        else:  # shorter, since many events need no action
            yield actions

    # -- evaluations -------------------------------------------------------------------

    def _evaluate(self, instant: float) -> Tape:
        """Evaluate the model that is visible at this instant."""
        yield from self._react(EvaluationDue(instant))
        self.due.popleft()
        while self.held and self.held[0][0] <= instant:
            self.held.popleft()
        seen = self.held[0][1] if self.held else (yield tape.EvaluateRoot())
        metrics = yield tape.EvaluationDone(instant, seen)
        if metrics is not None and self.due and not self._stopped():
            yield from self._react(Evaluated(metrics, instant))
        yield from self._check_progress()

    def _hold(self, visible: float) -> Tape:
        """Hold an evaluation of the present model for instants before `visible`."""
        # instants before an earlier merge is visible see the evaluation held for it
        since = self.held[-1][0] if self.held else -math.inf
        if self.due[0] < visible and any(since <= t < visible for t in self.due):
            self.held.append((visible, (yield tape.EvaluateRoot())))

    def _check_progress(self) -> Tape:
        """End a run in which no worker has, or will ever have, a local round."""
        roster, last = self._clock.roster, self._last
        if self._awaited or self._clock.has_pending_joins or roster.working:
            return
        since, what = 0.0, "when the run began"
        if last is not None:
            since, what = last.time, f"on {type(last).__name__}"
        if roster.active:
            yield tape.EndRun(
                f"no worker has a local round since {since:.6g} s: the policy returned "
                f"no actions {what}"
            )
        elif not roster.lost:  # a lost worker may return; `_lose` ends the run
            yield tape.EndRun(
                f"no worker is active since {since:.6g} s: the policy stopped the last "
                "one"
            )

    # -- actions -----------------------------------------------------------------------

    def _write(self, actions: Actions, *, arrived: bool = False) -> Tape:
        """Write decisions: cancelled rounds, then merges, then everything else."""
        yield actions
        for worker in actions.cancel:
            yield from self._cancel(worker)
        for action in actions.merges:
            yield from self._merge(action)
            self._awaited += 1
        if arrived:
            self._pending = actions
            yield tape.MergesDone()
            self._pending = Actions()
        yield from self._write_rest(actions)

    def _write_rest(self, actions: Actions) -> Tape:
        """Write starts, local rounds, timers and stops."""
        clock = self._clock
        for worker in actions.start:
            clock.start(worker)
            if self.ledger.has_merged(worker):  # it starts from the root again
                yield from self._discard_replica(worker)
        for worker, local_round in actions.dispatch:
            yield from self._dispatch(worker, local_round)
        for name, when in actions.timers:
            if name == tape.EVALUATE:
                raise ValueError(f"the timer name {name!r} is reserved: rename yours")
            clock.set_timer(name, when)
            self._awaited += 1
        for worker in actions.stop:
            clock.stop(worker)

    def _cancel(self, worker: int) -> Tape:
        """End a round; what its worker did and did not merge is lost."""
        self._clock.cancel(worker)
        yield tape.DiscardRound(worker, cancelled=True)
        self.ledger.record_cancelled(worker, self._clock.now)
        self.examples.discard(worker)
        yield from self._discard_replica(worker)

    def _dispatch(self, worker: int, local_round: LocalRound) -> Tape:
        """Draw the examples of a round, and start it."""
        rows, nonzeros = self.examples.draw(worker, local_round)
        rate = np.float32(self._rate() * local_round.lr_scale)
        start = self._clock.dispatch(worker, local_round, nonzeros).start
        if worker not in self._replicas:
            yield from self._begin((worker,))
        first = self.ledger.steps_of(worker)
        self.ledger.record_dispatch(worker, local_round, start, float(rate))
        yield tape.StartRound(worker, local_round, rows, nonzeros, rate, first, start)

    def _rate(self) -> float:
        """Return the present learning rate, at the largest batch size."""
        if isinstance(self._learning_rate, float):  # fast, for every arrival
            return self._learning_rate
        examples, updates = self.ledger.examples, self.ledger.updates
        epochs = examples / self._num_examples
        progress = Progress(examples, epochs, updates, self._clock.now)
        return learning_rate_at(self._learning_rate, progress)

    def _begin(self, members: Sequence[int | str]) -> Tape:
        """Begin the replicas that are missing."""
        for member in members:
            if isinstance(member, int) and member not in self._replicas:
                yield tape.BeginReplica(member)
                self._replicas.add(member)
                self.ledger.versions.fetch(member)

    def _discard_replica(self, worker: int) -> Tape:
        if worker in self._replicas:
            self._replicas.remove(worker)
            yield tape.DiscardReplica(worker)

    # -- merges ------------------------------------------------------------------------

    def _merge(self, action: MergeAction) -> Tape:
        """Write one merge or fetch, at the times that the clock plans."""
        requested, traits, ledger = self._clock.now, self._traits, self.ledger
        members = (*action.members, *action.partners)
        accuracy, seconds = None, 0.0
        if traits.measured(action.node) and moves_of(action.op).pushes:
            yield from self._begin(members)
            accuracy = yield tape.MeasureMembers(action)
            workers, examples = self._clock.workers, self._num_held_out
            seconds = seconds_to_measure(action, workers, examples)
        below = self._topology.workers_below(action.members)
        traffic = self._traffic_of(action)
        request = MergeRequest(action, traffic, seconds, below)
        visible, stamps, missing = self._clock.plan(request)
        if action.op is MergeOp.STEP and action.node == ROOT:
            self.held.clear()  # the new model is visible at once
        elif self.due and changes_root(action):
            yield from self._hold(visible)
        if not self._replicas.issuperset(members):  # new replicas predate the merge
            yield from self._begin(members)
        if traits.synchronizes and any(isinstance(m, str) for m in action.members):
            yield tape.Synchronize()
        if missing or traits.may_be_unreachable:
            missing = yield from self._unreachable(action, missing)
        stats = ledger.take_stats(action, self.examples.share(), accuracy, self._rate())
        times = yield tape.MergeReplicas(action, stats)
        written = _Merge(action, traffic, requested, visible, missing)
        if isinstance(times, LaunchedMerge):
            self.launched.append((written, times))
            yield tape.MergeLaunched()
        else:
            yield self._record(written, stamps or self._measured(action, times))
        for member in action.members:
            if isinstance(member, int):
                self.examples.observe(member)

    def settle(self) -> tape.MergeDone:
        """Wait for the first of the launched merges, and record it."""
        merge, launched = self.launched.popleft()
        return self._record(merge, self._measured(merge.action, launched.wait()))

    def _measured(self, action: MergeAction, times: MergeTimes) -> Stamps:
        return self._clock.merged(action, times)  # pyright: ignore

    def _record(self, merge: "_Merge", stamps: Stamps) -> tape.MergeDone:
        """Record a merge in the ledger; return the note about it."""
        action, traffic, requested, visible, missing = merge
        due = self.due[0] if self.due else visible
        counted = Traffic(0, 0) if self._traits.traffic else traffic
        self.ledger.record_models(action, counted, visible, due)
        waits = action.blocking or self._traits.merges_wait
        taken = stamps if waits else Stamps(*[stamps.start] * 4)
        for member in action.members:
            if isinstance(member, int):
                self.ledger.record_merge(member, requested, taken)
        return tape.MergeDone(action, traffic, stamps, missing)

    def _unreachable(
        self, action: MergeAction, missing: tuple[int, ...]
    ) -> Generator[Any, Any, tuple[int, ...]]:
        """Return the unreachable members, after discarding their work.

        They take part like workers that have just begun from the root's model.
        """
        for worker in missing:
            yield from self._discard_replica(worker)
            yield from self._begin((worker,))
        if self._traits.may_be_unreachable:
            missing = tuple((yield tape.GatherReplicas(action)))
        for worker in missing:
            self.ledger.record_loss(worker, self._clock.now)
            self.examples.discard(worker)
            self.ledger.versions.fetch(worker)
        return missing
