"""Streaming DiLoCo: pieces of rounds that end at pushes and fetches of fragments."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, machine, timeline
from small_server import FragmentsRun

from hetjax.machine import Arrival, Join, Leave
from hetjax.schedule import MergeAction, MergeOp, rounds, streaming

BOTH = infos(1.0, 1.0)


def near(values, expected):
    np.testing.assert_allclose(values, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("delay", "workers_share", "center", "models"),
    [
        (0, 0.0, (0.358669, 0.187703), [(0.179334, 0.187703), (0.679334, 0.187703)]),
        (1, 0.5, (0.400231, 0.042234), [(0.538709, 0.489063), (0.398084, -1.042188)]),
    ],
)
def test_two_fragments(delay, workers_share, center, models):
    """The models after four steps, before the fifth."""
    policy = streaming(batch_size=1, local_steps=2, fragments=2, delay=delay)
    run = FragmentsRun(policy, (1.0, 1.0), workers_share).until(7)
    _, actions = next(run.tape)
    for merge in actions.merges:
        run.merge_all(merge)
    near(run.server.center, center)
    near(run.models, models)


def test_a_push_and_a_fetch_without_delay_are_one_merge_that_workers_wait_for():
    policy = streaming(batch_size=8, local_steps=6, fragments=2)
    table = timeline(policy, machine(1.0, 2.0, latency=0.25), 8)
    assert table == [
        "0:3x8 1:3x8",
        "3 w0 from 0",
        "6 w1 from 0 > merge 01 part 0 0:3x8 1:3x8",
        "6.5 merged 01",
        "9.5 w0 from 6.5",
        "12.5 w1 from 6.5 > merge 01 part 1 0:3x8 1:3x8",
        "13 merged 01",
        "16 w0 from 13",
        "19 w1 from 13 > merge 01 part 0 0:3x8 1:3x8",
    ]


def test_pieces_end_at_pushes_and_fetches():
    """d = 3, V = 4: pushes at 3, 6, 9, ..., and fetches at 7, 10, 13, ..."""
    policy = streaming(batch_size=8, local_steps=6, fragments=2, delay=4)
    assert follow(policy, infos(1.0), (0,) * 6) == [
        "0:3x8",
        "merge 0 push part 0 0:3x8",
        "merge 0 push part 1 0:1x8",
        "merge 0 fetch part 0 0:2x8",
        "merge 0 push part 0 0:1x8",
        "merge 0 fetch part 1 0:2x8",
        "merge 0 push part 1 0:1x8",
    ]


def test_a_fetch_and_a_push_may_fall_on_one_step():
    policy = streaming(batch_size=8, local_steps=3, fragments=3, delay=2)
    assert follow(policy, infos(1.0), (0,) * 4)[2:] == [
        "merge 0 push part 1 0:1x8",
        "merge 0 fetch part 0 merge 0 push part 2 0:1x8",
        "merge 0 fetch part 1 merge 0 push part 0 0:1x8",
    ]


def actions_of(policy, num_rounds, workers=BOTH):
    """The actions of whole rounds of all workers."""
    state, actions = policy.init(workers, 100)
    table = [actions]
    for _ in range(num_rounds):
        for k, local_round in actions.dispatch:
            state, last = policy.react(state, Arrival(k, local_round, 0.0, 1.0))
        actions = last
        table.append(actions)
    return table


def test_the_fields_of_the_merges():
    """With a delay nobody waits; there is one transfer each way."""
    policy = streaming(batch_size=8, local_steps=2, fragments=2, delay=1)
    fields = {"members": (0, 1), "blocking": False, "transfers": 1}
    assert actions_of(policy, 2)[2].merges == (
        MergeAction(op=MergeOp.FETCH, part="0", **fields),
        MergeAction(op=MergeOp.PUSH, part="1", **fields),
    )
    at_once = streaming(batch_size=8, local_steps=2, fragments=2)
    assert actions_of(at_once, 1)[1].merges == (MergeAction((0, 1), part="0"),)


def test_one_fragment_without_delay_merges_when_rounds_do():
    policy = streaming(batch_size=8, local_steps=5, fragments=1)
    whole = actions_of(rounds(batch_size=8, local_steps=5), 4)

    def unnamed(merges):
        return tuple(m._replace(part="") for m in merges)

    mine = [a._replace(merges=unnamed(a.merges)) for a in actions_of(policy, 4)]
    assert mine == whole
    assert policy.bulk_synchronous


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), steps=st.integers(1, 12), fragments=st.integers(1, 6))
def test_each_fragment_is_fetched_v_steps_after_its_push(data, steps, fragments):
    d = max(1, round(steps / fragments))
    delay = data.draw(st.integers(0, fragments * d - 1))
    policy = streaming(
        batch_size=8, local_steps=steps, fragments=fragments, delay=delay
    )
    t, length, pushed, fetched = 0, 0, [], []
    for actions in actions_of(policy, 40):
        t += length
        length = actions.dispatch[0][1].local_steps
        pushed += [(t, m.part) for m in actions.merges if MergeOp.PUSH in m.op]
        fetched += [(t, m.part) for m in actions.merges if MergeOp.FETCH in m.op]
    assert pushed == [(d * (n + 1), str(n % fragments)) for n in range(len(pushed))]
    assert fetched == [(s + delay, p) for s, p in pushed[: len(fetched)]]
    assert len(pushed) - len(fetched) <= delay / d + 1


def test_workers_leave_and_join_between_pieces():
    policy = streaming(batch_size=8, local_steps=2, fragments=2, delay=1)
    events = (0, Leave(1, 1.0, lost=True), Join(1, 2.0), 0, 0, 1)
    assert follow(policy, BOTH, events) == [
        "0:1x8 1:1x8",
        "",
        "merge 0 push part 0 0:1x8",
        "",
        "merge 0 fetch part 0 merge 0 push part 1 0:1x8 1:1x8",
        "",
        "merge 01 fetch part 1 merge 01 push part 0 0:1x8 1:1x8",
    ]


def test_after_all_are_lost_a_piece_begins_again():
    policy = streaming(batch_size=8, local_steps=4, fragments=2)
    events = (0, Leave(0, 1.0, lost=True), Join(0, 2.0), 0)
    assert follow(policy, infos(1.0), events) == [
        "0:2x8",
        "merge 0 part 0 0:2x8",
        "",
        "0:2x8",
        "merge 0 part 1 0:2x8",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fragments": 0}, "fragments=0: pass a whole number of at least 1"),
        ({"local_steps": 0}, "local_steps=0: pass a whole number of at least 1"),
        ({"delay": -1}, "delay=-1: pass a whole number of at least 0"),
        ({"delay": 6}, "delay=6, but each fragment merges every 6 steps: pass a del"),
    ],
)
def test_refusals(settings, message):
    given = {"batch_size": 8, "local_steps": 6, "fragments": 3} | settings
    with pytest.raises(ValueError, match=message):
        streaming(**given)
    with pytest.raises(ValueError, match="streaming: there are no workers"):
        streaming(batch_size=8, local_steps=6, fragments=3).init((), 100)
