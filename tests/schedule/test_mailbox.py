"""Downpour's policy: who pushes and asks for the model when. Tables."""

import pytest
from policy_driver import follow, infos, machine, timeline

from hetjax.machine import Arrival, Merged
from hetjax.schedule import ROOT, MergeOrder, mailbox

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"


def answered(worker, time=0.0):
    """The model that a worker asked for is there."""
    return Merged(ROOT, time, (worker,), "push+request")


def test_push_and_request_after_every_step():
    policy = mailbox(batch_size=8)
    events = (0, 1, answered(0), 0, 0, answered(0), answered(1), 1, 0)
    assert follow(policy, WORKERS, events) == [
        ALL,
        "merge 0 push+request 0:1x8",
        "merge 1 push+request 1:1x8",
        "",
        "merge 0 deliver+push+request 0:1x8",
        "merge 0 push 0:1x8",  # one is under way: none to deliver or ask for
        "",
        "",
        "merge 1 deliver+push+request 1:1x8",
        "merge 0 deliver+push+request 0:1x8",
    ]


def words(n_push, n_fetch, steps=12, answer=True):
    """What one worker says after steps 0, 1, ...; each request is answered at once."""
    policy = mailbox(batch_size=8, n_push=n_push, n_fetch=n_fetch)
    state, orders = policy.init(infos(1.0), 1000)
    said = []
    for _ in range(steps):
        ((worker, work),) = orders.dispatch
        state, orders = policy.react(state, Arrival(worker, work, 0.0, 1.0))
        said.append(orders.merges[0].op if orders.merges else "")
        if answer and "request" in said[-1]:
            state, _ = policy.react(state, answered(0))
    return said


@pytest.mark.parametrize(
    ("n_push", "n_fetch"), [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (5, 1), (1, 4)]
)
def test_periods(n_push, n_fetch):
    """After step s = 0, 1, ...: push where n_push divides s, request where n_fetch
    divides s + 1, and deliver one step after each request."""
    for step, op in enumerate(words(n_push, n_fetch)):
        expected = []
        if step and step % n_fetch == 0:
            expected.append("deliver")
        if step % n_push == 0:
            expected.append("push")
        if (step + 1) % n_fetch == 0:
            expected.append("request")
        assert op == "+".join(expected)


def test_a_model_that_never_comes_is_asked_for_once():
    said = words(n_push=3, n_fetch=2, steps=6, answer=False)
    assert said == ["push", "request", "", "push", "", ""]


def test_messages_travel_beside_the_work():
    """A trip takes 0.25 s of the link. Worker 1 pushes after its steps 0 and 2."""
    policy = mailbox(batch_size=8, n_push=2, n_fetch=3)
    assert timeline(policy, machine(1.0, 2.0, 3.0, latency=0.25), 16) == [
        ALL,
        "1 w0 from 0 > merge 0 push 0:1x8",
        "1.25 merged 0",
        "2 w0 from 1 > 0:1x8",
        "2 w1 from 0 > merge 1 push 1:1x8",
        "2.25 merged 1",
        "3 w0 from 2 > merge 0 push+request 0:1x8",
        "3 w2 from 0 > merge 2 push 2:1x8",
        "3.5 merged 0",
        "3.75 merged 2",
        "4 w0 from 3 > merge 0 deliver 0:1x8",
        "4 merged 0",
        "4 w1 from 2 > 1:1x8",
        "5 w0 from 4 > merge 0 push 0:1x8",
        "5.25 merged 0",
        "6 w0 from 5 > merge 0 request 0:1x8",
        "6 w1 from 4 > merge 1 push+request 1:1x8",
    ]


def test_a_slow_link_delays_who_has_something_to_send():
    """A trip takes 2 s, a step of worker 0 one second."""
    policy = mailbox(batch_size=8, n_push=3, n_fetch=2)
    assert timeline(policy, machine(1.0, 8.0, latency=2.0), 14) == [
        "0:1x8 1:1x8",
        "1 w0 from 0 > merge 0 push 0:1x8",  # until 3
        "2 w0 from 1 > merge 0 request 0:1x8",  # from 3 to 5
        "3 merged 0",
        "4 w0 from 3 > 0:1x8",  # nothing to send; the request is under way
        "5 merged 0",
        "5 w0 from 4 > merge 0 deliver+push+request 0:1x8",  # from 5 to 9
        "6 w0 from 5 > 0:1x8",
        "7 w0 from 6 > 0:1x8",
        "8 w0 from 7 > merge 0 push 0:1x8",  # from 9 to 11
        "8 w1 from 0 > merge 1 push 1:1x8",  # from 11 to 13
        "9 merged 0",
        "10 w0 from 9 > merge 0 deliver+request 0:1x8",  # from 13 on
        "11 merged 0",
        "13 merged 1",
    ]


def test_a_model_that_is_here_waits_for_nobody_s_message():
    """At 3 s worker 0 takes what it asked for at 2 s, while 1's push is on the link."""
    policy = mailbox(batch_size=8, n_push=3, n_fetch=2)
    table = timeline(policy, machine(1.0, 2.75, latency=0.5), 9)
    assert table[-5:] == [
        "2.75 w1 from 0 > merge 1 push 1:1x8",  # until 3.25
        "3 w0 from 2 > merge 0 deliver 0:1x8",
        "3 merged 0",
        "3.25 merged 1",
        "4 w0 from 3 > merge 0 push+request 0:1x8",
    ]


@pytest.mark.parametrize(
    ("n_push", "n_fetch", "op", "trips"),
    [(1, 1, "push+request", 2), (1, 2, "push", 1)],
)
def test_a_trip_for_each_message(n_push, n_fetch, op, trips):
    policy = mailbox(batch_size=8, n_push=n_push, n_fetch=n_fetch)
    state, orders = policy.init(WORKERS, 1000)
    order = MergeOrder((0,), op=op, blocking=False, trips=trips)
    _, orders = policy.react(state, Arrival(0, orders.dispatch[0][1], 0.0, 1.0))
    assert orders.merges == (order,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_push": 0}, "n_push=0: give a whole number of at least 1"),
        ({"n_fetch": 1.5}, "n_fetch=1.5: give a whole number"),
        ({"n_fetch": float("nan")}, "n_fetch=nan: give a whole number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        mailbox(batch_size=8, **settings)


def test_no_workers():
    with pytest.raises(ValueError, match="mailbox: there are no workers"):
        mailbox(batch_size=8).init((), 1000)
