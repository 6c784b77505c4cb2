"""What the model is worth at the instants of a run; never charged to the clock."""

import math
from collections import deque
from typing import Any

from hetjax.machine import MergeOrder
from hetjax.run.compilations import Compilations
from hetjax.run.holdings import Holdings
from hetjax.run.job import Clock, Job
from hetjax.run.programs import mean_metrics

_FORWARD = 1 / 3  # of a training step's seconds: looking at an example without learning

Evaluation = tuple[tuple[Any, Any], dict[str, float]]  # the model and its metrics


class Evaluations:
    """Looks at the root's model when an instant is due, or a merge is to change it."""

    def __init__(
        self,
        name: str,
        job: Job,
        clock: Clock,
        holdings: Holdings,
        compilations: Compilations,
    ):
        """Nothing was evaluated yet; `name` is the strategy's, for errors."""
        self._name = name
        self._job, self._clock, self._holdings = job, clock, holdings
        self._compilations = compilations
        self.due = deque(job.instants)  # [s] to come
        self._held: deque[tuple[float, Evaluation]] = deque()  # until when, what then

    def hold_until(self, finish: float) -> None:
        """A merge ends at `finish`: instants before that see the model as it is now."""
        # who waits for an earlier merge sees what was held for that
        since = self._held[-1][0] if self._held else -math.inf
        if next((t for t in self.due if t >= since), math.inf) < finish:
            self._held.append((finish, self._now()))

    def at(self, instant: float) -> Evaluation:
        """The model that is visible at this instant."""
        self.due.popleft()
        while self._held and self._held[0][0] <= instant:
            self._held.popleft()
        return self._held[0][1] if self._held else self._now()

    def of_members(self, order: MergeOrder) -> tuple[list[float], float]:
        """Each member's metric on the held-out data, and the seconds it takes them.

        A look costs a third of a training step. Each looks at its own at the same time,
        or the fastest at all of them one after the other, whichever is sooner.
        """
        programs, job = self._job.programs, self._job
        members = (*order.members, *order.passive)
        models = [self._holdings.seen(m) for m in members]
        self._compilations.purpose = "evaluate"
        measured = [
            mean_metrics(programs.evaluate, m, job.held_out, job.num_held_out)[
                programs.task.metric
            ]
            for m in models
        ]
        self._compilations.purpose = "other"
        if min(measured) < 0:
            raise ValueError(
                f"{self._name}: {programs.task.metric} serves as a weight "
                f"from 0 on, but a worker's is {min(measured):.4g}"
            )
        workers = [self._clock.workers[m] for m in order.members if isinstance(m, int)]
        looks = [w.seconds(job.num_held_out) * _FORWARD for w in workers]
        return measured, min(max(looks), len(looks) * min(looks)) if looks else 0.0

    def _now(self) -> Evaluation:
        """The current model, and its metrics on the test split."""
        job = self._job
        with self._clock.paused():
            self._compilations.purpose = "evaluate"
            model = self._holdings.model()
            metrics = mean_metrics(job.programs.evaluate, model, job.test, job.num_test)
            metrics |= self._holdings.report()
            self._compilations.purpose = "other"
        return model, metrics
