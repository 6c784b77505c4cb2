"""Traces: a recorded run is loaded from its file and replayed, bit for bit."""

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import (
    HEADER,
    carried_out,
    in_trace,
    machine,
    recorded,
    replayed,
    scripted,
    writer,
)

from hetjax.engine.tape import StartRound
from hetjax.machine import (
    Arrival,
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
from hetjax.tracing.recorder import MAX_ENTRIES, Recorder
from hetjax.tracing.trace import MAX_WAITING, Trace

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


def undecided(policy):
    """The policy, which a replay must not call: decisions come from the trace."""

    def never(*given):
        raise AssertionError("a replay asked the policy")

    return policy._replace(init=never, react=never)


@pytest.mark.parametrize("name", POLICIES)
def test_a_trace_replays_the_run(name, tmp_path):
    """The same events and actions, after a round trip through two files."""
    m = machine(1.0, 1.7, 0.6, noise=0.3, faults=FAULTS)
    run, trace = recorded(POLICIES[name], m, path=tmp_path / "a.jsonl", count=60)
    assert len(run) == 60
    trace.save(tmp_path / "b.jsonl")
    copy = Trace.load(tmp_path / "b.jsonl")
    assert copy == trace == Trace.load(tmp_path / "a.jsonl")
    again = replayed(undecided(POLICIES[name]), copy)
    assert again == [*in_trace(run), ("as asked", None)]
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


def test_recording_does_not_change_a_run():
    m, clock = machine(1.0, 1.7, noise=0.3), SimulatedClock
    tape = writer(POLICIES["rounds"], clock(m, seed=0), num_bytes=8e8)
    run, _ = recorded(POLICIES["rounds"], m, count=30, num_bytes=8e8)
    assert carried_out(tape, count=30) == run


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
    assert replayed(undecided(policy), trace)[:-1] == in_trace(run)


def test_a_worker_is_started_amid_merges_and_rounds():
    """Started workers come first in a trace, and last among the actions."""
    step = LocalRound(1, 8)
    policy = scripted(
        Actions(dispatch=((0, step),), stop=(1,)),
        Actions(),
        Actions(merges=(MergeAction((0,)),), dispatch=((0, step),), start=(1,)),
        Actions(dispatch=((1, step),)),
    )
    run, trace = recorded(policy, machine(1.0, 1.0))
    kinds = [next(iter(line)) for line in trace.lines]
    assert kinds[2:8] == ["arrival", "start", "merge", "dispatch", "join", "dispatch"]
    assert replayed(undecided(policy), trace)[:-1] == in_trace(run)


def test_actions_that_a_generator_gives_are_read_once():
    start = Actions(start=(k for k in (1,)))
    policy = scripted(Actions(stop=(1,), timers=(("later", 2.0),)), Actions(), start)
    run, trace = recorded(policy, machine(1.0, 1.0))
    assert {"start": 1} in trace.lines
    assert [event for event, _ in run][-1] == Join(1, 2.0)


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
        "blocking": True,
        "transfers": 2,
        "server_steps": None,
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


def started(worker, local_steps=1):
    """The entry of a tape with which a round starts."""
    return StartRound(
        worker, LocalRound(local_steps, 8), (), [0] * local_steps, 0.1, 0, 0.0
    )


def test_the_file_is_up_to_date_when_it_is_asked_for(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(machine(1.0).worker_infos(0.0), HEADER, path)
    recorder.write(started(0))
    assert path.read_text() == ""  # nothing is written while time runs
    recorder.flush()
    assert len(Trace.load(path).lines) == 1


def test_many_lines_are_written_unasked(tmp_path):
    path = tmp_path / "t.jsonl"
    recorder = Recorder(machine(1.0).worker_infos(0.0), HEADER, path)
    for _ in range((MAX_WAITING + MAX_ENTRIES) // 2):
        recorder.write(started(0))
        recorder.write(Arrival(0, LocalRound(1, 8), 0.0, 1.0))
    assert len(Trace.load(path).lines) >= MAX_WAITING - 1


def test_without_a_path_it_can_be_saved(tmp_path):
    recorder = Recorder(machine(1.0).worker_infos(0.0), HEADER)
    recorder.write(started(0))
    recorder.end(stopped="")
    recorder.close()
    recorder.recording.save(tmp_path / "t.jsonl")
    assert Trace.load(tmp_path / "t.jsonl") == recorder.recording.load()


# Of an earlier version

SHORT = {
    "ROUND": '"local_steps": 1, "batch_size": 8.0, "lr_scale": 1.0, "seconds": 0.0, '
    '"nonzeros": 0',
    "ROOT": '"merge": "root"',
    "OP": '"op": "PUSH|FETCH"',
    "BYTES": '"bytes": 0.0',
}
VERSION_2 = """\
{"dispatch": 0, ROUND, "start": 0.0}
{"dispatch": 1, ROUND, "start": 0.0}
{"arrival": 0, "start": 0.0, "finish": 1.0}
{ROOT, "members": [0], OP, "partners": [1], "stamps": [1.0, 1.0, 1.5, 1.5], BYTES}
{"dispatch": 0, ROUND, "start": 1.5}
{"merged": "root", "time": 1.5, "members": [0], OP}
{"arrival": 1, "start": 0.0, "finish": 1.5}
{ROOT, "members": [1], OP, "partners": [0], "stamps": [1.5, 1.5, 2.0, 2.0], BYTES}
{"dispatch": 1, ROUND, "start": 2.0}
{"merged": "root", "time": 2.0, "members": [1], OP}
{"slow": 1, "time": 2.5, "factor": 3.0}
{"arrival": 0, "start": 1.5, "finish": 2.5}
{ROOT, "members": [0], OP, "partners": [1], "stamps": [2.5, 2.5, 3.0, 3.0], BYTES}
{"dispatch": 0, ROUND, "start": 3.0}
{"merged": "root", "time": 3.0, "members": [0], OP}
{"leave": 0, "time": 3.25, "lost": true, "why": "killed, as scripted"}
{"arrival": 1, "start": 2.0, "finish": 3.5}
{ROOT, "members": [1], OP, "partners": [], "stamps": [3.5, 3.5, 4.0, 4.0], BYTES}
{"dispatch": 1, ROUND, "start": 4.0}
{"join": 0, "time": 3.75, "why": "as scripted"}
{"dispatch": 0, ROUND, "start": 3.75}
{"merged": "root", "time": 4.0, "members": [1], OP}
{"arrival": 0, "start": 3.75, "finish": 4.75}
{ROOT, "members": [0], OP, "partners": [1], "stamps": [4.75, 4.75, 5.25, 5.25], BYTES}
{"dispatch": 0, ROUND, "start": 5.25}
{"end": {"stopped": "as asked"}}
"""
OF_VERSION_2 = machine(
    1.0,
    1.5,
    faults=(
        ScriptedFault(2.5, "slow", "w1", 3.0),
        ScriptedFault(3.25, "kill", "w0"),
        ScriptedFault(3.75, "join", "w0"),
    ),
)


def version_2():
    """The trace of a run that version 2 wrote, with its header."""
    workers = [info._asdict() for info in OF_VERSION_2.worker_infos(0.0)]
    header = {**HEADER, "slowdowns": [1.0, 1.0], "workers": workers}
    text = VERSION_2
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return Trace.read(io.StringIO(json.dumps({"trace": 2, **header}) + "\n" + text), "")


def test_a_trace_of_version_2_replays_the_run():
    """The policy decides again: the trace lacks some of its decisions."""
    policy, trace = POLICIES["partners"], version_2()
    run, now = recorded(policy, OF_VERSION_2, count=13)
    assert replayed(policy, trace) == [*run, ("as asked", None)]
    assert {type(e) for e, _ in run} >= {Arrival, Leave, Join}
    new = {"blocking", "transfers", "server_steps"}
    old = [{k: v for k, v in x.items() if k not in new} for x in now.lines]
    assert old == trace.lines


def test_another_policy_than_that_of_a_trace_of_version_2_is_refused():
    other = asynchronous(batch_size=8)
    with pytest.raises(ValueError, match=r", line 5: \(0,\) merge .* with \[\]\) here"):
        replayed(other, version_2())
