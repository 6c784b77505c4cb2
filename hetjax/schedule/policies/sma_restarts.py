"""Restarts of SMA when the learning rate drops or the loss stalls (host world)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hetjax.arguments import checked
from hetjax.machine.types import (
    PUSH_FETCH,
    ROOT,
    Arrival,
    Evaluated,
    Event,
    MergeOp,
    WorkerInfo,
)
from hetjax.schedule.learning_rates import (
    START,
    LearningRateLike,
    Progress,
    learning_rate_at,
)
from hetjax.schedule.types import Actions, Policy


class SmaRestartsState(NamedTuple):
    """The states of the inner policy and of the condition."""

    inner: Any
    progress: Progress
    num_examples: int
    memory: Any
    due: bool


class Condition(NamedTuple):
    """A condition for restarts.

    init() -> memory
    observe(memory, progress, event) -> (memory, due)
    """

    init: Callable[[], Any]
    observe: Callable[[Any, Progress, Event], tuple[Any, bool]]


def sma_restarts(inner: Policy, condition: Condition) -> Policy:
    """The policy `inner`, with restarts when `condition` says that one is due.

    The next merge at the root then also resets replicas to the center: its operation is
    PUSH_FETCH | RESET_TO_CENTER. Source: CROSSBOW 3.2; docs/algorithms C.2.
    """

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[SmaRestartsState, Actions]:
        state, actions = inner.init(infos, num_examples)
        start = SmaRestartsState(
            state, START, num_examples, condition.init(), due=False
        )
        return start, actions

    def react(
        state: SmaRestartsState, event: Event
    ) -> tuple[SmaRestartsState, Actions]:
        progress = _advance(state.progress, event, state.num_examples)
        memory, due = condition.observe(state.memory, progress, event)
        inner_state, actions = inner.react(state.inner, event)
        due = due or state.due
        at_root = [m.node == ROOT and m.op == PUSH_FETCH for m in actions.merges]
        if due and any(at_root):
            merges = (
                m._replace(op=m.op | MergeOp.RESET_TO_CENTER) if root else m
                for m, root in zip(actions.merges, at_root, strict=True)
            )
            actions, due = actions._replace(merges=tuple(merges)), False
        state = state._replace(inner=inner_state, progress=progress)
        return state._replace(memory=memory, due=due), actions

    return Policy(init, react, inner.topology, inner.bulk_synchronous)


def _advance(progress: Progress, event: Event, num_examples: int) -> Progress:
    if not isinstance(event, Arrival):
        return progress._replace(seconds=event.time)
    examples = progress.examples + event.local_round.examples
    updates = progress.updates + event.local_round.local_steps
    return Progress(examples, examples / num_examples, updates, event.time)


@checked
def on_rate_drop(learning_rate: LearningRateLike, *, drop: float = 0.75) -> Condition:
    """Due when the learning rate is below `drop` times that at the last arrival.

    With a schedule that falls a little at every step, a restart is never due.
    """
    if not 0 < drop < 1:
        raise ValueError(f"drop={drop}: pass a number between 0 and 1")

    def observe(last: float, progress: Progress, event: Event) -> tuple[float, bool]:
        if not isinstance(event, Arrival):
            return last, False
        now = learning_rate_at(learning_rate, progress)
        return now, now < drop * last

    return Condition(lambda: learning_rate_at(learning_rate, START), observe)


class Plateau(NamedTuple):
    """The lowest training loss so far, and the number of evaluations since then."""

    best: float
    waited: int


@checked
def on_plateau(*, patience: int = 5, improvement: float = 0.01) -> Condition:
    """Due after `patience` evaluations whose training loss is not lower.

    The loss is "train_loss" of `Evaluated`, the mean over the local rounds since the
    previous evaluation (never a loss on the test split). It counts as lower if it is
    below 1 - `improvement` times the lowest so far.
    """
    if not patience >= 1:
        raise ValueError(f"patience={patience}: pass a number of at least 1")
    if not 0 <= improvement < 1:
        raise ValueError(f"improvement={improvement}: pass a number from 0 to below 1")

    def observe(
        memory: Plateau, progress: Progress, event: Event
    ) -> tuple[Plateau, bool]:
        del progress
        if not isinstance(event, Evaluated) or "train_loss" not in event.metrics:
            return memory, False
        loss = event.metrics["train_loss"]
        if loss < memory.best * (1 - improvement):
            return Plateau(loss, 0), False
        waited = memory.waited + 1
        return Plateau(memory.best, waited % patience), waited == patience

    return Condition(lambda: Plateau(float("inf"), 0), observe)
