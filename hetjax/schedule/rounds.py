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
    """Who is there, and how far the round is."""

    infos: Workers
    there: frozenset[int]
    members: tuple[int, ...]  # of this round
    working: frozenset[int]  # of them
    works: dict[int, Work]  # of everybody who may take part


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
    With `blocking=False` the next round starts while the merge is under way.

    Workers that leave or join do so with the next round, for which `workers` chooses
    anew. Who is lost is no member of this one any more; when nobody is left, the next
    one begins with whoever joins.
    """

    def init(infos: Workers, num_examples: int) -> tuple[RoundsState, Orders]:
        del num_examples
        if not infos:
            raise ValueError("rounds: there are no workers")
        there = frozenset(w.index for w in infos if w.present)
        works = planned(infos if workers is None else chosen(infos, there))
        if first:
            there = frozenset(first(chosen(infos, there)))
        state = RoundsState(infos, there, (), frozenset(), works)
        return _next_round(state, ())

    def chosen(infos: Workers, there: frozenset[int]) -> Workers:
        """The infos of those who take part."""
        present = tuple(infos[k] for k in sorted(there))
        if workers is None:
            return present
        return tuple(infos[k] for k in workers(present) if k in there)

    def planned(taking_part: Workers) -> dict[int, Work]:
        if not taking_part:
            raise ValueError("rounds: no workers take part; choose at least one")
        given = steps(taking_part) if callable(steps) else steps
        steps_k = per_worker("steps", given, len(taking_part))
        if any(s != int(s) for s in steps_k):  # half a step would be none, for ever
            raise ValueError(f"steps={given}: every entry must be a whole number")
        sizes_k = per_worker("batch_size", batch_size, len(taking_part))
        works = [
            Work(int(s), b, b / max(sizes_k))
            for s, b in zip(steps_k, sizes_k, strict=True)
        ]
        return {w.index: work for w, work in zip(taking_part, works, strict=True)}

    def react(state: RoundsState, event: Event) -> tuple[RoundsState, Orders]:
        if isinstance(event, Arrival):
            working = state.working - {event.worker}
            return _go_on(state._replace(working=working))
        if isinstance(event, Join):
            state = state._replace(there=state.there | {event.worker})
            return _go_on(state) if not state.members else (state, Orders())
        if not isinstance(event, Leave):
            return state, Orders()
        state = state._replace(there=state.there - {event.worker})
        if not event.lost or event.worker not in state.members:
            return state, Orders()
        members = tuple(k for k in state.members if k != event.worker)
        working = state.working - {event.worker}
        return _go_on(state._replace(members=members, working=working))

    def _go_on(state: RoundsState) -> tuple[RoundsState, Orders]:
        if state.working:
            return state, Orders()
        merges = (everybody(state.members, blocking),) if state.members else ()
        return _next_round(state, merges)

    def _next_round(
        state: RoundsState, merges: tuple[MergeOrder, ...]
    ) -> tuple[RoundsState, Orders]:
        here = chosen(state.infos, state.there) if state.there else ()
        if any(w.index not in state.works for w in here):  # somebody else's turn
            state = state._replace(works=planned(here))
        members = tuple(w.index for w in here)
        state = state._replace(members=members, working=frozenset(members))
        return state, Orders(merges, tuple((k, state.works[k]) for k in members))

    return Policy(init, react)


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
