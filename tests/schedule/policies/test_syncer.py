"""Decoupled DiLoCo: a syncer asks for fragments; learners answer and never wait."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_driver import follow, infos, machine

from hetjax.engine.decisions import decisions
from hetjax.machine import Arrival, Join, Leave, Merged, SimulatedClock, Timer
from hetjax.schedule import ROOT, MergeAction, MergeOp, adaptive_grace, syncer
from hetjax.schedule.policies.grace_periods import MeasuredSeconds, grace_seconds

DONE = Merged(ROOT, 0.0, (), MergeOp.APPLY)


def run(policy, seconds, num_events, latency=0.0):
    clock = SimulatedClock(machine(*seconds, latency=latency), seed=0)
    return list(
        itertools.islice(decisions(policy, clock, num_examples=1000), num_events)
    )


def applied(events):
    """(time, part, workers) of each merge of answers."""
    answered, table = [], []
    for event, actions in events:
        for merge in actions.merges:
            if merge.op == MergeOp.ACCUMULATE:
                answered += merge.members
            if merge.op == MergeOp.APPLY:
                table.append((event.time, merge.part, sorted(answered)))
                answered = []
    return table


def test_answers_within_the_grace_period_count():
    """docs/algorithms L.9: answers after 3, 1 and 4.5 s; the quorum is there at 3 s."""
    policy = syncer(batch_size=8, local_steps=1, quorum=2, grace=2.0)
    events = run(policy, (3.0, 1.0, 100.0, 4.5), 20)
    assert applied(events)[0] == (5.0, "0", [0, 1, 3])


def test_a_report_exactly_at_the_end_counts_and_a_later_one_does_not():
    policy = syncer(batch_size=8, local_steps=1, quorum=1, grace=2.0)
    assert applied(run(policy, (1.0, 3.0, 100.0), 20))[0] == (3.0, "0", [0, 1])
    assert applied(run(policy, (1.0, 3.5, 100.0), 20))[0] == (3.0, "0", [0])


def test_a_quorum_of_all_waits_for_all_and_no_longer():
    policy = syncer(batch_size=8, local_steps=1, quorum=3, grace=50.0)
    assert applied(run(policy, (1.0, 2.0, 7.0), 60))[:2] == [
        (7.0, "0", [0, 1, 2]),
        (14.0, "0", [0, 1, 2]),
    ]


def test_learners_answer_once_take_what_is_new_and_go_on():
    policy = syncer(batch_size=2, local_steps=4, fragments=2, quorum=2, grace=9.0)
    events = (0, 0, 1, DONE, 1, 0, DONE, 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:2x2 1:2x2",
        "merge 0 accumulate part 0 0:2x2",
        "0:2x2",  # it has answered
        "merge 1 accumulate part 0 merge apply part 0 merge 1 fetch part 0 1:2x2",
        "",  # the next request is for fragment 1
        "merge 1 accumulate part 1 1:2x2",
        "merge 0 accumulate part 1 merge apply part 1 "
        "merge 0 fetch part 0 merge 0 fetch part 1 0:2x2",
        "",
        "merge 1 accumulate part 0 merge 1 fetch part 1 1:2x2",
    ]


def test_no_request_is_open_while_answers_are_merged():
    policy = syncer(batch_size=8, local_steps=1)
    events = (0, Timer("grace 0", 2.0), 0, 1, DONE, 1)
    assert follow(policy, infos(1.0, 1.0), events) == [
        "0:1x8 1:1x8",
        "merge 0 accumulate part 0 0:1x8",
        "merge apply part 0",
        "merge 0 fetch part 0 0:1x8",
        "merge 1 fetch part 0 1:1x8",  # late: its answer is not asked for
        "",
        "merge 1 accumulate part 0 1:1x8",
    ]


def weights(policy, workers, events):
    """{(worker, part): weights of its answers in turn}."""
    state, actions = policy.init(workers, 100)
    rounds, found = dict(actions.dispatch), {}
    for event in events:
        if isinstance(event, int):
            event = Arrival(event, rounds[event], 0.0, 1.0)
        state, actions = policy.react(state, event)
        rounds |= dict(actions.dispatch)
        for m in actions.merges:
            if m.op == MergeOp.ACCUMULATE:
                found.setdefault((m.members[0], m.part), []).append(m.weight)
    return found


def test_weights_count_steps_and_tokens_since_a_fragment_was_received():
    """Rounds of 2 steps and 10 examples: T^2 / n is 100/2, 400/4, ...

    Worker 0 answers request 0 after one round, and request 1 after two. It receives
    fragment 0 then, so that it has one round when request 2 asks for that.
    """
    policy = syncer(batch_size=5, local_steps=4, fragments=2)
    timers = [Timer(f"grace {j}", 2.0) for j in range(3)]
    events = (0, timers[0], DONE, 0, timers[1], DONE, 0, 1)
    assert weights(policy, infos(1.0, 1.0), events) == {
        (0, "0"): [50.0, 50.0],
        (0, "1"): [100.0],
        (1, "0"): [50.0],
    }


def test_a_learner_that_missed_a_merge_counts_all_its_work():
    policy = syncer(batch_size=5, local_steps=1)
    events = (0, Timer("grace 0", 2.0), 1, DONE, 1, 0)
    assert weights(policy, infos(1.0, 1.0), events) == {
        (0, "0"): [25.0, 50.0],  # 5^2 / 1; then 10^2 / 2 without having received it
        (1, "0"): [25.0],  # it came too late, and received the fragment then
    }


def test_the_fields_of_the_merges():
    policy = syncer(batch_size=8, local_steps=1)
    state, actions = policy.init(infos(1.0), 100)
    ((_, local_round),) = actions.dispatch
    arrival = Arrival(0, local_round, 0.0, 1.0)
    state, actions = policy.react(state, arrival)
    assert actions.merges == (
        MergeAction(
            (0,),
            op=MergeOp.ACCUMULATE,
            blocking=False,
            transfers=1,
            part="0",
            weight=64.0,
        ),
        MergeAction((), op=MergeOp.APPLY, transfers=0, part="0"),
        MergeAction((0,), op=MergeOp.FETCH, blocking=False, transfers=1, part="0"),
    )
    assert actions.dispatch == ((0, local_round),)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.1, 9.0), min_size=1, max_size=5),
    fragments=st.integers(1, 4),
    latency=st.sampled_from((0.0, 0.5)),
)
def test_fragments_take_turns_and_a_learner_has_each_version_once(
    seconds, fragments, latency
):
    policy = syncer(
        batch_size=8, local_steps=4, fragments=fragments, grace=adaptive_grace()
    )
    events = run(policy, seconds, 200, latency)
    parts = [part for _, part, _ in applied(events)]
    assert parts == [str(j % fragments) for j in range(len(parts))]
    assert len(parts) > 3
    for _, _, workers in applied(events):
        assert len(set(workers)) == len(workers) > 0
    done, taken = {}, {}
    for _, actions in events:
        for m in actions.merges:
            if m.op == MergeOp.APPLY:
                done[m.part] = done.get(m.part, 0) + 1
            if m.op == MergeOp.FETCH:
                new = done[m.part]
                assert taken.get((*m.members, m.part), 0) < new
                taken[*m.members, m.part] = new


# Workers that leave and join


def test_fewer_workers_than_the_quorum_all_have_to_answer():
    policy = syncer(batch_size=8, local_steps=1, quorum=3, grace=9.0)
    events = (0, Leave(2, 1.0, lost=True), 1, DONE, 1, Leave(0, 2.0, lost=True))
    assert follow(policy, infos(1.0, 1.0, 1.0), events) == [
        "0:1x8 1:1x8 2:1x8",
        "merge 0 accumulate part 0 0:1x8",
        "",
        "merge 1 accumulate part 0 merge apply part 0 merge 1 fetch part 0 1:1x8",
        "",
        "merge 1 accumulate part 0 1:1x8",
        "merge apply part 0",  # nobody else can answer any more
    ]


def test_a_worker_that_joins_has_the_present_model():
    policy = syncer(batch_size=8, local_steps=1)
    events = (
        *(0, 1, DONE, Leave(1, 1.0, lost=True)),
        *(0, DONE, Join(1, 2.0), 1),
    )
    assert follow(policy, infos(1.0, 1.0), events)[-3:] == [
        "",
        "1:1x8",
        "merge 1 accumulate part 0 1:1x8",
    ]


# Grace periods


def test_adaptive_grace():
    grace = adaptive_grace(factor=0.5, cap=2.0)
    assert grace_seconds(3.0, MeasuredSeconds()) == 3.0
    assert grace_seconds(grace, MeasuredSeconds()) == 0.0
    assert grace_seconds(grace, MeasuredSeconds(4.0, 1.0, 0.5)) == 1.25
    assert grace_seconds(grace, MeasuredSeconds(4.0, 3.0, 1.5)) == 0.0
    assert grace_seconds(grace, MeasuredSeconds(9.0, 1.0, 0.5)) == 2.0


def test_seconds_are_moving_averages():
    measured = MeasuredSeconds().with_new(0.25, overlap=4.0)
    assert measured == MeasuredSeconds(4.0)
    assert measured.with_new(0.25, overlap=8.0, merging=1.0) == (5.0, None, 1.0)


def test_an_adaptive_grace_period_follows_the_learners_rounds():
    """At 1 s the quorum took all of a learner's round, and nothing is left.

    At 1.5 s learners' rounds took 1 and 1.5 s, on average 1.25 s, and the quorums 1 and
    0.5 s, on average 0.75 s: half of what is left is 0.25 s.
    """
    grace = adaptive_grace(factor=0.5, share=0.5)
    policy = syncer(batch_size=8, local_steps=1, grace=grace)
    events = run(policy, (1.0, 1.5, 90.0), 12)
    assert [time for time, _, _ in applied(events)][:2] == [1.0, 1.75]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quorum": 4}, "quorum=4, but there are 3 workers: pass at most that numb"),
        ({"quorum": 0}, "quorum=0: pass a whole number of at least 1"),
        ({"fragments": 0}, "fragments=0: pass a whole number of at least 1"),
        ({"grace": -1.0}, "grace=-1.0: pass a number of at least 0 or a GracePeriod"),
        ({"grace": "auto"}, r"a GracePeriod, such as adaptive_grace\(\)"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        syncer(**({"batch_size": 8, "local_steps": 4} | settings)).init(
            infos(1.0, 1.0, 1.0), 100
        )


def test_refusals_of_grace():
    with pytest.raises(ValueError, match="factor=1.0: pass a number from 0 to below 1"):
        adaptive_grace(factor=1.0)
    with pytest.raises(ValueError, match="cap=-1: pass a number of at least 0"):
        adaptive_grace(cap=-1)
