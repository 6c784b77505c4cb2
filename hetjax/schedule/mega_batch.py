"""Dynamic dispatch within mega-batches: the scheduler of Adaptive SGD (host world)."""

from typing import Any, NamedTuple

from hetjax.machine.types import Arrival, Event, Join, Leave, Work, WorkerInfo
from hetjax.schedule.rounds import everybody
from hetjax.schedule.scaling import Scaling, ScalingRule, as_scaling
from hetjax.schedule.types import Orders, Policy

RULES = ("dispatched", "hgpu_code")


class MegaBatchState(NamedTuple):
    """One entry per worker in `sizes` and `updates`."""

    sizes: tuple[float, ...]  # [examples] real-valued
    updates: tuple[int, ...]  # dispatched in this mega-batch
    dispatched: int  # [examples] in this mega-batch
    completed: int  # [examples] of them
    working: frozenset[int]
    there: frozenset[int]
    merges: int
    warming: float  # [examples] of the warm-up that are not dispatched yet
    scaling: Any  # what the scaling rule remembers


def mega_batch(
    *,
    examples: int,
    b_max: float,
    scaling: ScalingRule | Scaling | None = None,
    scale_every: int = 1,
    rule: str = "dispatched",
    warmup_epochs: float = 0.0,
    warmup_size: float = 32.0,
) -> Policy:
    """One batch to whoever is idle until the mega-batch is spent; then all merge.

    A batch is dispatched while fewer than `examples` were dispatched; the last one is
    not cut. Who finds the mega-batch spent waits; when nobody is at work any more all
    merge, `scaling` gives the next sizes (every `scale_every` merges; None: they stay),
    and the next mega-batch begins. Sizes start at b_max; relative rates are
    b_i / b_max. `rule="hgpu_code"` is the public code's: a batch is dispatched while
    the examples *completed*, less the largest size, are below `examples`. For the first
    `warmup_epochs` passes over the data all sizes are `warmup_size`. Who joins gets the
    next batch, of the size that it had last, or b_max; what is lost with a worker is
    not given out again. Source: Adaptive
    SGD III; ALGORITHMS A.1, A.4, A.5.
    """
    given = {"examples": examples, "b_max": b_max, "scale_every": scale_every}
    given["warmup_size"] = warmup_size
    for name, value in given.items():
        if not value > 0:  # nobody would ever get work
            raise ValueError(f"mega_batch: {name}={value}: give a number above 0")
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: choose one of {RULES}")
    if not warmup_epochs >= 0:
        raise ValueError(f"warmup_epochs={warmup_epochs}: give a number of at least 0")
    scaler = as_scaling(scaling) if scaling else None

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[MegaBatchState, Orders]:
        if not infos:
            raise ValueError("mega_batch: there are no workers")
        n = len(infos)
        warming = warmup_epochs * num_examples
        size = min(warmup_size, b_max) if warming else b_max
        remembered = scaler.init(n) if scaler else ()
        there = frozenset(w.index for w in infos if w.present)
        state = MegaBatchState(
            sizes=(float(size),) * n,
            updates=(0,) * n,
            dispatched=0,
            completed=0,
            working=frozenset(),
            there=there,
            merges=0,
            warming=warming,
            scaling=remembered,
        )
        return _dispatch_all(state)

    def react(state: MegaBatchState, event: Event) -> tuple[MegaBatchState, Orders]:
        if isinstance(event, Arrival):
            state = _arrived(state, event)
            if event.worker in state.there and _unspent(state):
                state, given = _dispatch(state, event.worker)
                return state, Orders(dispatch=(given,))
            return _go_on(state)
        if isinstance(event, Join):
            state = state._replace(there=state.there | {event.worker})
            if event.worker in state.working or not _unspent(state):
                return _go_on(state)
            state, given = _dispatch(state, event.worker)
            return state, Orders(dispatch=(given,))
        if isinstance(event, Leave):
            state = state._replace(there=state.there - {event.worker})
            return _go_on(_without(state, event.worker) if event.lost else state)
        return state, Orders()

    def _go_on(state: MegaBatchState) -> tuple[MegaBatchState, Orders]:
        """When the mega-batch is spent and nobody works any more: merge, and on."""
        if state.working or _unspent(state):
            return state, Orders()
        did = {k for k, updates in enumerate(state.updates) if updates}
        members = tuple(sorted(state.there | did))
        state, orders = _dispatch_all(_next_mega_batch(state))
        return state, orders._replace(merges=(everybody(members),) if did else ())

    def _without(state: MegaBatchState, worker: int) -> MegaBatchState:
        """What a worker did since the last merge is gone."""
        updates = (*state.updates[:worker], 0, *state.updates[worker + 1 :])
        return state._replace(updates=updates, working=state.working - {worker})

    def _arrived(state: MegaBatchState, event: Arrival) -> MegaBatchState:
        state = state._replace(
            working=state.working - {event.worker},
            completed=state.completed + event.work.examples,
        )
        if not scaler:
            return state
        seconds = event.finish - event.start
        seen = scaler.observe(state.scaling, event.worker, event.work, seconds)
        return state._replace(scaling=seen)

    def _unspent(state: MegaBatchState) -> bool:
        if rule == "hgpu_code":
            done = state.completed  # looks for the largest size near the end only
            return done < examples or done - max(state.sizes) < examples
        return state.dispatched < examples

    def _next_mega_batch(state: MegaBatchState) -> MegaBatchState:
        merges, sizes, n = state.merges + 1, state.sizes, len(state.sizes)
        warming = max(0.0, state.warming - state.dispatched)
        if state.warming and not warming:
            sizes = (float(b_max),) * n
        elif scaler and not state.warming and merges % scale_every == 0:
            here = tuple(sorted(state.there))
            sizes = scaler.scale(state.scaling, sizes, state.updates, here)
        return state._replace(
            sizes=sizes,
            updates=(0,) * n,
            dispatched=0,
            completed=0,
            merges=merges,
            warming=warming,
        )

    def _dispatch_all(state: MegaBatchState) -> tuple[MegaBatchState, Orders]:
        given = []
        for worker in sorted(state.there):
            if _unspent(state):
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
            working=state.working | {worker},
        )
        return state, (worker, work)

    return Policy(init, react)
