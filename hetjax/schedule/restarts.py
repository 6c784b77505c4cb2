"""Restarts of a policy's merges: where the rate drops, or nothing improves (host)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.machine.types import ROOT, Arrival, Evaluated, Event, WorkerInfo
from hetjax.schedule.rates import START, Progress, RateLike, rate_at
from hetjax.schedule.types import Orders, Policy


class RestartingState(NamedTuple):
    """The inner policy's state, and what the conditions remember."""

    inner: Any
    progress: Progress
    num_examples: int
    memory: Any
    due: bool


class Condition(NamedTuple):
    """When to restart: init() -> memory; seen(memory, progress, event) -> (., due)."""

    init: Callable[[], Any]
    seen: Callable[[Any, Progress, Event], tuple[Any, bool]]


def restarting(inner: Policy, condition: Condition) -> Policy:
    """`inner`, but its next merge at the root has op "restart" once that is due.

    Source: CROSSBOW 3.2; ALGORITHMS C.2.
    """

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[RestartingState, Orders]:
        state, orders = inner.init(infos, num_examples)
        start = RestartingState(state, START, num_examples, condition.init(), due=False)
        return start, orders

    def react(state: RestartingState, event: Event) -> tuple[RestartingState, Orders]:
        progress = _advanced(state.progress, event, state.num_examples)
        memory, due = condition.seen(state.memory, progress, event)
        inner_state, orders = inner.react(state.inner, event)
        due = due or state.due
        at_root = [m.node == ROOT and not m.op for m in orders.merges]
        if due and any(at_root):
            merges = (
                m._replace(op="restart") if root else m
                for m, root in zip(orders.merges, at_root, strict=True)
            )
            orders, due = orders._replace(merges=tuple(merges)), False
        state = state._replace(inner=inner_state, progress=progress)
        return state._replace(memory=memory, due=due), orders

    return Policy(init, react)


def _advanced(progress: Progress, event: Event, num_examples: int) -> Progress:
    if not isinstance(event, Arrival):
        return progress._replace(seconds=event.time)
    examples = progress.examples + event.work.examples
    updates = progress.updates + event.work.steps
    return Progress(examples, examples / num_examples, updates, event.time)


def on_rate_drop(rate: RateLike, *, drop: float = 0.75) -> Condition:
    """Due once the rate is less than `drop` times what it was at the last arrival.

    A schedule that falls by a little at every step never is.
    """
    if not 0 < drop < 1:
        raise ValueError(f"drop={drop}: give a number between 0 and 1")

    def seen(last: float, progress: Progress, event: Event) -> tuple[float, bool]:
        if not isinstance(event, Arrival):
            return last, False
        now = rate_at(rate, progress)
        return now, now < drop * last

    return Condition(lambda: rate_at(rate, START), seen)


class Plateau(NamedTuple):
    """The lowest training loss so far, and evaluations since then."""

    best: float
    waited: int


def on_plateau(*, patience: int = 5, improvement: float = 0.01) -> Condition:
    """Due after `patience` evaluations without a training loss lower by `improvement`.

    The loss is "train_loss" of `Evaluated`, the mean over the work since the evaluation
    before (never the test split's). `improvement` is relative.
    """
    if not patience >= 1:
        raise ValueError(f"patience={patience}: give a number of at least 1")
    if not 0 <= improvement < 1:
        raise ValueError(f"improvement={improvement}: give a number from 0 to below 1")

    def seen(memory: Plateau, progress: Progress, event: Event) -> tuple[Plateau, bool]:
        del progress
        if not isinstance(event, Evaluated) or "train_loss" not in event.metrics:
            return memory, False
        loss = event.metrics["train_loss"]
        if loss < memory.best * (1 - improvement):
            return Plateau(loss, 0), False
        waited = memory.waited + 1
        return Plateau(memory.best, waited % patience), waited == patience

    return Condition(lambda: Plateau(float("inf"), 0), seen)
