"""Asynchronous policies: who arrives merges alone and goes on at once (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetjax.machine.types import (
    Arrival,
    Event,
    MergeOrder,
    Work,
    WorkerInfo,
    per_worker,
)
from hetjax.schedule.scaling import ScalingRule
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
        state = FreeRunningState(sizes, (0,) * n, (0,) * n, 0, (), 0)
        return state, Orders(dispatch=tuple((k, _work(state, k)) for k in range(n)))

    def _work(state: FreeRunningState, worker: int) -> Work:
        size = state.sizes[worker]
        return Work(steps, size, size / top(state.sizes))

    def top(sizes: tuple[float, ...]) -> float:
        return batch_size if isinstance(batch_size, int | float) else max(sizes)

    def react(state: FreeRunningState, event: Event) -> tuple[FreeRunningState, Orders]:
        if not isinstance(event, Arrival):
            return state, Orders()
        k, n = event.worker, len(state.sizes)
        passive = partners(k, state.merges, n) if partners else ()
        merge = MergeOrder((k,), passive=passive, trips=trips)
        state = _counted(state, k, event.work)
        if max_staleness is None:
            return state, Orders((merge,), ((k, _work(state, k)),))
        works, waiting = state.works, (*state.held, k)
        latest = min(works) + max_staleness
        free = tuple(w for w in waiting if works[w] <= latest)
        held = tuple(w for w in waiting if works[w] > latest)
        merges = _by_halves(merge, k in held, free) if refetch else (merge,)
        state = state._replace(held=held)
        dispatch = tuple((w, _work(state, w)) for w in free)
        return state, Orders(merges, dispatch)

    def _counted(state: FreeRunningState, k: int, work: Work) -> FreeRunningState:
        works = _increased(state.works, k, 1)
        state = state._replace(works=works, merges=state.merges + 1)
        if not scaling:
            return state
        updates = _increased(state.updates, k, work.steps)
        examples = state.examples + work.examples
        if examples < (window or 0):
            return state._replace(updates=updates, examples=examples)
        sizes = scaling(state.sizes, updates)
        return state._replace(sizes=sizes, updates=(0,) * len(updates), examples=0)

    return Policy(init, react)


def _by_halves(
    merge: MergeOrder, waits: bool, free: tuple[int, ...]
) -> tuple[MergeOrder, ...]:
    """Who waits only pushes; those who have waited fetch, and go on."""
    half = merge._replace(trips=merge.trips // 2)
    first = half._replace(op="push") if waits else merge
    released = ((w,) for w in free if (w,) != merge.members)
    return (first, *(half._replace(members=w, op="fetch") for w in released))


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
