"""MagmaDNN's policy: a master that steps by itself, and its slaves (host world)."""

from typing import NamedTuple

from hetjax.arguments import checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    EvaluationDue,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeOp,
    WorkerInfo,
)
from hetjax.schedule.types import Actions, Policy

SUBTRACT = ("before", "swap")
SHARE = 0.1  # default duration of a master's step and of a copy, in batch durations


class MagmaAsyncState(NamedTuple):
    """The master, the duration of its steps, and the number of steps counted."""

    roster: Roster
    infos: tuple[WorkerInfo, ...]
    master: int | None
    copy: LocalRound  # the timed copy of the model
    tick: float  # [s] of one step of the master
    server_steps: int  # that the merges so far have counted
    stale: frozenset[int] = frozenset()  # workers whose last gradient is not in g
    clear: bool = False  # whether g has the gradient of a lost worker


@checked
def magma_async(
    *,
    batch_size: float,
    server_step_seconds: float | None = None,
    copy_seconds: float | None = None,
    subtract: str = "before",
) -> Policy:
    """The slowest worker updates w continually; the others copy w and add gradients.

    A slave copies w, which takes `copy_seconds` and ends with a FETCH; it computes a
    gradient on a batch, adds it to the shared gradient g (PUSH), and copies again. The
    master makes one step every `server_step_seconds`. Its steps need no events: each
    merge states the number of steps since the previous merge. An extra merge right
    before each evaluation does the same, so that the evaluated model includes all steps
    up to then. Both durations default to a tenth of the master's seconds for a batch.
    Adding to g takes one transfer over the link, which serves as a lock; so does
    subtracting the slave's last gradient at the FETCH, with `subtract="before"`.

    When the master leaves, the slowest slave becomes the master. A worker that leaves
    or becomes the master subtracts its last gradient from g when it arrives. A worker
    that is lost cannot do that: g then starts again from zero (CLEAR), and the other
    workers' gradients that were in g are not subtracted a second time (FORGET). A
    worker that joins is a slave. Source: MagmaDNN, Algorithms 2 and 3;
    docs/algorithms F.3.
    """
    if subtract not in SUBTRACT:
        raise ValueError(f"subtract={subtract!r}: choose one of {SUBTRACT}")
    given = {"server_step_seconds": server_step_seconds, "copy_seconds": copy_seconds}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: pass a number above 0, or None")
    gradient = LocalRound(1, batch_size)

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[MagmaAsyncState, Actions]:
        del num_examples
        roster = Roster.of(infos)
        if len(roster.active) < 2:
            raise ValueError(
                "magma_async: a master and its slaves need 2 workers, not "
                f"{len(roster.active)}"
            )
        master = find_slowest(infos, roster.active)
        share = SHARE * infos[master].seconds(batch_size)
        copy = LocalRound(0, batch_size, seconds=copy_seconds or share)
        slaves = sorted(roster.active - {master})
        state = MagmaAsyncState(
            roster=roster.dispatched(slaves),
            infos=infos,
            master=master,
            copy=copy,
            tick=server_step_seconds or share,
            server_steps=0,
        )
        return state, Actions(dispatch=tuple((k, copy) for k in slaves))

    def find_slowest(infos: tuple[WorkerInfo, ...], active: frozenset[int]) -> int:
        return max(sorted(active), key=lambda k: (infos[k].seconds(batch_size), -k))

    def react(state: MagmaAsyncState, event: Event) -> tuple[MagmaAsyncState, Actions]:
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival():
                return handle_arrival(state, event)
            case EvaluationDue():
                return catch_up(state, event.time)
            case Join():
                return handle_join(state, event.worker)
            case Leave():
                return handle_leave(state, event), Actions()
        return state, Actions()

    def handle_arrival(
        state: MagmaAsyncState, event: Arrival
    ) -> tuple[MagmaAsyncState, Actions]:
        k, copied = event.worker, event.local_round.local_steps == 0
        ends = k not in state.roster.active or k == state.master
        op = MergeOp.STEP
        if ends:
            op |= MergeOp.SUBTRACT
        else:
            op |= MergeOp.FETCH | MergeOp.SUBTRACT if copied else MergeOp.PUSH
        if state.clear:
            op |= MergeOp.CLEAR
        if k in state.stale:
            op |= MergeOp.FORGET
        state, n = count_steps(state, event.time)
        merge = MergeAction((k,), op=op, transfers=1, server_steps=n)
        if copied and not ends and subtract == "swap":
            # it changes nothing that other workers write: no lock, no waiting
            op &= ~MergeOp.SUBTRACT
            merge = merge._replace(op=op, transfers=0, blocking=False)
        state = state._replace(stale=state.stale - {k}, clear=False)
        if ends:
            return state, Actions(merges=(merge,))
        state = state._replace(roster=state.roster.dispatched((k,)))
        local_round = gradient if copied else state.copy
        return state, Actions(merges=(merge,), dispatch=((k, local_round),))

    def catch_up(
        state: MagmaAsyncState, time: float
    ) -> tuple[MagmaAsyncState, Actions]:
        """Merge the master's steps since the last merge, before an evaluation.

        A new master that still computes its last round as a slave steps when it
        arrives.
        """
        master = state.master
        if master is None or master in state.roster.working:
            return state, Actions()
        state, n = count_steps(state, time)
        merge = MergeAction(
            (master,),
            op=MergeOp.STEP,
            server_steps=n,
            transfers=0,
            blocking=False,
        )
        return state, Actions(merges=(merge,) if n else ())

    def count_steps(state: MagmaAsyncState, time: float) -> tuple[MagmaAsyncState, int]:
        """Count the steps that the master made since the last merge."""
        server_steps = int(time / state.tick)
        n = server_steps - state.server_steps
        return state._replace(server_steps=server_steps), n

    def handle_join(state: MagmaAsyncState, k: int) -> tuple[MagmaAsyncState, Actions]:
        if state.master is None:
            return state._replace(master=k), Actions()
        if k in state.roster.working:  # it was stopped; it continues when it arrives
            return state, Actions()
        state = state._replace(roster=state.roster.dispatched((k,)))
        return state, Actions(dispatch=((k, state.copy),))

    def handle_leave(state: MagmaAsyncState, event: Leave) -> MagmaAsyncState:
        k, active = event.worker, state.roster.active
        if k == state.master:
            master = find_slowest(state.infos, active) if active else None
            return state._replace(master=master)
        if not event.lost:
            return state
        stale = (state.stale | state.roster.working) - {k}
        return state._replace(stale=stale, clear=True)

    return Policy(init, react)
