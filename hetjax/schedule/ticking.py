"""MagmaDNN's policy: a master that steps on its own, and slaves (host world)."""

from typing import NamedTuple

from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    MergeOrder,
    Work,
    WorkerInfo,
)
from hetjax.schedule.types import Orders, Policy

SUBTRACT = ("before", "swap")
SHARE = 0.1  # of a batch's seconds: a tick's and a copy's, where none is given


class TickingState(NamedTuple):
    """Who is master, what its steps are, and how far it is."""

    infos: tuple[WorkerInfo, ...]
    master: int | None
    there: frozenset[int]
    working: frozenset[int]
    copy: Work  # the timed copy of the model
    tick: float  # [s] of one step of the master
    ticks: int  # that merges know of
    stale: frozenset[int] = frozenset()  # whose last gradient is not in g any more
    clear: bool = False  # is somebody's in g who cannot take it out?


def ticking(
    *,
    batch_size: float,
    tick_seconds: float | None = None,
    copy_seconds: float | None = None,
    subtract: str = "before",
) -> Policy:
    """The slowest worker steps w on and on; the others copy w and give gradients.

    A slave copies w for `copy_seconds`, has it at their end ("fetch"), computes a
    gradient on a batch, adds it ("push"), and copies again. The master makes a step
    every `tick_seconds`: orders say how many since the last one, so that they need no
    events. Both seconds default to a tenth of the master's for a batch. An addition
    takes one trip over the link, which is its lock; so does the subtraction at the
    fetch where `subtract="before"`.

    When the master leaves the slowest slave takes its place. Who leaves, or becomes the
    master, takes its last gradient out of g when it arrives; after the loss of one that
    cannot, g begins anew from zero ("clear") and the others' gradients that were in it
    are not taken out a second time ("forget"). Who joins is a slave. Source: MagmaDNN,
    Algorithms 2 and 3; ALGORITHMS F.3.
    """
    if subtract not in SUBTRACT:
        raise ValueError(f"subtract={subtract!r}: choose one of {SUBTRACT}")
    given = {"tick_seconds": tick_seconds, "copy_seconds": copy_seconds}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: give a number above 0, or None")
    gradient = Work(1, batch_size)

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[TickingState, Orders]:
        del num_examples
        there = frozenset(w.index for w in infos if w.present)
        if len(there) < 2:
            raise ValueError(
                f"ticking: a master and its slaves need 2 workers, not {len(there)}"
            )
        master = slowest(infos, there)
        share = SHARE * infos[master].seconds(batch_size)
        copy = Work(0, batch_size, seconds=copy_seconds or share)
        slaves = there - {master}
        orders = Orders(dispatch=tuple((k, copy) for k in sorted(slaves)))
        tick = tick_seconds or share
        return TickingState(infos, master, there, slaves, copy, tick, 0), orders

    def slowest(infos: tuple[WorkerInfo, ...], there: frozenset[int]) -> int:
        return max(sorted(there), key=lambda k: (infos[k].seconds(batch_size), -k))

    def react(state: TickingState, event: Event) -> tuple[TickingState, Orders]:
        if isinstance(event, Leave):
            return _left(state, event), Orders()
        if isinstance(event, Join):
            return _joined(state, event.worker)
        if isinstance(event, Arrival):
            return _arrived(state, event)
        return state, Orders()

    def _arrived(state: TickingState, event: Arrival) -> tuple[TickingState, Orders]:
        k, ticks = event.worker, int(event.time / state.tick)
        copied = event.work.steps == 0
        leaves = k not in state.there or k == state.master
        op = "subtract" if leaves else "fetch+subtract" if copied else "push"
        words = [op, *["clear"] * state.clear, *["forget"] * (k in state.stale)]
        order = MergeOrder((k,), op="+".join(words), trips=1, ticks=ticks - state.ticks)
        if op == "fetch+subtract" and subtract == "swap":
            # touches nothing that another may write: no lock, and nothing to wait for
            words[0] = "fetch+keep"
            order = order._replace(op="+".join(words), trips=0, blocking=False)
        stale = state.stale - {k}
        state = state._replace(ticks=ticks, stale=stale, clear=False)
        if leaves:
            state = state._replace(working=state.working - {k})
            return state, Orders(merges=(order,))
        work = gradient if copied else state.copy
        return state, Orders(merges=(order,), dispatch=((k, work),))

    def _left(state: TickingState, event: Leave) -> TickingState:
        k = event.worker
        there = state.there - {k}
        state = state._replace(there=there)
        if k == state.master:
            master = slowest(state.infos, there) if there else None
            state = state._replace(master=master)
        elif event.lost:
            stale = (state.stale | state.working) - {k}
            state = state._replace(stale=stale, clear=True)
        if event.lost:
            state = state._replace(working=state.working - {k})
        return state

    def _joined(state: TickingState, k: int) -> tuple[TickingState, Orders]:
        state = state._replace(there=state.there | {k})
        if state.master is None:
            return state._replace(master=k), Orders()
        if k in state.working:  # it was stopped, and goes on when it arrives
            return state, Orders()
        state = state._replace(working=state.working | {k})
        return state, Orders(dispatch=((k, state.copy),))

    return Policy(init, react)
