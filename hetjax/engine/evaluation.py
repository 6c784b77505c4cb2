"""Evaluations of the model at the instants of a run; never charged to the clock."""

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import jax

from hetjax.engine.compiled.metrics import batches_on, mean_metrics
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.protocols import Clock
from hetjax.engine.replicas import ReplicaStore
from hetjax.machine import MergeAction
from hetjax.saved import Leaves

_FORWARD = 1 / 3  # seconds of a forward pass, as a share of a training step

Evaluation = tuple[tuple[Any, Any], dict[str, float]]  # the model and its metrics


class Evaluations:
    """Evaluates the root's model when an instant is due or a merge will change it."""

    def __init__(
        self,
        name: str,
        job: Job,
        clock: Clock,
        placement: Placement,
        store: ReplicaStore,
        shared: Callable[[Any], Any],
    ):
        """Start without evaluations; `name` is the strategy's name, for errors.

        `shared` returns the metrics that process 0 has found.
        """
        self._shared = shared
        self._name, self._job = name, job
        self._clock, self._store = clock, store
        self._nodes = placement.nodes
        self._test = batches_on(job.test, placement.nodes)
        self._held_out = batches_on(job.held_out, placement.nodes)
        self.due = deque(job.instants)  # [s] instants that are not evaluated yet
        # (time, evaluation of the model that is visible until then)
        self._held: deque[tuple[float, Evaluation]] = deque()

    def hold_until(self, finish: float) -> None:
        """Keep the current evaluation for instants before a merge's `finish`."""
        # instants before the finish of an earlier merge see the evaluation kept for it
        since = self._held[-1][0] if self._held else -math.inf
        if next((t for t in self.due if t >= since), math.inf) < finish:
            self._held.append((finish, self._look()))

    def show(self) -> None:
        """Make the current model visible at once, after the node stepped by itself."""
        self._held.clear()

    def at(self, instant: float) -> Evaluation:
        """Evaluate the model that is visible at this instant, the next one due."""
        self.due.popleft()
        while self._held and self._held[0][0] <= instant:
            self._held.popleft()
        return self._held[0][1] if self._held else self._look()

    def save(self) -> dict[str, Any]:
        """Return the instants that are due, and the evaluations that are held."""
        held = [
            (t, Leaves(jax.tree.leaves(model)), metrics)
            for t, (model, metrics) in self._held
        ]
        return {"due": self.due, "held": held}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.due = saved["due"]
        model_of = self._store.model_of
        self._held = deque((t, (model_of(x), m)) for t, x, m in saved["held"])

    def of_members(self, action: MergeAction) -> tuple[list[float], float]:
        """Each member's metric on the held-out data, and the seconds that this takes.

        An evaluation costs a third of a training step. Either each worker evaluates its
        own model at the same time, or the fastest worker evaluates all models one after
        the other, whichever is sooner.
        """
        programs, job = self._job.programs, self._job
        models = [self._store.seen(m) for m in (*action.members, *action.partners)]
        with job.compilations.of("evaluate"):
            measured = [
                mean_metrics(programs, m, self._held_out)[programs.task.metric]
                for m in models
            ]
        if min(measured) < 0:
            raise ValueError(
                f"{self._name}: {programs.task.metric} is used as a weight and must be "
                f"at least 0, but a worker's is {min(measured):.4g}"
            )
        workers = [self._clock.workers[m] for m in action.members if isinstance(m, int)]
        looks = [w.seconds(job.num_held_out) * _FORWARD for w in workers]
        return measured, min(max(looks), len(looks) * min(looks)) if looks else 0.0

    def of_all(self, model: tuple[Any, Any]) -> dict[str, float]:
        """A model's metrics on the whole test split, of which others see a part."""
        job = self._job
        with job.compilations.of("evaluate"):
            batches = batches_on(job.whole_test, self._nodes)
            metrics = mean_metrics(job.programs, model, batches)
        return {"examples": job.num_whole_test, **self._shared(metrics)}

    def _look(self) -> Evaluation:
        """Return the current model and its metrics on the test split."""
        job = self._job
        with self._clock.paused(), job.compilations.of("evaluate"):
            model = self._store.model()
            metrics = mean_metrics(job.programs, model, self._test)
            metrics |= self._store.report()
            return model, self._shared(metrics)
