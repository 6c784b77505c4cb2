"""Bulk-synchronous rounds: everybody works, everybody merges (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    MergeOrder,
    Work,
    WorkerInfo,
    per_worker,
)
from hetjax.schedule.types import Orders, Policy

Workers = tuple[WorkerInfo, ...]


class RoundsState(NamedTuple):
    """Who works, who does what, and how many works are out."""

    members: tuple[int, ...]  # of this round
    following: tuple[int, ...]  # of the next one
    works: dict[int, Work]  # of everybody who may take part
    pending: int


def rounds(
    *,
    steps: int | Sequence[int] | Callable[[Workers], int | Sequence[int]] = 1,
    batch_size: float | Sequence[float],
    workers: Callable[[Workers], Sequence[int]] | None = None,
    first: Callable[[Workers], Sequence[int]] | None = None,
    blocking: bool = True,
) -> Policy:
    """All workers do their steps; when the last one arrives all merge and go on.

    `steps` and `batch_size` are one number for all, or one for each worker that takes
    part; `steps` may be a function of the workers' infos that gives either. `workers`
    chooses who does (default: everybody; see `fastest`), `first` who of them begins
    (default: all; the others wait until they join). The relative
    rate of a worker is its batch size over the largest (linear scaling).
    With `blocking=False` the next round starts while the merge is under way. Workers
    that leave or join do so with the next round.
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
        given = dict(zip(members, works, strict=True))
        begin = tuple(first(taking_part)) if first else members
        state = RoundsState(begin, begin, given, len(begin))
        return state, Orders(dispatch=tuple((k, given[k]) for k in begin))

    def react(state: RoundsState, event: Event) -> tuple[RoundsState, Orders]:
        if isinstance(event, Join | Leave) and event.worker in state.works:
            return _with_staff(state, event), Orders()
        if not isinstance(event, Arrival):
            return state, Orders()
        if state.pending > 1:
            return state._replace(pending=state.pending - 1), Orders()
        merge = everybody(state.members, blocking)
        members = state.following
        dispatch = tuple((k, state.works[k]) for k in members)
        state = state._replace(members=members, pending=len(members))
        return state, Orders(merges=(merge,), dispatch=dispatch)

    return Policy(init, react)


def _with_staff(state: RoundsState, event: Join | Leave) -> RoundsState:
    staff = set(state.following) - {event.worker}
    if isinstance(event, Join):
        staff.add(event.worker)
    if not staff:
        raise ValueError("rounds: the last worker leaves; keep at least one")
    return state._replace(following=tuple(sorted(staff)))


def everybody(members: tuple[int, ...], blocking: bool = True) -> MergeOrder:
    """The order that all of them merge; one alone has nobody to send to."""
    trips = 2 if len(members) > 1 else 0
    return MergeOrder(members, blocking=blocking, trips=trips)


def equal_time(steps: int, batch_size: float) -> Callable[[Workers], tuple[int, ...]]:
    """`steps` for the fastest worker; for the others as many as fit into its time.

        tau_i = max(1, round(steps t_min / t_i))        t_i: expected seconds of a step

    Source: Biased Local SGD; ALGORITHMS E.1.
    """

    def numbers(workers: Workers) -> tuple[int, ...]:
        seconds = [worker.seconds(batch_size) for worker in workers]
        return tuple(max(1, round(steps * min(seconds) / t)) for t in seconds)

    return numbers


def fastest(batch_size: float) -> Callable[[Workers], tuple[int, ...]]:
    """Chooses the one worker whose expected step on `batch_size` examples is shortest.

    Ties: the lowest index.
    """

    def choose(workers: Workers) -> tuple[int, ...]:
        return (min(workers, key=lambda w: (w.seconds(batch_size), w.index)).index,)

    return choose


def one_per_device(workers: Workers) -> tuple[int, ...]:
    """The first worker of every device."""
    devices: dict[str, int] = {}
    for worker in workers:
        devices.setdefault(worker.device or worker.name, worker.index)
    return tuple(devices.values())
