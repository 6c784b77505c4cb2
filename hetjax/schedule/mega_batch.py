"""Dynamic dispatch within mega-batches: the scheduler of Adaptive SGD (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, Work, WorkerInfo
from hetjax.schedule.types import MergeOrder, Orders, Policy

ScalingRule = Callable[[Sequence[float], Sequence[int]], tuple[float, ...]]


class MegaBatchState(NamedTuple):
    """One entry per worker in `sizes` and `updates`."""

    sizes: tuple[float, ...]  # [examples] real-valued
    updates: tuple[int, ...]  # dispatched in this mega-batch
    dispatched: int  # [examples] in this mega-batch
    pending: int  # workers with work
    merges: int


def mega_batch(
    *,
    examples: int,
    b_max: float,
    scaling: ScalingRule | None = None,
    scale_every: int = 1,
) -> Policy:
    """One batch to whoever is idle until the mega-batch is spent; then all merge.

    A batch is dispatched while fewer than `examples` were dispatched; the last one is
    not cut. Who finds the mega-batch spent waits; when nobody is at work any more all
    merge, `scaling(sizes, updates)` gives the next sizes (every `scale_every` merges;
    None: they stay), and the next mega-batch begins. Sizes start at b_max; relative
    rates are b_i / b_max. Source: Adaptive SGD III; ALGORITHMS A.1, A.4 REC.
    """
    given = {"examples": examples, "b_max": b_max, "scale_every": scale_every}
    for name, value in given.items():
        if not value > 0:  # nobody would ever get work
            raise ValueError(f"mega_batch: {name}={value}: give a number above 0")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[MegaBatchState, Orders]:
        del num_examples
        if not infos:
            raise ValueError("mega_batch: there are no workers")
        n = len(infos)
        state = MegaBatchState((float(b_max),) * n, (0,) * n, 0, 0, 0)
        return _dispatch_all(state)

    def react(state: MegaBatchState, event: Event) -> tuple[MegaBatchState, Orders]:
        if not isinstance(event, Arrival):
            return state, Orders()
        state = state._replace(pending=state.pending - 1)
        if state.dispatched < examples:
            state, given = _dispatch(state, event.worker)
            return state, Orders(dispatch=(given,))
        if state.pending:
            return state, Orders()
        members = tuple(range(len(state.sizes)))
        state, orders = _dispatch_all(_next_mega_batch(state))
        return state, orders._replace(merges=(MergeOrder(members),))

    def _next_mega_batch(state: MegaBatchState) -> MegaBatchState:
        merges = state.merges + 1
        sizes = state.sizes
        if scaling and merges % scale_every == 0:
            sizes = scaling(sizes, state.updates)
        return MegaBatchState(sizes, (0,) * len(sizes), 0, 0, merges)

    def _dispatch_all(state: MegaBatchState) -> tuple[MegaBatchState, Orders]:
        given = []
        for worker in range(len(state.sizes)):
            if state.dispatched < examples:
                state, order = _dispatch(state, worker)
                given.append(order)
        return state, Orders(dispatch=tuple(given))

    def _dispatch(
        state: MegaBatchState, worker: int
    ) -> tuple[MegaBatchState, tuple[int, Work]]:
        size = state.sizes[worker]
        work = Work(1, size, size / b_max)
        updates = list(state.updates)
        updates[worker] += 1
        state = state._replace(
            updates=tuple(updates),
            dispatched=state.dispatched + work.examples,
            pending=state.pending + 1,
        )
        return state, (worker, work)

    return Policy(init, react)
