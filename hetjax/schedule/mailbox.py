"""Downpour's policy: pushes and fetches that travel beside the work (host world)."""

from typing import NamedTuple

from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Work,
    WorkerInfo,
)
from hetjax.schedule.types import Orders, Policy

_NOTHING, _UNDER_WAY, _HERE = range(3)  # of a worker's mailbox


class MailboxState(NamedTuple):
    """One entry per worker."""

    steps: tuple[int, ...]  # done
    mail: tuple[int, ...]
    there: frozenset[int]
    working: frozenset[int]


def mailbox(*, batch_size: float, n_push: int = 1, n_fetch: int = 1) -> Policy:
    """Push every `n_push` steps, fetch every `n_fetch`, and never wait for either.

    Step by step (s = 0, 1, ...): before step s a fetch is requested if n_fetch divides
    s (not before the first: everybody starts at the server's model), and after step s
    the accrued gradients are pushed if n_push does. The model that was requested is the
    server's at that time; it replaces the worker's at the first end of a step where it
    is there. While one is under way no other is requested. A message waits for its
    link, and its worker until it can be sent. Who joins begins at step 0, without mail.
    Source: Downpour SGD; ALGORITHMS G.5.
    """
    for name, value in {"n_push": n_push, "n_fetch": n_fetch}.items():
        if not (value >= 1 and value == int(value)):
            raise ValueError(f"{name}={value}: give a whole number of at least 1")
    work = Work(1, batch_size)

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[MailboxState, Orders]:
        del num_examples
        n = len(infos)
        if not n:
            raise ValueError("mailbox: there are no workers")
        there = frozenset(w.index for w in infos if w.present)
        state = MailboxState((0,) * n, (_NOTHING,) * n, there, there)
        return state, Orders(dispatch=tuple((k, work) for k in sorted(there)))

    def react(state: MailboxState, event: Event) -> tuple[MailboxState, Orders]:
        if isinstance(event, Merged) and "request" in event.op:
            (k,) = event.members
            expected = state.mail[int(k)] == _UNDER_WAY  # not of who was lost since
            return (_with_mail(state, int(k), _HERE) if expected else state), Orders()
        if isinstance(event, Leave):
            there = state.there - {event.worker}
            gone = {event.worker} if event.lost else set()
            return state._replace(there=there, working=state.working - gone), Orders()
        if isinstance(event, Join):
            return _joined(state, event.worker)
        if not isinstance(event, Arrival):
            return state, Orders()
        k, step = event.worker, state.steps[event.worker]
        words, mail = [], state.mail[k]
        if mail == _HERE:
            words.append("deliver")
            mail = _NOTHING
        if step % n_push == 0:
            words.append("push")
        if (step + 1) % n_fetch == 0 and mail == _NOTHING:
            words.append("request")
            mail = _UNDER_WAY
        steps = (*state.steps[:k], step + 1, *state.steps[k + 1 :])
        state = _with_mail(state._replace(steps=steps), k, mail)
        goes_on = k in state.there
        if not goes_on:
            state = state._replace(working=state.working - {k})
        trips = ("push" in words) + ("request" in words)
        order = MergeOrder((k,), op="+".join(words), blocking=False, trips=trips)
        merges = (order,) if words else ()
        return state, Orders(merges, dispatch=((k, work),) if goes_on else ())

    def _joined(state: MailboxState, k: int) -> tuple[MailboxState, Orders]:
        state = state._replace(there=state.there | {k})
        if k in state.working:  # it was stopped, and goes on when it arrives
            return state, Orders()
        steps = (*state.steps[:k], 0, *state.steps[k + 1 :])
        state = state._replace(steps=steps, working=state.working | {k})
        return _with_mail(state, k, _NOTHING), Orders(dispatch=((k, work),))

    return Policy(init, react)


def _with_mail(state: MailboxState, k: int, mail: int) -> MailboxState:
    return state._replace(mail=(*state.mail[:k], mail, *state.mail[k + 1 :]))
