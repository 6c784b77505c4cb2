"""Asynchronous policies: who arrives merges alone and goes on at once (host world)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

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
from hetjax.schedule.scaling import ScalingRule, among
from hetjax.schedule.types import Orders, Policy

Partners = Callable[[int, int, int], tuple[int, ...]]
_GOSSIP_STREAM = 30_011  # keeps the choice of partners apart from other uses of a seed


class FreeRunningState(NamedTuple):
    """One entry per worker in the tuples."""

    sizes: tuple[float, ...]  # [examples] real-valued
    works: tuple[int, ...]  # done
    updates: tuple[int, ...]  # since the last scaling
    examples: int  # [examples] since the last scaling
    held: tuple[int, ...]  # workers that are too far ahead
    merges: int
    there: frozenset[int]
    working: frozenset[int]


def free_running(
    *,
    batch_size: float | Sequence[float],
    steps: int = 1,
    trips: int = 2,
    max_staleness: int | None = None,
    refetch: bool = True,
    partners: Partners | None = None,
    scaling: ScalingRule | None = None,
    window: int | None = None,
) -> Policy:
    """Nobody waits for anybody: merge alone, take the next `steps` steps.

    `trips=0` is shared memory, where a merge needs no link. A worker that did more than
    `max_staleness` works (of `steps` steps) above the slowest one's waits for it (stale
    synchronous parallel). With `refetch` it only pushes before it waits, and fetches
    when it goes on; without, it merges as ever, for models of the workers' own.
    `partners(worker, merges, workers)` names passive members of each merge.
    With `scaling`, sizes follow it after every `window` examples, rates are b_i / b.
    Who joins begins with as many works as the slowest one has done.
    Sources: ALGORITHMS F.3, F.5, G.2, G.6.
    """
    if scaling and not (window and window > 0):
        raise ValueError(f"free_running: window={window}: give examples per scaling")
    if max_staleness is not None and max_staleness < 0:
        raise ValueError(f"max_staleness={max_staleness}: give at least 0, or None")
    if max_staleness is not None and refetch and (partners or trips % 2):
        raise ValueError(
            "free_running: who waits pushes first and fetches later, which takes "
            f"trips={trips} by halves and no partners: give refetch=False"
        )
    if not steps >= 1:
        raise ValueError(f"free_running: steps={steps}: give at least 1")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[FreeRunningState, Orders]:
        del num_examples
        n = len(infos)
        if not n:
            raise ValueError("free_running: there are no workers")
        sizes = tuple(map(float, per_worker("batch_size", batch_size, n)))
        there = frozenset(w.index for w in infos if w.present)
        zeros = (0,) * n
        state = FreeRunningState(sizes, zeros, zeros, 0, (), 0, there, frozenset())
        return _given(state, Orders(), tuple(sorted(there)))

    def _given(
        state: FreeRunningState, orders: Orders, workers: tuple[int, ...]
    ) -> tuple[FreeRunningState, Orders]:
        """The orders, and work for these workers."""
        dispatch = tuple((k, _work(state, k)) for k in workers)
        state = state._replace(working=state.working | set(workers))
        return state, orders._replace(dispatch=dispatch)

    def _work(state: FreeRunningState, worker: int) -> Work:
        size = state.sizes[worker]
        return Work(steps, size, size / top(state.sizes))

    def top(sizes: tuple[float, ...]) -> float:
        return batch_size if isinstance(batch_size, int | float) else max(sizes)

    def react(state: FreeRunningState, event: Event) -> tuple[FreeRunningState, Orders]:
        if isinstance(event, Arrival):
            return _arrived(state, event)
        if isinstance(event, Join):
            return _joined(state, event.worker)
        if isinstance(event, Leave):
            return _left(state, event)
        return state, Orders()

    def _arrived(
        state: FreeRunningState, event: Arrival
    ) -> tuple[FreeRunningState, Orders]:
        k = event.worker
        passive = _partners(state, k) if partners else ()
        merge = MergeOrder((k,), passive=passive, trips=trips)
        state = state._replace(working=state.working - {k})
        state = _counted(state, k, event.work)
        waiting = (*state.held, k) if k in state.there else state.held
        return _released(state, waiting, merge)

    def _released(
        state: FreeRunningState, waiting: tuple[int, ...], merge: MergeOrder | None
    ) -> tuple[FreeRunningState, Orders]:
        """Who of those that wait may go on does; `merge` is of who arrived."""
        works = state.works
        latest = math.inf
        if max_staleness is not None:
            latest = min((works[k] for k in state.there), default=0) + max_staleness
        free = tuple(w for w in waiting if works[w] <= latest)
        held = tuple(w for w in waiting if works[w] > latest)
        merges = (merge,) if merge else ()
        if max_staleness is not None and refetch:
            half = trips // 2
            merges = _by_halves(merge, held, free, half)
        return _given(state._replace(held=held), Orders(merges), free)

    def _partners(state: FreeRunningState, k: int) -> tuple[int, ...]:
        """Those that `partners` names, among the workers that are there."""
        here = sorted(state.there | {k})
        chosen = partners(here.index(k), state.merges, len(here)) if partners else ()
        return tuple(here[i] for i in chosen)

    def _joined(state: FreeRunningState, k: int) -> tuple[FreeRunningState, Orders]:
        others = [state.works[w] for w in state.there]
        works = max(state.works[k], min(others, default=0))
        state = state._replace(
            works=_increased(state.works, k, works - state.works[k]),
            there=state.there | {k},
        )
        # one that was stopped, and still works, goes on when it arrives
        return _given(state, Orders(), () if k in state.working else (k,))

    def _left(state: FreeRunningState, event: Leave) -> tuple[FreeRunningState, Orders]:
        k = event.worker
        state = state._replace(there=state.there - {k})
        if event.lost:
            state = state._replace(working=state.working - {k})
        # the others may have waited for it
        waiting = tuple(w for w in state.held if w != k)
        return _released(state, waiting, None)

    def _counted(state: FreeRunningState, k: int, work: Work) -> FreeRunningState:
        works = _increased(state.works, k, 1)
        state = state._replace(works=works, merges=state.merges + 1)
        if not scaling:
            return state
        updates = _increased(state.updates, k, work.steps)
        examples = state.examples + work.examples
        if examples < (window or 0):
            return state._replace(updates=updates, examples=examples)
        sizes = among(scaling, state.sizes, updates, sorted(state.there))
        return state._replace(sizes=sizes, updates=(0,) * len(updates), examples=0)

    return Policy(init, react)


def _by_halves(
    merge: MergeOrder | None, held: tuple[int, ...], free: tuple[int, ...], trips: int
) -> tuple[MergeOrder, ...]:
    """Who waits only pushes; those who have waited fetch, and go on."""
    arrived = merge.members if merge else ()
    merges = [merge] if merge else []
    if merge and set(arrived) <= set(held):
        merges = [merge._replace(op="push", trips=trips)]
    released = [(w,) for w in free if (w,) != arrived]
    return (*merges, *(MergeOrder(w, op="fetch", trips=trips) for w in released))


def _increased(numbers: tuple[int, ...], k: int, by: int) -> tuple[int, ...]:
    return (*numbers[:k], numbers[k] + by, *numbers[k + 1 :])


def random_partner(seed: int = 0) -> Partners:
    """One other worker, uniformly (AD-PSGD's gossip); nobody where there is none."""

    def partners(worker: int, merges: int, workers: int) -> tuple[int, ...]:
        if workers == 1:
            return ()
        rng = np.random.default_rng((_GOSSIP_STREAM, seed, merges))
        return ((worker + 1 + int(rng.integers(workers - 1))) % workers,)

    return partners
