"""The loop: a worker reports back, who merges, who does what next.

The one place that knows both worlds. It asks the clock for the next event and the
policy for orders, runs the compiled programs, and keeps the books. It knows no
strategy's name, and no kind of machine.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from hetjax.data.batching import nonzeros_of
from hetjax.machine import (
    ROOT,
    Alarm,
    Arrival,
    Evaluated,
    Event,
    Join,
    Leave,
    MergeOrder,
    RunEnded,
    Slow,
    Stamps,
    Work,
)
from hetjax.report.history import Happening, History
from hetjax.run.accounts import Accounts
from hetjax.run.compilations import Compilations
from hetjax.run.evaluations import Evaluations
from hetjax.run.executor import Assignment
from hetjax.run.holdings import Holdings
from hetjax.run.interrupt import interruptible
from hetjax.run.job import Clock, Job
from hetjax.run.losses import Losses
from hetjax.run.steps import Steps
from hetjax.schedule.rates import Progress, rate_at
from hetjax.schedule.types import Orders
from hetjax.strategies.types import Strategy

INTERRUPTED = "interrupted"  # what a history says of Ctrl-C
_EVALUATE = "evaluate"  # the loop's alarm: it rings behind all arrivals of a time


class Loop:
    """One run. `run` returns its history; everything else is bookkeeping."""

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        job: Job,
        clock: Clock,
        on_point: Callable[[dict[str, float]], bool],
    ):
        """`on_point` is told each evaluation, and answers whether to stop there."""
        self.strategy, self.job, self.clock = strategy, job, clock
        self.accounts = Accounts(clock.workers)
        self.compilations = Compilations()
        metric = job.programs.task.metric
        self.history = History(name, job.seed, strategy.settings, metric)
        self.on_point = on_point
        self.losses = Losses()
        self._last_members: tuple[int | str, ...] = ()
        self._there = {w.index for w in clock.workers if w.present}
        self._lost: set[int] = set()  # who has not come back

    def run(self) -> History:
        """Train to the last instant, a stop, or Ctrl-C; return what there is then."""
        began = time.perf_counter()
        with self.compilations.counting(), interruptible() as self._interrupted:
            self._set_up()
            try:
                self._begin()
                self.executor.play(self)
            except RunEnded as ended:
                self._stop(str(ended))
            finally:
                stuck = self.executor.close()
                self.history.stuck = [self.clock.workers[k].name for k in stuck]
            self._close()
            if self._interrupted() and not self.history.stopped:
                self._stop(INTERRUPTED)  # too late for this run, not for what follows
        self.history.host_seconds = (
            time.perf_counter() - began - self.compilations.seconds
        )
        return self.history

    def _stop(self, reason: str) -> None:
        self.history.stopped = reason

    # -- setting up ----------------------------------------------------------

    def _set_up(self) -> None:
        strategy, job = self.strategy, self.job
        self.holdings = Holdings(
            strategy,
            job.programs,
            self.compilations,
            seed=job.seed,
            on_fetch=self.accounts.fetched,
            places=job.places,
        )
        self.evaluations = Evaluations(
            self.history.strategy, job, self.clock, self.holdings, self.compilations
        )
        steps = Steps(
            strategy,
            job,
            self.compilations,
            # padding would change a model's batch statistics: such models pay with a
            # program per batch size
            exact=self.holdings.has_statistics,
            donate=not self.holdings.shared,
        )
        self.executor = job.executor(steps)
        n = len(job.train)
        self.sampler = strategy.sampler.init(self.clock.workers, n, job.seed)

    def _begin(self) -> None:
        for instant in self.job.instants:
            self.clock.set_alarm(_EVALUATE, instant)
        self.clock.begin()
        workers, n = self.clock.workers, len(self.job.train)
        self.policy, orders = self.strategy.policy.init(workers, n)
        self._carry_out(orders)

    # -- events --------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Was it stopped, or did it reach the last instant?"""
        return bool(self.history.stopped) or not self.evaluations.due

    def turn(self) -> bool:
        """Handle the next event, if one is due; was there one?"""
        if self._interrupted():
            self._stop(INTERRUPTED)
            return True
        event = self.clock.next()
        if event is None:
            return False
        self.history.span = event.time
        if isinstance(event, Alarm) and event.name == _EVALUATE:
            self._record(event.time)
            return True
        if isinstance(event, Slow):
            why = f"its steps take {event.factor:g} times as long, as scripted"
            self._note(event.time, event.worker, "slow", why)
        elif isinstance(event, Leave) and event.lost:
            self._lose(event)
        else:
            self._hear(event)
        return True

    def _hear(self, event: Event) -> None:
        """The books, and the policy."""
        if isinstance(event, Arrival):
            self._arrive(event)
        elif isinstance(event, Join):
            self._there.add(event.worker)
            self._lost.discard(event.worker)
            self._note(event.time, event.worker, "joined", event.why)
        elif isinstance(event, Leave):
            self._there.discard(event.worker)
            self._note(event.time, event.worker, "left", event.why)
        if not self.history.stopped:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        self.policy, orders = self.strategy.policy.react(self.policy, event)
        self._carry_out(orders)

    def _arrive(self, arrival: Arrival) -> None:
        worker = arrival.worker
        outcome = self.executor.finish(worker)
        finite = self.job.on_nan == "stop" or bool(np.asarray(outcome.finite))
        self.holdings.land(worker, outcome.replica)
        self.accounts.arrived(arrival, outcome.padded, finite=finite)
        if not finite:  # it begins anew, from the centre
            self.holdings.begin_anew(worker)
            why = f"its loss was {float(outcome.mean):.6g}; it begins anew"
            self._note(arrival.time, worker, "nan", why)
            return
        self._check_losses()
        self.losses.land(arrival, outcome)

    def _observe(self, worker: int) -> None:
        """Losses count for draws after the merge that their worker takes part in."""
        observe = self.strategy.sampler.observe
        if observe:
            for rows, losses in self.losses.of_steps(worker):
                self.sampler = observe(self.sampler, worker, rows, losses)

    def _check_losses(self) -> None:
        diverged = self.losses.diverged()
        if diverged:
            arrival, loss = diverged
            self._stop(
                f"{self.history.strategy}: the loss of worker "
                f"{self.clock.workers[arrival.worker].name} became {loss} at "
                f"{arrival.time:.6g} s; a smaller rate may help"
            )

    # -- workers that come and go ---------------------------------------------

    def _lose(self, event: Leave) -> None:
        """A worker is lost, with what it did not merge; or it is known now why."""
        worker, name = event.worker, self.clock.workers[event.worker].name
        self._note(event.time, worker, "lost", event.why)
        if worker not in self._lost:
            self._there.discard(worker)
            self._lost.add(worker)
            self.executor.drop(worker)
            self.accounts.lost(worker, event.time)
            self.holdings.forget(worker)
            self.losses.forget(worker)
            if self.job.on_loss == "stop":
                self._stop(f"worker {name} was lost: {event.why}")
                return
            self._tell(event)  # before the end: others' work may be left to merge
        if not self._there and not self.clock.expects:
            self._stop(f"worker {name}, the last one, was lost: {event.why}")

    def _note(self, seconds: float, worker: int, what: str, why: str) -> None:
        name = self.clock.workers[worker].name
        self.history.incidents.append(Happening(seconds, name, what, why))

    # -- orders --------------------------------------------------------------

    def _carry_out(self, orders: Orders) -> None:
        for order in orders.merges:
            self._carry_out_merge(order)
        for worker in orders.start:
            self.clock.start(worker)
            if self.accounts.has_merged(worker):  # who comes back begins anew
                self.holdings.forget(worker)
        for worker, work in orders.dispatch:
            self._dispatch(worker, work)
        for name, when in orders.alarms:
            if name == _EVALUATE:
                raise ValueError(f"the alarm {name!r} is the loop's own: rename yours")
            self.clock.set_alarm(name, when)
        for worker in orders.stop:
            self.clock.stop(worker)

    def _carry_out_merge(self, order: MergeOrder) -> None:
        now = self.clock.now
        looks = self.holdings.merge_of(order).measures and "push" in order.words
        accuracy, seconds = self.evaluations.of_members(order) if looks else (None, 0.0)
        transfer = self.clock.merge(order, self.holdings.num_bytes, seconds)
        at_root = order.node == ROOT and order.op != "fetch"
        if at_root:
            self.evaluations.hold_until(transfer.finish)
        members = (*order.members, *order.passive)
        for m in members:
            if isinstance(m, int):
                self.holdings.replica(m)  # a first copy is one of before the merge
        share = self.strategy.sampler.share
        facts = self.accounts.facts(
            order, share=share(self.sampler) if share else None, accuracy=accuracy
        )
        compiling = self.compilations.own_seconds
        stamps = self.holdings.merge(order, facts)
        compiling = self.compilations.own_seconds - compiling
        done = self.clock.merged(order, transfer, stamps, compiling)
        if at_root:
            times = self.history.merge_times  # not before what was merged before
            times.append(max(done.finish, times[-1] if times else 0.0))
        if not order.blocking:
            done = Stamps(*[done.start] * 4)
        for k in order.members:
            if isinstance(k, int):
                self.accounts.merging(k, now, done)
                self._observe(k)
        if order.op != "fetch":
            self._last_members = order.members
            self.history.merges += 1

    def _dispatch(self, worker: int, work: Work) -> None:
        """Draw the examples, start the clock, and have the steps run.

        They run from what the worker holds now; the rest of the world sees what they
        lead to at the arrival.
        """
        train = self.job.train
        self.sampler, indices = self.strategy.sampler.draw(
            self.sampler, worker, work.examples
        )
        size = work.size
        rows = [indices[i * size : (i + 1) * size] for i in range(work.steps)]
        rate = self._rate(work)
        planned = self.clock.dispatch(
            worker, work, [nonzeros_of(train, r) for r in rows]
        )
        replica = self.holdings.take(worker)
        first = self.accounts.records[worker].updates
        self.executor.start(Assignment(worker, replica, rows, rate, first))
        self.accounts.dispatched(worker, work, planned.start, float(rate))

    def _rate(self, work: Work) -> np.float32:
        examples, updates = self.accounts.examples, self.accounts.updates
        epochs = examples / len(self.job.train)
        progress = Progress(examples, epochs, updates, self.clock.now)
        return np.float32(rate_at(self.strategy.rate, progress) * work.rate)

    # -- evaluations ---------------------------------------------------------

    def _record(self, instant: float) -> None:
        """What the model that is visible at this instant is worth, and what it cost."""
        self._visible, metrics = self.evaluations.at(instant)
        point = {
            "seconds": instant,
            "updates": self.accounts.updates,
            "examples": self.accounts.examples,
            **metrics,
        }
        self.history.points.append(point)
        self._check_losses()  # a worker's loss says more, if it was the first
        if self.history.stopped:
            return
        if not math.isfinite(metrics["loss"]):
            workers = [
                m if isinstance(m, str) else self.clock.workers[m].name
                for m in self._last_members
            ]
            self._stop(
                f"{self.history.strategy}: the test loss of the model became "
                f"{metrics['loss']} by {instant:.6g} s, last merged from "
                f"{', '.join(workers) or 'nobody'}; a smaller rate may help"
            )
        elif self.on_point(point):
            self._stop(f"stopped at {instant:.6g} s as asked")
        elif self.evaluations.due:
            self._tell(Evaluated(metrics | self.losses.mean(), instant))

    # -- the end -------------------------------------------------------------

    def _close(self) -> None:
        history = self.history
        if not history.stopped:
            self._check_losses()
        history.workers = self.accounts.close(history.span)
        history.timeline = self.accounts.timeline
        counts = self.compilations.programs
        history.programs = dict(sorted(counts.items()))
        history.compilations = sum(counts.values())
        history.compile_seconds = self.compilations.seconds
        # the model of the last point, unless the run went on from there
        points = history.points
        ends_there = points and points[-1]["seconds"] == history.span
        model = self._visible if ends_there else self.holdings.model()
        history.params, history.model_state = model
        history.model = self.job.programs.task.restore(*model)
