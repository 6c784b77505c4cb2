"""Traces: a recorded run is loaded from its file and replayed, bit for bit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import HEADER, carried_out, machine, recorded, replayed, scripted

from hetjax.machine import (
    Join,
    Leave,
    LocalRound,
    MergeAction,
    ScriptedFault,
    SimulatedClock,
    Timer,
)
from hetjax.schedule import (
    Actions,
    asynchronous,
    downpour,
    hierarchical,
    magma_async,
    mega_batch,
    random_partner,
    rounds,
)
from hetjax.tracing.recorder import Recorder
from hetjax.tracing.trace import MANY, Trace

POLICIES = {
    "rounds": rounds(batch_size=8, local_steps=2),
    "mega_batch": mega_batch(examples=64, batch_size=8),
    "free_running": asynchronous(batch_size=8),
    "partners": asynchronous(batch_size=8, partners=random_partner()),
    "groups": hierarchical(rounds(batch_size=8), sizes=(2, 1), every=2),
    "mailbox": downpour(batch_size=8, push_every=1, fetch_every=1),
    "ticking": magma_async(batch_size=8, copy_seconds=0.1, server_step_seconds=0.5),
}
FAULTS = (
    ScriptedFault(2.5, "slow", "w1", 3.0),
    ScriptedFault(3.3, "kill", "w2"),
    ScriptedFault(7.1, "join", "w2"),
)


# The same run again


@pytest.mark.parametrize("name", POLICIES)
def test_a_trace_replays_the_run(name, tmp_path):
    """The same events and actions, after a round trip through two files."""
    m = machine(1.0, 1.7, 0.6, noise=0.3, faults=FAULTS)
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


def test_recording_a_clock_does_not_change_it():
    """A recorded clock has the same events."""
    m = machine(1.0, 1.7, noise=0.3)
    plain = carried_out(POLICIES["rounds"], SimulatedClock(m, seed=0), num_bytes=8e8)
    run, _ = recorded(POLICIES["rounds"], m, count=30, num_bytes=8e8)
    assert [next(plain) for _ in range(30)] == run


def test_timers_and_membership_are_replayed():
    """w1 is stopped at once, and is started again when the timer is due."""
    policy = scripted(
        Actions(timers=(("later", 2.5),), stop=(1,), dispatch=((0, LocalRound(4, 8)),)),
        Actions(),
        Actions(start=(1,), dispatch=((1, LocalRound(1, 8)),)),
    )
    run, trace = recorded(policy, machine(1.0, 1.0))
    events = [event for event, _ in run[1:]]
    assert events[:3] == [Leave(1, 0.0), Timer("later", 2.5), Join(1, 2.5)]
    assert [e.time for e in events[3:]] == [3.5, 4.0]
    assert replayed(policy, trace)[:-1] == run


def test_the_header_holds_the_workers(tmp_path):
    m = machine(1.0, 2.0, faults=(ScriptedFault(3.0, "join", "w1"),))
    _, trace = recorded(POLICIES["rounds"], m, count=3)
    assert trace.workers == m.worker_infos(0.0)
    assert [w.present for w in trace.workers] == [True, False]
    assert {k: trace.header[k] for k in HEADER} == {
        **HEADER,
        "slowdowns": [1.0, 1.0],
    }


def test_a_line_holds_a_round_and_its_times():
    """A round of two steps on 8 examples, 0 s to 2 s, a merge, and another round."""
    policy = scripted(
        Actions(dispatch=((0, LocalRound(2, 8.2, 0.5)),)),
        Actions(
            merges=(MergeAction((0,), partners=(1,)),),
            dispatch=((0, LocalRound(2, 8.2, 0.5)),),
        ),
    )
    _, trace = recorded(
        policy,
        machine(1.0, 1.0),
        num_bytes=5,
        count=3,
        nonzeros=lambda local_round: [3, 4],
    )
    local_round = {
        "local_steps": 2,
        "batch_size": 8.2,
        "lr_scale": 0.5,
        "seconds": 0.0,
    }
    given = {"dispatch": 0, **local_round, "nonzeros": 7}
    merged = {
        "merge": "root",
        "members": [0],
        "op": "PUSH|FETCH",
        "partners": [1],
        "bytes": 5,
    }
    # two members' 5 bytes at 1e9 bytes/s, there and back
    finish = 2.0 + 2 * 0.25 + 2 * 2 * 5e-9
    assert trace.lines == [
        {**given, "start": 0.0},
        {"arrival": 0, "start": 0.0, "finish": 2.0},
        {**merged, "stamps": [2.0, 2.0, finish, finish]},
        {**given, "start": finish},
        {"merged": "root", "time": finish, "members": [0], "op": "PUSH|FETCH"},
    ]
    assert trace.end == {"stopped": "as asked"}


# The file


def test_the_file_is_up_to_date_in_a_pause(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER, path)
    recorder.dispatch(0, LocalRound(1, 8), [0])
    assert path.read_text() == ""  # nothing is written while time runs
    with recorder.paused():
        assert len(Trace.load(path).lines) == 1


def test_many_lines_do_not_wait_for_a_pause(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER, path)
    for _ in range(MANY // 2):
        recorder.dispatch(0, LocalRound(0, 8), [])
        recorder.next()
    assert len(Trace.load(path).lines) >= MANY - 1


def test_without_a_path_it_can_be_saved(tmp_path):
    recorder = Recorder(SimulatedClock(machine(1.0), seed=0), HEADER)
    recorder.dispatch(0, LocalRound(1, 8), [0])
    recorder.recording.end(stopped="")
    recorder.recording.close()
    recorder.recording.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == recorder.recording.load()


def test_a_recorder_passes_the_clock_through():
    m = machine(1.0, 1.0, faults=(ScriptedFault(3.0, "join", "w1"),))
    recorder = Recorder(SimulatedClock(m, seed=0), HEADER)
    recorder.begin()
    assert recorder.workers == m.worker_infos(0.0)
    assert (recorder.now, recorder.has_pending_joins) == (0.0, True)
    recorder.next()
    assert (recorder.now, recorder.has_pending_joins) == (3.0, False)
