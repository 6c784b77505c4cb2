"""The evaluator of a run: metrics on the test split and on held-out examples."""

import time
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.programs.evaluation_batches import batches_on, mean_metrics
from hetjax.engine.protocols import EvaluatedModel

LONG = 10.0  # [s] of evaluations after which a run may warn that they take long


class Evaluator:
    """Evaluates models of one run; never charged to its clock."""

    def __init__(self, job: Job, device: Device | None):
        """Models are evaluated on `device`; None leaves the choice to JAX."""
        self._job, self._device = job, device
        self.test = batches_on(job.test, device)
        self._held_out = batches_on(job.held_out, device)
        self.seconds = 0.0  # of `evaluate`, without waiting for training
        self._warned = False

    def evaluate(self, store: Any) -> EvaluatedModel:
        """Evaluate a store's current model on the test split, or the part in use."""
        with self._job.compilations.of("evaluate"):
            model = jax.block_until_ready(store.model())
            before = time.perf_counter() - self._job.compilations.seconds
            metrics = mean_metrics(self._job.programs, model, self.test)
            after = time.perf_counter() - self._job.compilations.seconds
            self.seconds += after - before
            return EvaluatedModel(model, metrics | store.report())

    def warn_if_slow(self, began: float) -> None:
        """Warn once if evaluations take longer than the training since `began`."""
        job, seconds = self._job, self.seconds
        training = time.perf_counter() - began - seconds
        if self._warned or seconds < max(LONG, training):
            return
        self._warned = True
        half = (seconds - training) / (2 * seconds)
        examples = max(1, int(half * job.num_test))
        evals = max(1, int(half * (len(job.instants) - 1)))
        warnings.warn(
            f"{job.name}: evaluations have taken {seconds:.0f} s so far, and the "
            f"training {training:.0f} s: eval_examples={examples} or num_evals={evals} "
            "would halve the time of the run",
            stacklevel=2,
        )

    def evaluate_whole_test(self, model: tuple[Any, Any]) -> dict[str, float]:
        """Return a model's metrics on the whole test split."""
        job = self._job
        with job.compilations.of("evaluate"):
            batches = batches_on(job.whole_test, self._device)
            metrics = mean_metrics(job.programs, model, batches)
        return {"examples": job.num_whole_test, **metrics}

    def member_metrics(self, models: Sequence[tuple[Any, Any]]) -> list[float]:
        """Return each model's main metric on the held-out examples.

        Errors: a ValueError if one is below 0, since they are used as weights.
        """
        job, metric = self._job, self._job.programs.task.metric
        with job.compilations.of("evaluate"):
            measured = [
                mean_metrics(job.programs, model, self._held_out)[metric]
                for model in models
            ]
        check_weights(job.name, metric, min(measured))
        return measured


def check_weights(name: str, metric: str, least: float) -> None:
    """Raise a ValueError if the least metric of the workers cannot be a weight."""
    if least < 0:
        raise ValueError(
            f"{name}: {metric} is used as a weight and must be at least 0, but a "
            f"worker's is {least:.4g}"
        )
