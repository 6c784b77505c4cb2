"""Asynchronous policies: a worker merges alone and continues at once (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from hetjax.arguments import Whole, checked, per_worker
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeOp,
    WorkerInfo,
)
from hetjax.schedule.batch_scaling import ScalingRule, among
from hetjax.schedule.types import Actions, Policy

Partners = Callable[[int, int, int], tuple[int, ...]]
_GOSSIP_STREAM = 30_011  # separates the choice of partners from other uses of a seed


class AsynchronousState(NamedTuple):
    """The tuples `sizes`, `local_rounds` and `updates` have one entry per worker."""

    roster: Roster
    sizes: tuple[float, ...]  # [examples] real-valued
    local_rounds: tuple[int, ...]  # done
    updates: tuple[int, ...]  # since the last scaling
    examples: int  # [examples] since the last scaling
    held: tuple[int, ...]  # workers that are too far ahead
    merges: int


@checked
def asynchronous(
    *,
    batch_size: float | Sequence[float],
    local_steps: int = 1,
    transfers: int = 2,
    max_staleness: int | None = None,
    refetch: bool = True,
    partners: Partners | None = None,
    scaling: ScalingRule | None = None,
    window: int | None = None,
) -> Policy:
    """Each worker merges alone and begins its next `local_steps` without waiting.

    `transfers=0` means shared memory, where a merge needs no link. A worker that is
    more than `max_staleness` local rounds ahead of the slowest one waits for it (stale
    synchronous parallel). With `refetch` it only pushes before it waits, and fetches
    when it continues; without `refetch` it merges as usual, for merges in which workers
    keep their own models. `partners(worker, merges, workers)` chooses the partners of
    each merge. With `scaling`, that rule sets the batch sizes after every `window`
    examples, and the relative learning rates are b_i / b. The round count of a worker
    that joins starts at that of the slowest one, if its own is lower. Sources:
    docs/algorithms F.3, F.5, G.2, G.6.
    """
    if scaling and not (window and window > 0):
        raise ValueError(
            f"asynchronous: window={window}: pass the number of examples per scaling"
        )
    if max_staleness is not None and max_staleness < 0:
        raise ValueError(
            f"max_staleness={max_staleness}: pass a number of at least 0, or None"
        )
    if max_staleness is not None and refetch and (partners or transfers % 2):
        raise ValueError(
            "asynchronous: a worker that waits pushes first and fetches later, which "
            f"splits transfers={transfers} in half and allows no partners: pass "
            "refetch=False"
        )
    if local_steps < 1:
        raise ValueError(
            f"asynchronous: local_steps={local_steps}: pass a number of at least 1"
        )

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[AsynchronousState, Actions]:
        del num_examples
        n = len(infos)
        if not n:
            raise ValueError("asynchronous: there are no workers")
        state = AsynchronousState(
            roster=Roster.of(infos),
            sizes=tuple(map(float, per_worker("batch_size", batch_size, n))),
            local_rounds=(0,) * n,
            updates=(0,) * n,
            examples=0,
            held=(),
            merges=0,
        )
        return dispatch_to(state, sorted(state.roster.active))

    def react(
        state: AsynchronousState, event: Event
    ) -> tuple[AsynchronousState, Actions]:
        if isinstance(event, Arrival):
            return handle_arrival(state, event)
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Join():
                return handle_join(state, event.worker)
            case Leave():  # other workers may have waited for it
                waiting = tuple(w for w in state.held if w != event.worker)
                return release(state, waiting, None)
        return state, Actions()

    def handle_arrival(
        state: AsynchronousState, event: Arrival
    ) -> tuple[AsynchronousState, Actions]:
        k = event.worker
        merge = MergeAction((k,), partners=choose(state, k), transfers=transfers)
        state = count(state, event)
        waiting = (*state.held, k) if k in state.roster.active else state.held
        return release(state, waiting, merge)

    def handle_join(
        state: AsynchronousState, k: int
    ) -> tuple[AsynchronousState, Actions]:
        done = state.local_rounds
        slowest = min((done[w] for w in state.roster.active if w != k), default=0)
        missing = max(0, slowest - done[k])
        state = state._replace(local_rounds=_increased(done, k, missing))
        # a worker that was stopped and still computes continues when it arrives
        return dispatch_to(state, () if k in state.roster.working else (k,))

    def choose(state: AsynchronousState, k: int) -> tuple[int, ...]:
        """The partners of worker k, chosen among the active workers."""
        if partners is None:
            return ()
        here = sorted(state.roster.active | {k})
        chosen = partners(here.index(k), state.merges, len(here))
        return tuple(here[i] for i in chosen)

    def release(
        state: AsynchronousState, waiting: tuple[int, ...], merge: MergeAction | None
    ) -> tuple[AsynchronousState, Actions]:
        """Dispatch to waiting workers that may continue; `merge` is the arrival's."""
        merges = (merge,) if merge else ()
        if max_staleness is None:
            return dispatch_to(state, waiting, merges)
        done, active = state.local_rounds, state.roster.active
        latest = min((done[k] for k in active), default=0) + max_staleness
        free = tuple(w for w in waiting if done[w] <= latest)
        held = tuple(w for w in waiting if done[w] > latest)
        if refetch:
            merges = _split_in_half(merge, held, free, transfers // 2)
        return dispatch_to(state._replace(held=held), free, merges)

    def dispatch_to(
        state: AsynchronousState,
        workers: Sequence[int],
        merges: tuple[MergeAction, ...] = (),
    ) -> tuple[AsynchronousState, Actions]:
        """Dispatch the next local round of these workers, after the merges."""
        dispatch = tuple((k, next_round(state, k)) for k in workers)
        state = state._replace(roster=state.roster.dispatched(workers))
        return state, Actions(merges, dispatch)

    def next_round(state: AsynchronousState, worker: int) -> LocalRound:
        sizes = state.sizes
        largest = batch_size if isinstance(batch_size, (int, float)) else max(sizes)
        return LocalRound(local_steps, sizes[worker], sizes[worker] / largest)

    def count(state: AsynchronousState, event: Arrival) -> AsynchronousState:
        k, local_round = event.worker, event.local_round
        state = state._replace(
            roster=state.roster.after(event),
            local_rounds=_increased(state.local_rounds, k, 1),
            merges=state.merges + 1,
        )
        if not scaling:
            return state
        updates = _increased(state.updates, k, local_round.local_steps)
        examples = state.examples + local_round.examples
        if examples < (window or 0):
            return state._replace(updates=updates, examples=examples)
        sizes = among(scaling, state.sizes, updates, sorted(state.roster.active))
        return state._replace(sizes=sizes, updates=(0,) * len(updates), examples=0)

    return Policy(init, react)


def _split_in_half(
    merge: MergeAction | None,
    held: tuple[int, ...],
    free: tuple[int, ...],
    transfers: int,
) -> tuple[MergeAction, ...]:
    """Split merges: workers that must wait only push, and released ones fetch."""
    arrived = merge.members if merge else ()
    merges = [merge] if merge else []
    if merge and set(arrived) <= set(held):
        merges = [merge._replace(op=MergeOp.PUSH, transfers=transfers)]
    released = [(w,) for w in free if (w,) != arrived]
    return (
        *merges,
        *(MergeAction(w, op=MergeOp.FETCH, transfers=transfers) for w in released),
    )


def _increased(numbers: tuple[int, ...], k: int, by: int) -> tuple[int, ...]:
    return (*numbers[:k], numbers[k] + by, *numbers[k + 1 :])


@checked
def random_partner(seed: Whole = 0) -> Partners:
    """Chooses one other worker uniformly, if there is one (AD-PSGD's gossip)."""

    def choose(worker: int, merges: int, workers: int) -> tuple[int, ...]:
        if workers == 1:
            return ()
        rng = np.random.default_rng((_GOSSIP_STREAM, seed, merges))
        return ((worker + 1 + int(rng.integers(workers - 1))) % workers,)

    return choose
