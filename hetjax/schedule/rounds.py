"""Bulk-synchronous rounds: everybody works, everybody merges (host world)."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, Work, WorkerInfo
from hetjax.schedule.types import MergeOrder, Orders, Policy

Workers = tuple[WorkerInfo, ...]


class RoundsState(NamedTuple):
    """The round's works, and how many of them are out."""

    members: tuple[int, ...]
    dispatch: tuple[tuple[int, Work], ...]
    pending: int


def rounds(
    *,
    steps: int | Sequence[int] | Callable[[Workers], int | Sequence[int]] = 1,
    batch_size: float | Sequence[float],
    workers: Callable[[Workers], Sequence[int]] | None = None,
    blocking: bool = True,
) -> Policy:
    """All workers do their steps; when the last one arrives all merge and go on.

    `steps` and `batch_size` are one number for all, or one for each worker that takes
    part; `steps` may be a function of the workers' infos that gives either. `workers`
    chooses who does (default: everybody; see `fastest`). The relative
    rate of a worker is its batch size over the largest (linear scaling).
    With `blocking=False` the next round starts while the merge is under way.
    """

    def init(infos: Workers, num_examples: int) -> tuple[RoundsState, Orders]:
        del num_examples
        if not infos:
            raise ValueError("rounds: there are no workers")
        members = tuple(workers(infos) if workers else range(len(infos)))
        if not members:
            raise ValueError("rounds: no workers take part; choose at least one")
        taking_part = tuple(infos[k] for k in members)
        given = steps(taking_part) if callable(steps) else steps
        steps_k = per_worker("steps", given, len(members))
        if any(s != int(s) for s in steps_k):  # half a step would be none, for ever
            raise ValueError(f"steps={given}: every entry must be a whole number")
        sizes_k = per_worker("batch_size", batch_size, len(members))
        works = [
            Work(int(s), b, b / max(sizes_k))
            for s, b in zip(steps_k, sizes_k, strict=True)
        ]
        dispatch = tuple(zip(members, works, strict=True))
        return RoundsState(members, dispatch, len(members)), Orders(dispatch=dispatch)

    def react(state: RoundsState, event: Event) -> tuple[RoundsState, Orders]:
        if not isinstance(event, Arrival):
            return state, Orders()
        if state.pending > 1:
            return state._replace(pending=state.pending - 1), Orders()
        merge = MergeOrder(state.members, blocking=blocking)
        orders = Orders(merges=(merge,), dispatch=state.dispatch)
        return state._replace(pending=len(state.members)), orders

    return Policy(init, react)


def fastest(batch_size: float) -> Callable[[Workers], tuple[int, ...]]:
    """Chooses the one worker whose expected step on `batch_size` examples is shortest.

    Ties: the lowest index.
    """

    def choose(workers: Workers) -> tuple[int, ...]:
        return (min(workers, key=lambda w: (w.seconds(batch_size), w.index)).index,)

    return choose


def per_worker(name: str, value: float | Sequence[float], n: int) -> tuple[float, ...]:
    """A number for each of n workers; what is wrong with them is an error."""
    values = tuple(value) if isinstance(value, Iterable) else (value,) * n
    if len(values) != n:
        raise ValueError(
            f"{name} has {len(values)} entries for {n} workers: give one number for "
            "all, or one for each"
        )
    if any(not v > 0 for v in values):  # NaN too
        raise ValueError(f"{name}={value}: every entry must be positive")
    return values
