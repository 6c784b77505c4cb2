"""Traces: a recorded run comes back from its file, and is played again, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import HEADER, carried_out, machine, recorded, replayed, scripted

from hetjax.machine import (
    Alarm,
    Incident,
    Join,
    Leave,
    MergeOrder,
    Recorder,
    SimulatedClock,
    Trace,
    Work,
)
from hetjax.machine.trace import MANY
from hetjax.schedule import (
    Orders,
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
    "groups": groups(rounds(batch_size=8), sizes=(2, 1), every=2),
    "mailbox": mailbox(batch_size=8, n_push=1, n_fetch=1),
    "ticking": ticking(batch_size=8, copy_seconds=0.1, tick_seconds=0.5),
}
INCIDENTS = (
    Incident(2.5, "slow", "w1", 3.0),
    Incident(3.3, "kill", "w2"),
    Incident(7.1, "join", "w2"),
)


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
    assert {k: trace.header[k] for k in HEADER} == {
        **HEADER,
        "slowdowns": [1.0, 1.0],
    }


def test_a_line_says_what_was_given_and_when():
    """A work of two steps on 8 examples from 0 s to 2 s, a merge, and such a work."""
    policy = scripted(
        Orders(dispatch=((0, Work(2, 8.2, 0.5)),)),
        Orders(
            merges=(MergeOrder((0,), passive=(1,)),),
            dispatch=((0, Work(2, 8.2, 0.5)),),
        ),
    )
    _, trace = recorded(
        policy, machine(1.0, 1.0), num_bytes=5, count=3, nonzeros=lambda work: [3, 4]
    )
    work = {"steps": 2, "batch_size": 8.2, "rate": 0.5, "seconds": 0.0}
    given = {"dispatch": 0, **work, "nonzeros": 7}
    merged = {"merge": "root", "members": [0], "op": "", "passive": [1], "bytes": 5}
    # two members' 5 bytes at 1e9 bytes/s, there and back
    finish = 2.0 + 2 * 0.25 + 2 * 2 * 5e-9
    assert trace.lines == [
        {**given, "start": 0.0},
        {"arrival": 0, "start": 0.0, "finish": 2.0},
        {**merged, "stamps": [2.0, 2.0, finish, finish]},
        {**given, "start": finish},
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
    recorder.ends({"stopped": ""})
    recorder.close()
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
