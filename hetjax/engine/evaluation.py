"""What the model is worth at the instants of a run; never charged to the clock."""

import math
from collections import deque
from typing import Any

from hetjax.engine.compiled.programs import mean_metrics
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Clock
from hetjax.engine.replicas import ReplicaStore
from hetjax.machine import MergeAction

_FORWARD = 1 / 3  # of a training step's seconds: looking at an example without learning

Evaluation = tuple[tuple[Any, Any], dict[str, float]]  # the model and its metrics


class Evaluations:
    """Looks at the root's model when an instant is due, or a merge is to change it."""

    def __init__(
        self,
        name: str,
        job: Job,
        clock: Clock,
        placement: Placement,
        store: ReplicaStore,
    ):
        """Nothing was evaluated yet; `name` is the strategy's, for errors."""
        self._name, self._job = name, job
        self._clock, self._store = clock, store
        self._test = placement.to_nodes(job.test)
        self._held_out = placement.to_nodes(job.held_out)
        self.due = deque(job.instants)  # [s] to come
        self._held: deque[tuple[float, Evaluation]] = deque()  # until when, what then

    def hold_until(self, finish: float) -> None:
        """A merge ends at `finish`: instants before that see the model as it is now."""
        # who waits for an earlier merge sees what was held for that
        since = self._held[-1][0] if self._held else -math.inf
        if next((t for t in self.due if t >= since), math.inf) < finish:
            self._held.append((finish, self._look()))

    def show(self) -> None:
        """The node stepped by itself: its model, with those steps, is there at once."""
        self._held.clear()

    def at(self, instant: float) -> Evaluation:
        """The model that is visible at this instant, which is due no longer."""
        self.due.popleft()
        while self._held and self._held[0][0] <= instant:
            self._held.popleft()
        return self._held[0][1] if self._held else self._look()

    def of_members(self, action: MergeAction) -> tuple[list[float], float]:
        """Each member's metric on the held-out data, and the seconds it takes them.

        A look costs a third of a training step. Each looks at its own at the same time,
        or the fastest at all of them one after the other, whichever is sooner.
        """
        programs, job = self._job.programs, self._job
        models = [self._store.seen(m) for m in (*action.members, *action.partners)]
        with job.compilations.of("evaluate"):
            measured = [
                mean_metrics(programs.evaluate, m, self._held_out, job.num_held_out)[
                    programs.task.metric
                ]
                for m in models
            ]
        if min(measured) < 0:
            raise ValueError(
                f"{self._name}: {programs.task.metric} serves as a weight "
                f"from 0 on, but a worker's is {min(measured):.4g}"
            )
        workers = [self._clock.workers[m] for m in action.members if isinstance(m, int)]
        looks = [w.seconds(job.num_held_out) * _FORWARD for w in workers]
        return measured, min(max(looks), len(looks) * min(looks)) if looks else 0.0

    def _look(self) -> Evaluation:
        """The current model, and its metrics on the test split."""
        job = self._job
        with self._clock.paused(), job.compilations.of("evaluate"):
            model = self._store.model()
            evaluate = job.programs.evaluate
            metrics = mean_metrics(evaluate, model, self._test, job.num_test)
            metrics |= self._store.report()
        return model, metrics
