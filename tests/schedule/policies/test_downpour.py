"""Downpour's policy: when workers push and request the model. Tables."""

import pytest
from policy_driver import ByHand, follow, infos, machine, spelled, timeline

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, Join, Leave, Merged
from hetjax.schedule import ROOT, MergeAction, MergeOp, asynchronous, downpour

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"


def answered(worker, time=0.0):
    """The event that the model requested by a worker has arrived."""
    return Merged(ROOT, time, (worker,), MergeOp.PUSH | MergeOp.REQUEST)


def test_push_and_request_after_every_step():
    policy = downpour(batch_size=8)
    events = (0, 1, answered(0), 0, 0, answered(0), answered(1), 1, 0)
    assert follow(policy, WORKERS, events) == [
        ALL,
        "merge 0 push+request 0:1x8",
        "merge 1 push+request 1:1x8",
        "",
        "merge 0 deliver+push+request 0:1x8",
        "merge 0 push 0:1x8",  # a request is in progress: nothing to deliver or request
        "",
        "",
        "merge 1 deliver+push+request 1:1x8",
        "merge 0 deliver+push+request 0:1x8",
    ]


def words(push_every, fetch_every, local_steps=12, answer=True):
    """The operations after steps 0, 1, ...; each request is answered at once."""
    policy = downpour(batch_size=8, push_every=push_every, fetch_every=fetch_every)
    said = []

    def events():
        for _ in range(local_steps):
            yield 0
            if answer and "request" in said[-1]:
                yield answered(0)

    clock = ByHand(infos(1.0), events())
    for event, actions in decisions(policy, clock, num_examples=1000):
        if isinstance(event, Arrival):
            said.append(spelled(actions.merges[0].op) if actions.merges else "")
    return said


@pytest.mark.parametrize(
    ("push_every", "fetch_every"),
    [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2), (5, 1), (1, 4)],
)
def test_periods(push_every, fetch_every):
    """After step s = 0, 1, ...: push if n_push divides s, request if n_fetch divides
    s + 1, and deliver one step after each request."""
    for step, op in enumerate(words(push_every, fetch_every)):
        expected = []
        if step and step % fetch_every == 0:
            expected.append("deliver")
        if step % push_every == 0:
            expected.append("push")
        if (step + 1) % fetch_every == 0:
            expected.append("request")
        assert op == "+".join(expected)


def test_a_model_that_never_comes_is_requested_once():
    said = words(push_every=3, fetch_every=2, local_steps=6, answer=False)
    assert said == ["push", "request", "", "push", "", ""]


def test_messages_overlap_with_steps():
    """A transfer takes 0.25 s of the link. Worker 1 pushes after its steps 0 and 2."""
    policy = downpour(batch_size=8, push_every=2, fetch_every=3)
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


def test_a_slow_link_delays_workers_that_send():
    """A transfer takes 2 s, a step of worker 0 one second."""
    policy = downpour(batch_size=8, push_every=3, fetch_every=2)
    assert timeline(policy, machine(1.0, 8.0, latency=2.0), 14) == [
        "0:1x8 1:1x8",
        "1 w0 from 0 > merge 0 push 0:1x8",  # until 3
        "2 w0 from 1 > merge 0 request 0:1x8",  # from 3 to 5
        "3 merged 0",
        "4 w0 from 3 > 0:1x8",  # nothing to send; the request is in progress
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


def test_an_arrived_model_does_not_wait_for_others_messages():
    """At 3 s worker 0 takes the model requested at 2 s, during 1's push on the link."""
    policy = downpour(batch_size=8, push_every=3, fetch_every=2)
    table = timeline(policy, machine(1.0, 2.75, latency=0.5), 9)
    assert table[-5:] == [
        "2.75 w1 from 0 > merge 1 push 1:1x8",  # until 3.25
        "3 w0 from 2 > merge 0 deliver 0:1x8",
        "3 merged 0",
        "3.25 merged 1",
        "4 w0 from 3 > merge 0 push+request 0:1x8",
    ]


@pytest.mark.parametrize(
    ("push_every", "fetch_every", "op", "transfers"),
    [(1, 1, MergeOp.PUSH | MergeOp.REQUEST, 2), (1, 2, MergeOp.PUSH, 1)],
)
def test_one_transfer_per_message(push_every, fetch_every, op, transfers):
    policy = downpour(batch_size=8, push_every=push_every, fetch_every=fetch_every)
    state, actions = policy.init(WORKERS, 1000)
    action = MergeAction((0,), op=op, blocking=False, transfers=transfers)
    _, actions = policy.react(state, Arrival(0, actions.dispatch[0][1], 0.0, 1.0))
    assert actions.merges == (action,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"push_every": 0}, "push_every=0: pass a whole number of at least 1"),
        ({"fetch_every": 1.5}, "fetch_every=1.5: pass a whole number"),
        ({"fetch_every": float("nan")}, "fetch_every=nan: pass a whole number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        downpour(batch_size=8, **settings)


# Immediate delivery


def test_a_waiting_worker_pushes_and_fetches_at_its_own_periods():
    """A push after steps 2, 4, 6, a fetch after 3 and 6. A transfer takes 0.25 s."""
    policy = downpour(batch_size=8, push_every=2, fetch_every=3, blocking=True)
    assert timeline(policy, machine(1.0, latency=0.25), 9) == [
        "0:2x8",
        "2 w0 from 0 > merge 0 push 0:1x8",
        "2.25 merged 0",
        "3.25 w0 from 2.25 > merge 0 fetch 0:1x8",
        "3.5 merged 0",
        "4.5 w0 from 3.5 > merge 0 push 0:2x8",
        "4.75 merged 0",
        "6.75 w0 from 4.75 > merge 0 0:2x8",  # both
        "7.25 merged 0",
        "9.25 w0 from 7.25 > merge 0 push 0:1x8",
    ]


@pytest.mark.parametrize("every", [1, 3])
def test_equal_periods_are_those_of_a_worker_that_merges_alone(every):
    """A push and a fetch after each round of that many steps."""
    m = machine(1.0, 2.5, 3.0, latency=0.25)
    waits = downpour(batch_size=8, push_every=every, fetch_every=every, blocking=True)
    alone = asynchronous(batch_size=8, local_steps=every)
    assert timeline(waits, m, 60) == timeline(alone, m, 60)


def test_a_waiting_worker_that_was_lost_begins_at_its_first_step():
    policy = downpour(batch_size=8, push_every=2, fetch_every=3, blocking=True)
    events = (0, Leave(0, 1.0, lost=True), Join(0, 2.0), 0, Leave(0, 3.0), 0)
    assert follow(policy, infos(1.0), events) == [
        "0:2x8",
        "merge 0 push 0:1x8",
        "",
        "0:2x8",
        "merge 0 push 0:1x8",
        "",
        "merge 0 fetch",  # it was stopped: it finished its round
    ]


def test_no_workers():
    with pytest.raises(ValueError, match="downpour: there are no workers"):
        downpour(batch_size=8).init((), 1000)
