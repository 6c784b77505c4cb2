"""MagmaDNN's policy: a master that steps on its own, and slaves (host world)."""

from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, MergeOrder, Work, WorkerInfo
from hetjax.schedule.types import Orders, Policy

SUBTRACT = ("before", "swap")
SHARE = 0.1  # of a batch's seconds: a tick's and a copy's, where none is given


class TickingState(NamedTuple):
    """What the policy found, and how far the master is."""

    copy: Work  # the timed copy of the model
    tick: float  # [s] of one step of the master
    ticks: int  # that merges know of


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
    fetch where `subtract="before"`. Source: MagmaDNN, Algorithms 2 and 3; ALGORITHMS
    F.3.
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
        if len(infos) < 2:
            raise ValueError(
                f"ticking: a master and its slaves need 2 workers, not {len(infos)}"
            )
        master = max(infos, key=lambda w: (w.seconds(batch_size), -w.index))
        share = SHARE * master.seconds(batch_size)
        copy = Work(0, batch_size, seconds=copy_seconds or share)
        slaves = [w.index for w in infos if w is not master]
        orders = Orders(dispatch=tuple((k, copy) for k in slaves))
        return TickingState(copy, tick_seconds or share, 0), orders

    def react(state: TickingState, event: Event) -> tuple[TickingState, Orders]:
        if not isinstance(event, Arrival):
            return state, Orders()
        k, ticks = event.worker, int(event.time / state.tick)
        copied = event.work.steps == 0
        order = MergeOrder(
            (k,),
            op="fetch+subtract" if copied else "push",
            trips=1,
            ticks=ticks - state.ticks,
        )
        if copied and subtract == "swap":
            # touches nothing that another may write: no lock, and nothing to wait for
            order = order._replace(op="fetch+keep", trips=0, blocking=False)
        work = gradient if copied else state.copy
        orders = Orders(merges=(order,), dispatch=((k, work),))
        return state._replace(ticks=ticks), orders

    return Policy(init, react)
