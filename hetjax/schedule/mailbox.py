"""Downpour's policy: pushes and fetches that travel beside the work (host world)."""

from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, Merged, MergeOrder, Work, WorkerInfo
from hetjax.schedule.types import Orders, Policy

_NOTHING, _UNDER_WAY, _HERE = range(3)  # of a worker's mailbox


class MailboxState(NamedTuple):
    """One entry per worker."""

    steps: tuple[int, ...]  # done
    mail: tuple[int, ...]


def mailbox(*, batch_size: float, n_push: int = 1, n_fetch: int = 1) -> Policy:
    """Push every `n_push` steps, fetch every `n_fetch`, and never wait for either.

    Step by step (s = 0, 1, ...): before step s a fetch is requested if n_fetch divides
    s (not before the first: everybody starts at the server's model), and after step s
    the accrued gradients are pushed if n_push does. The model that was requested is the
    server's at that time; it replaces the worker's at the first end of a step where it
    is there. While one is under way no other is requested. A message waits for its
    link, and its worker until it can be sent. Source: Downpour SGD; ALGORITHMS G.5.
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
        state = MailboxState((0,) * n, (_NOTHING,) * n)
        return state, Orders(dispatch=tuple((k, work) for k in range(n)))

    def react(state: MailboxState, event: Event) -> tuple[MailboxState, Orders]:
        if isinstance(event, Merged) and "request" in event.op:
            (k,) = event.members
            return _with_mail(state, int(k), _HERE), Orders()
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
        trips = ("push" in words) + ("request" in words)
        order = MergeOrder((k,), op="+".join(words), blocking=False, trips=trips)
        return state, Orders((order,) if words else (), dispatch=((k, work),))

    return Policy(init, react)


def _with_mail(state: MailboxState, k: int, mail: int) -> MailboxState:
    return state._replace(mail=(*state.mail[:k], mail, *state.mail[k + 1 :]))
