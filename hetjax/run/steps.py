"""How the K local steps of an assignment run: one by one, or fused into one program.

No form is best everywhere: a convolution inside a loop is an order of magnitude slower
on a CPU, while dispatching small steps one by one starves a GPU. The form changes the
last bits of a result, so it is part of a run's record.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hetjax.data.batching import make_batch, make_batches
from hetjax.replica import Replica
from hetjax.run.compilations import Compilations
from hetjax.run.executor import Assignment, Device, Outcome
from hetjax.run.job import Job
from hetjax.strategies.types import Strategy

FORMS = ("dispatch", "fused", "unrolled")
LONGEST = 16  # steps that are unrolled: a program grows with each; more are fused


class Steps:
    """Runs assignments of one strategy on one training split."""

    def __init__(
        self,
        strategy: Strategy,
        job: Job,
        compilations: Compilations,
        *,
        exact: bool,
        donate: bool = True,
    ):
        """`exact`: are batches unpadded? `donate`: may replicas be overwritten?"""
        self._programs, self.compilations = job.programs, compilations
        self._rule, self._needs = strategy.local, strategy.merges[0].needs
        self._train, self._buckets, self._seed = job.train, job.buckets, job.seed
        self._exact, self._donate = exact, donate
        self._keeps = strategy.sampler.observe is not None
        self._checks = job.on_nan == "restart"

    def run(
        self,
        assignment: Assignment,
        form: str = "dispatch",
        device: Device | None = None,
        between: Callable[[Any], None] | None = None,
    ) -> Outcome:
        """The outcome of all steps, enqueued; `between` is called after each program.

        With a device, batches are sent there ahead of the step that wants them.
        """
        self.compilations.purpose = "step"
        try:
            if form == "dispatch" or len(assignment.rows) < 2:
                outcome = self._one_by_one(assignment, device, between)
            else:
                outcome = self._at_once(assignment, form, device, between)
        finally:
            self.compilations.purpose = "other"
        return outcome

    def _one_by_one(
        self,
        a: Assignment,
        device: Device | None,
        between: Callable[[Any], None] | None,
    ) -> Outcome:
        step = self._step()
        replica, padded, losses = a.replica, 0, []
        mean, finite = np.zeros(()), True
        for number, row in enumerate(a.rows):
            if self._checks and number == len(a.rows) - 1:
                step = self._step(checked=True)
            batch = make_batch(self._train, row, self._buckets, exact=self._exact)
            padded += len(batch.weight) - len(row)
            words = self._words(a, number)
            if device is not None:
                batch = jax.device_put(batch, device)
            replica, values, mean, finite = step(replica, batch, a.rate, words)
            if self._keeps:
                losses.append((row, values))
            if between:
                between(replica)
        return Outcome(replica, losses, mean, padded, finite)

    def _at_once(
        self,
        a: Assignment,
        form: str,
        device: Device | None,
        between: Callable[[Any], None] | None,
    ) -> Outcome:
        program = self._programs.steps(
            self._rule,
            self._needs,
            unrolled=form == "unrolled" and len(a.rows) <= LONGEST,
            donate=self._donate,
            checked=self._checks,
        )
        batches = make_batches(self._train, a.rows, self._buckets, exact=self._exact)
        words = np.stack([self._words(a, number) for number in range(len(a.rows))])
        if device is not None:
            batches = jax.device_put(batches, device)
        replica, values, mean, finite = program(a.replica, batches, a.rate, words)
        if between:
            between(replica)
        padded = batches.weight.size - sum(map(len, a.rows))
        losses = [(np.stack(a.rows), values)] if self._keeps else []
        return Outcome(replica, losses, mean, padded, finite)

    def _step(self, *, checked: bool = False) -> Callable:
        """The program of one step."""
        return self._programs.step(
            self._rule, self._needs, donate=self._donate, checked=checked
        )

    def lowered(self, replica: Replica, row: np.ndarray) -> str:
        """The text of the program of one step on these rows."""
        step = self._step()
        batch = make_batch(self._train, row, self._buckets, exact=self._exact)
        words = np.zeros(3, np.uint32)
        return step.lower(replica, batch, np.float32(0), words).as_text()

    def _words(self, a: Assignment, number: int) -> np.ndarray:
        """What a step's random key is made of."""
        return np.array([self._seed, a.worker, a.first_step + number], np.uint32)
