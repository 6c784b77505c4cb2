"""Downpour's policy: pushes and fetches at separate intervals (host world)."""

from typing import NamedTuple

from hetjax.arguments import checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    PUSH_FETCH,
    Arrival,
    Event,
    Join,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    WorkerInfo,
)
from hetjax.schedule.types import Actions, Policy

_EMPTY, _IN_FLIGHT, _DELIVERED = range(3)  # states of a worker's mailbox


class DownpourState(NamedTuple):
    """The tuples `local_steps` and `mailboxes` have one entry per worker."""

    roster: Roster
    local_steps: tuple[int, ...]  # done
    mailboxes: tuple[int, ...]  # not used with `blocking=True`


@checked
def downpour(
    *,
    batch_size: float,
    push_every: int = 1,
    fetch_every: int = 1,
    blocking: bool = False,
) -> Policy:
    """Pushes every `push_every` steps and fetches every `fetch_every`, without waiting.

    For steps s = 0, 1, ...: before step s a fetch is requested if n_fetch divides s
    (but not before the first step, since every worker starts at the server's model),
    and after step s the accrued gradients are pushed if n_push divides s. The requested
    model is the server's at the time of the request. It replaces the worker's model at
    the end of the first step by which it has arrived; until then no other model is
    requested. A message waits for the link, and its worker waits until the message can
    be sent.

    With `blocking=True` delivery is immediate: after t = 1, 2, ... steps a worker
    pushes if n_push divides t and fetches if n_fetch divides t, in one merge if both
    are due, and waits for it. A worker that joins begins at step 0, with an empty
    mailbox.

    In the paper `push_every` is n_push and `fetch_every` is n_fetch. Source: Downpour
    SGD; docs/algorithms G.5.
    """
    for name, value in {"push_every": push_every, "fetch_every": fetch_every}.items():
        if value < 1:
            raise ValueError(f"{name}={value}: pass a whole number of at least 1")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[DownpourState, Actions]:
        del num_examples
        n = len(infos)
        if not n:
            raise ValueError("downpour: there are no workers")
        state = DownpourState(Roster.of(infos), (0,) * n, (_EMPTY,) * n)
        return dispatch_to(state, tuple(sorted(state.roster.active)))

    def react(state: DownpourState, event: Event) -> tuple[DownpourState, Actions]:
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival() if blocking:
                return merge_and_wait(state, event)
            case Arrival():
                return send_and_continue(state, event.worker)
            case Join():
                return handle_join(state, event.worker)
            case Merged(op=op) if MergeOp.REQUEST in op:
                k = int(event.members[0])
                if state.mailboxes[k] == _IN_FLIGHT:  # else the worker was lost since
                    state = _with_mailbox(state, k, _DELIVERED)
        return state, Actions()

    def handle_join(state: DownpourState, k: int) -> tuple[DownpourState, Actions]:
        if k in state.roster.working:  # it was stopped; it continues when it arrives
            return state, Actions()
        state = _with_mailbox(_with_steps(state, k, 0), k, _EMPTY)
        return dispatch_to(state, (k,))

    def send_and_continue(
        state: DownpourState, k: int
    ) -> tuple[DownpourState, Actions]:
        step, mailbox = state.local_steps[k], state.mailboxes[k]
        op = MergeOp(0)
        if mailbox == _DELIVERED:
            op |= MergeOp.DELIVER
            mailbox = _EMPTY
        if step % push_every == 0:
            op |= MergeOp.PUSH
        if (step + 1) % fetch_every == 0 and mailbox == _EMPTY:
            op |= MergeOp.REQUEST
            mailbox = _IN_FLIGHT
        state = _with_mailbox(_with_steps(state, k, step + 1), k, mailbox)
        transfers = (MergeOp.PUSH in op) + (MergeOp.REQUEST in op)
        merge = MergeAction((k,), op=op, blocking=False, transfers=transfers)
        return dispatch_to(state, (k,), (merge,) if op else ())

    def merge_and_wait(
        state: DownpourState, event: Arrival
    ) -> tuple[DownpourState, Actions]:
        k = event.worker
        done = state.local_steps[k] + event.local_round.local_steps
        op = MergeOp(0)
        if done % push_every == 0:
            op |= MergeOp.PUSH
        if done % fetch_every == 0:
            op |= MergeOp.FETCH
        merge = MergeAction((k,), op=op, transfers=2 if op == PUSH_FETCH else 1)
        return dispatch_to(_with_steps(state, k, done), (k,), (merge,))

    def dispatch_to(
        state: DownpourState,
        workers: tuple[int, ...],
        merges: tuple[MergeAction, ...] = (),
    ) -> tuple[DownpourState, Actions]:
        """Request the merges, then dispatch to the active workers among these."""
        active = [k for k in workers if k in state.roster.active]
        dispatch = tuple((k, next_round(state, k)) for k in active)
        state = state._replace(roster=state.roster.dispatched(active))
        return state, Actions(merges, dispatch)

    def next_round(state: DownpourState, k: int) -> LocalRound:
        if not blocking:
            return LocalRound(1, batch_size)
        done = state.local_steps[k]  # the round ends at the next push or fetch
        steps = min(push_every - done % push_every, fetch_every - done % fetch_every)
        return LocalRound(steps, batch_size)

    return Policy(init, react)


def _with_mailbox(state: DownpourState, k: int, mailbox: int) -> DownpourState:
    mailboxes = (*state.mailboxes[:k], mailbox, *state.mailboxes[k + 1 :])
    return state._replace(mailboxes=mailboxes)


def _with_steps(state: DownpourState, k: int, steps: int) -> DownpourState:
    local_steps = (*state.local_steps[:k], steps, *state.local_steps[k + 1 :])
    return state._replace(local_steps=local_steps)
