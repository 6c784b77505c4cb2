"""Traces: a recorded run comes back from its file, and is played again, bit for bit."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import HEADER, carried_out, machine, recorded, replayed

from hetjax.machine import (
    Alarm,
    Incident,
    Join,
    Leave,
    MergeOrder,
    RecordedClock,
    Recorder,
    RunEnded,
    SimulatedClock,
    Trace,
    Work,
)
from hetjax.machine.trace import MANY
from hetjax.schedule import (
    Orders,
    Policy,
    free_running,
    groups,
    mailbox,
    mega_batch,
    random_partner,
    rounds,
    ticking,
)

POLICIES = {
    "rounds": rounds(batch_size=8, steps=2),
    "mega_batch": mega_batch(examples=64, b_max=8),
    "free_running": free_running(batch_size=8),
    "partners": free_running(batch_size=8, partners=random_partner()),
    "groups": groups(rounds(batch_size=8), sizes=2, every=2),
    "mailbox": mailbox(batch_size=8, n_push=1, n_fetch=1),
    "ticking": ticking(batch_size=8, copy_seconds=0.1, tick_seconds=0.5),
}
INCIDENTS = (
    Incident(2.5, "slow", "w1", 3.0),
    Incident(3.3, "kill", "w2"),
    Incident(7.1, "join", "w2"),
)


def scripted(*answers):
    """Gives these orders, one after the other, whatever happens; then none."""

    def orders(k):
        return answers[k] if k < len(answers) else Orders()

    return Policy(lambda infos, n: (1, orders(0)), lambda k, event: (k + 1, orders(k)))


# The same run again


@pytest.mark.parametrize("name", POLICIES)
def test_a_trace_plays_the_run_again(name, tmp_path):
    """The same events and the same orders, after a way through two files."""
    m = machine(1.0, 1.7, 0.6, noise=0.3, incidents=INCIDENTS)
    run, trace = recorded(POLICIES[name], m, path=tmp_path / "a.jsonl", count=60)
    assert len(run) == 60
    trace.save(tmp_path / "b.jsonl")
    copy = Trace.load(tmp_path / "b.jsonl")
    assert copy == trace == Trace.load(tmp_path / "a.jsonl")
    again = replayed(POLICIES[name], copy)
    assert again == [*run, ("as asked", None)]
    assert {type(e) for e, _ in run} >= {Leave, Join}


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=4),
    noise=st.floats(0.0, 1.0),
    seed=st.integers(0, 9),
)
def test_times_come_back_bit_for_bit(seconds, noise, seed):
    m = machine(*seconds, noise=noise, seed=seed)
    run, trace = recorded(POLICIES["free_running"], m, count=20)
    assert replayed(POLICIES["free_running"], trace)[:-1] == run


def test_a_recorded_clock_does_what_the_clock_does():
    """Recording changes nothing: who is recorded has the same events."""
    m = machine(1.0, 1.7, noise=0.3)
    plain = carried_out(POLICIES["rounds"], SimulatedClock(m, seed=0), num_bytes=8e8)
    run, _ = recorded(POLICIES["rounds"], m, count=30, num_bytes=8e8)
    assert [next(plain) for _ in range(30)] == run


def test_alarms_and_staff_come_back():
    """w1 is stopped at once, and comes back with the alarm."""
    policy = scripted(
        Orders(alarms=(("later", 2.5),), stop=(1,), dispatch=((0, Work(4, 8)),)),
        Orders(),
        Orders(start=(1,), dispatch=((1, Work(1, 8)),)),
    )
    run, trace = recorded(policy, machine(1.0, 1.0))
    events = [event for event, _ in run[1:]]
    assert events[:3] == [Leave(1, 0.0), Alarm("later", 2.5), Join(1, 2.5)]
    assert [e.time for e in events[3:]] == [3.5, 4.0]
    assert replayed(policy, trace)[:-1] == run


def test_the_header_holds_the_workers(tmp_path):
    m = machine(1.0, 2.0, incidents=(Incident(3.0, "join", "w1"),))
    _, trace = recorded(POLICIES["rounds"], m, count=3)
    assert trace.workers == m.worker_infos(0.0)
    assert [w.present for w in trace.workers] == [True, False]
    assert {k: trace.header[k] for k in HEADER} == HEADER


def test_a_line_says_what_was_given_and_when():
    """A work of two steps on 8 examples from 0 s to 2 s, then a merge of 0.5 s."""
    policy = scripted(
        Orders(dispatch=((0, Work(2, 8.2, 0.5)),)),
        Orders(merges=(MergeOrder((0,), passive=(1,)),)),
    )
    _, trace = recorded(
        policy, machine(1.0, 1.0), num_bytes=5, nonzeros=lambda work: [3, 4]
    )
    work = {"steps": 2, "batch_size": 8.2, "rate": 0.5, "seconds": 0.0}
    given = {"dispatch": 0, **work, "nonzeros": 7, "start": 0.0}
    merged = {"merge": "root", "members": [0], "op": "", "passive": [1], "bytes": 5}
    # two members' 5 bytes at 1e9 bytes/s, there and back
    finish = 2.0 + 2 * 0.25 + 2 * 2 * 5e-9
    assert trace.lines == [
        given,
        {"arrival": 0, "start": 0.0, "finish": 2.0},
        {**merged, "stamps": [2.0, 2.0, finish, finish]},
        {"merged": "root", "time": finish, "members": [0], "op": ""},
    ]
    assert trace.end == {"stopped": "as asked"}


# The file


def test_the_file_is_up_to_date_in_a_pause(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER, path)
    recorder.dispatch(0, Work(1, 8), [0])
    assert path.read_text() == ""  # nothing is written while time runs
    with recorder.paused():
        assert len(Trace.load(path).lines) == 1


def test_many_lines_do_not_wait_for_a_pause(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER, path)
    for _ in range(MANY // 2):
        recorder.dispatch(0, Work(0, 8), [])
        recorder.next()
    assert len(Trace.load(path).lines) >= MANY - 1


def test_without_a_path_it_can_be_saved(tmp_path):
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER)
    recorder.dispatch(0, Work(1, 8), [0])
    recorder.close({"stopped": ""})
    recorder.recording.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == recorder.recording.load()


def test_the_clock_shows_through():
    m = machine(1.0, 1.0, incidents=(Incident(3.0, "join", "w1"),))
    recorder = Recorder(SimulatedClock(m, seed=0), HEADER)
    recorder.begin()
    assert recorder.workers == m.worker_infos(0.0)
    assert (recorder.now, recorder.expects) == (0.0, True)
    recorder.next()
    assert (recorder.now, recorder.expects) == (3.0, False)


# Damage


@pytest.fixture
def damaged(tmp_path):
    """Loads a trace of a few lines after a change of their texts."""

    def load(change):
        path = tmp_path / "t.jsonl"
        recorded(POLICIES["rounds"], machine(1.0, 2.0), path=path, count=8)
        lines = path.read_text().splitlines()
        change(lines)
        path.write_text("\n".join(lines) + "\n" if lines else "")
        return Trace.load(path)

    return load


def _set(lines, index, text):
    lines[index] = text


def _header(lines, **changes):
    lines[0] = json.dumps(json.loads(lines[0]) | changes)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r", line 3: damaged: Expecting", lambda ls: _set(ls, 2, ls[2][:-9] + "x")),
        (r", line 3: damaged: no JSON object", lambda ls: _set(ls, 2, "[1]")),
        (r", line 1: damaged: Expecting", lambda ls: _set(ls, 0, "no trace")),
        (r', line 3: unknown: {"colour": "red"}', lambda ls: _set(ls, 2, RED)),
        (r", line 3: unknown: {\"end\"", lambda ls: _set(ls, 2, '{"end": {}}')),
        (r", line 1: this is no trace of hetjax: trace, str", lambda ls: ls.pop(0)),
        (r", line 1: a trace of version 2; .* version 1", lambda ls: _header(ls, trace=2)),
        (r": an empty file is no trace", lambda ls: ls.clear()),
    ],
)  # fmt: skip
def test_damage_is_named_with_file_and_line(damaged, message, change):
    with pytest.raises(ValueError, match=r"t\.jsonl" + message):
        damaged(change)


RED = '{"colour": "red"}'


@pytest.mark.parametrize("field", ["strategy", "seed", "workers", "instants", "forms"])
def test_a_header_without_a_field_is_refused(damaged, field):
    def change(lines):
        header = json.loads(lines[0])
        del header[field]
        lines[0] = json.dumps(header)

    with pytest.raises(ValueError, match=f"line 1: this is no .*: {field} missing"):
        damaged(change)


def test_a_trace_that_was_cut_off_plays_as_far_as_it_goes(damaged):
    whole = replayed(POLICIES["rounds"], damaged(lambda lines: None))
    trace = damaged(lambda lines: lines.__delitem__(slice(-3, None)))
    assert trace.end == {}
    *part, last = replayed(POLICIES["rounds"], trace)
    assert last == ("the trace was cut off here", None)
    assert part == whole[: len(part)]


def test_a_run_ends_why_it_ended():
    _, trace = recorded(POLICIES["rounds"], machine(1.0), count=2)
    assert trace.end == {"stopped": "as asked"}
    assert replayed(POLICIES["rounds"], trace)[-1] == ("as asked", None)


# Another run than the recorded one

STEP = Work(1, 8)


def clock_behind(*orders, count=2):
    """The clock of the trace of these orders."""
    _, trace = recorded(scripted(*orders), machine(1.0, 1.0), count=count)
    return RecordedClock(trace)


GIVEN = Orders(dispatch=((0, STEP),))
MERGED = Orders(merges=(MergeOrder((0, 1), op="push"),))


def merge(clock, *members, **changes):
    order = MergeOrder(members, **({"op": "push"} | changes))
    return clock.merged(order, clock.merge(order, 0.0))


@pytest.mark.parametrize(
    ("orders", "message", "act"),
    [
        (GIVEN, "gives worker 1 .* where worker 0 was", lambda c: give(c, 1, STEP)),
        (GIVEN, r"gives worker 0 Work\(steps=2", lambda c: give(c, 0, Work(2, 8))),
        (GIVEN, r"batch_size=8.5", lambda c: give(c, 0, Work(1, 8.5))),
        (GIVEN, r"rate=0.5", lambda c: give(c, 0, Work(1, 8, 0.5))),
        (GIVEN, "orders a merge at root, which the", lambda c: merge(c, 0, 1)),
        (GIVEN, "waits, where the recorded run went on", lambda c: c.next()),
        (MERGED, "orders work for worker 0, which the", lambda c: give(c, 0, STEP)),
        (MERGED, r"merges \(1, 0\) at .* where \[0, 1\]", lambda c: merge(c, 1, 0)),
        (MERGED, "at 'a' .* merged at 'root'", lambda c: merge(c, 0, 1, node="a")),
        (MERGED, r"op '' .*\(op 'push'\)", lambda c: merge(c, 0, 1, op="")),
        (MERGED, "waits, where the recorded run went on", lambda c: c.next()),
    ],
)
def test_another_order_is_refused(orders, message, act):
    with pytest.raises(ValueError, match=r"trace of sync, .*the strategy .*" + message):
        act(clock_behind(orders))


def give(clock, worker, work):
    return clock.dispatch(worker, work, [0] * work.steps)


def test_other_partners_are_refused():
    """Passive members are told the merge's result: they are part of the order."""
    orders = Orders(merges=(MergeOrder((0,), passive=(1,)),))
    clock = clock_behind(orders)
    with pytest.raises(ValueError, match="it is not the one that was recorded"):
        merge(clock, 0, op="")


@pytest.mark.parametrize(
    ("orders", "act"),
    [
        (GIVEN, lambda c: give(c, 1, STEP)),
        (GIVEN, lambda c: merge(c, 0)),
        (MERGED, lambda c: merge(c, 1, 0)),
        (MERGED, lambda c: c.next()),
    ],
)
def test_the_line_that_differs_is_named(orders, act):
    """The header is line 1, what is ordered first is line 2."""
    with pytest.raises(ValueError, match="trace of sync, line 2:"):
        act(clock_behind(orders))


def test_orders_behind_the_last_line_end_the_run():
    clock = clock_behind(GIVEN)
    give(clock, 0, STEP)
    assert clock.next().worker == 0
    with pytest.raises(RunEnded, match="as asked"):
        give(clock, 0, STEP)
