"""Error messages for damaged traces, and for runs that differ from the recorded one."""

import json

import pytest
from recorded_runs import machine, recorded, replayed, scripted

from hetjax.machine import LocalRound, MergeAction, MergeRequest, RunEnded
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.schedule import Actions, rounds
from hetjax.tracing.stored_tape import StoredTape
from hetjax.tracing.trace import Trace

POLICY = rounds(batch_size=8)
INF, NAN = float("inf"), float("nan")
DEEP = '{"a": ' + "[" * 10_000 + "]" * 10_000 + "}"
LONG = json.dumps({"x" * 10**6: 1})
RED = '{"colour": "red"}'

# Damage


@pytest.fixture
def damaged(tmp_path):
    """Load a trace of a few lines after a change to their text."""

    def load(change):
        path = tmp_path / "t.jsonl"
        recorded(POLICY, machine(1.0, 2.0), path=path, count=8)
        lines = path.read_text().splitlines()
        change(lines)
        path.write_text("\n".join(lines) + "\n" if lines else "")
        return Trace.load(path)

    return load


def _set(lines, index, text):
    lines[index] = text


def _changed(index, **fields):
    """A change of fields of a line; fields that are None are removed."""

    def change(lines):
        line = json.loads(lines[index]) | fields
        kept = {k: v for k, v in line.items() if v is not None}
        lines[index] = json.dumps(kept)

    return change


def _last(what):
    """A last line with this content."""
    return lambda lines: _set(lines, -1, json.dumps({"end": what}))


def _worker(**fields):
    """A change of fields of worker 0."""

    def change(lines):
        header = json.loads(lines[0])
        header["workers"][0] |= fields
        lines[0] = json.dumps(header)

    return change


def _merge(**fields):
    """A merge that comes first, with these fields."""
    merge = {"merge": "root", "members": [0], "op": "PUSH", "partners": []}
    more = {"blocking": True, "transfers": 2, "server_steps": None}
    line = merge | more | {"stamps": [0, 0, 0, 0], "bytes": 4.0} | fields
    return lambda lines: lines.insert(1, json.dumps(line))


def _started(worker):
    return lambda lines: lines.insert(1, json.dumps({"start": worker}))


def _arrival_first(lines):
    lines[1:1] = ['{"arrival": 0, "start": 0.0, "finish": 1.0}']


def _other_version(lines):
    lines[0] = json.dumps(json.loads(lines[0]) | {"trace": 4})


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r", line 3: damaged: Expecting", lambda ls: _set(ls, 2, ls[2][:-1])),
        (r", line 3: damaged: not a JSON object", lambda ls: _set(ls, 2, "[1]")),
        (r", line 1: damaged: Expecting", lambda ls: _set(ls, 0, "no trace")),
        (
            r', line 3: unknown kind of line: {"colour": "red"}',
            lambda ls: _set(ls, 2, RED),
        ),
        (
            r", line 3: unknown kind of line: {\"end\"",
            lambda ls: _set(ls, 2, '{"end": {}}'),
        ),
        (
            r", line 1: this is not a trace of hetjax: .*trace, str",
            lambda ls: ls.pop(0),
        ),
        (r", line 1: a trace of version 4; .* versions 2 and 3", _other_version),
        (r": not a trace, as the file is empty", lambda ls: ls.clear()),
        (r", line 1: damaged: 2 workers, 1 slowdowns", _changed(0, slowdowns=[1.0])),
        (r", line 1: damaged: .* 0 instants do not", _changed(0, instants=[])),
        (r", line 1: damaged: .* nodes at worker 7", _changed(0, nodes=7)),
        (r", line 1: damaged: seed is \"a\", not a whole", _changed(0, seed="a")),
        (r", line 1: damaged: workers: ", _changed(0, workers=[{"name": "w0"}])),
        (
            r", line 2: damaged: start is null, not a finite numb",
            _changed(1, start=None),
        ),
        (
            r", line 2: damaged: local_steps is true, not a whole",
            _changed(1, local_steps=True),
        ),
        (
            r", line 2: damaged: it has unknown fields: colour",
            _changed(1, colour="red"),
        ),
        (
            r", line 2: damaged: there is no worker 5; .* 0 to 1",
            _changed(1, dispatch=5),
        ),
        (r", line 2: damaged: worker 0 had no local round", _arrival_first),
        (r", line 17: damaged: end is 5, not an object", _last(5)),
        (r", line 17: damaged: end: stopped is 5, not a text", _last({"stopped": 5})),
        (
            r", line 1: damaged: slowdowns is \[{}, 1.0\]",
            _changed(0, slowdowns=[{}, 1.0]),
        ),
        (r", line 1: damaged: instants is \[\"x\"\], not", _changed(0, instants=["x"])),
        (r", line 1: damaged: instants is \[Infinity\]", _changed(0, instants=[INF])),
        (r", line 1: damaged: instants is \[10000", _changed(0, instants=[10**400])),
        (r", line 1: damaged: instants are not", _changed(0, instants=[1.0, 0.5])),
        (
            r", line 1: damaged: eval_examples is \[1.5\]",
            _changed(0, eval_examples=[1.5]),
        ),
        (r", line 1: damaged: settings is \"x\", not an", _changed(0, settings="x")),
        (
            r", line 1: damaged: workers is \[5\], not a list of",
            _changed(0, workers=[5]),
        ),
        (r", line 1: damaged: workers: 0: name is 5, not a text", _worker(name=5)),
        (r", line 1: damaged: workers: 0: fixed is NaN, not", _worker(fixed=NAN)),
        (r", line 1: damaged: workers: 0: place is \[5\], not", _worker(place=[5])),
        (r", line 1: damaged: workers: 0: its index is 1", _worker(index=1)),
        (r", line 1: damaged: workers: unknown fields: color", _worker(color=1)),
        (r", line 2: damaged: start is Infinity, not a fin", _changed(1, start=INF)),
        (r", line 2: damaged: there is no worker 7", _merge(members=[0, 7])),
        (r", line 2: damaged: there is no worker -1", _merge(partners=[-1])),
        (r", line 2: damaged: members is \[1.5\], not a list", _merge(members=[1.5])),
        (
            r", line 2: damaged: stamps is \[\"x\", 0, 0, 0\]",
            _merge(stamps=["x", 0, 0, 0]),
        ),
        (r", line 2: damaged: missing is \[\[\]\], not a list", _merge(missing=[[]])),
        (r", line 2: damaged: there is no operation \"A\"", _merge(op="A")),
        (r", line 2: damaged: blocking is 1, not true or", _merge(blocking=1)),
        (r", line 2: damaged: transfers is null, not a who", _merge(transfers=None)),
        (r", line 2: damaged: server_steps is \"x\", not a", _merge(server_steps="x")),
        (r", line 2: damaged: start is \"x\", not a whole", _started("x")),
        (r", line 2: damaged: there is no worker 2", _started(2)),
        # of any length and depth
        (r", line 3: damaged: maximum recursion", lambda ls: _set(ls, 2, DEEP)),
        (r", line 1: damaged: maximum recursion", lambda ls: _set(ls, 0, DEEP)),
        (r", line 3: unknown kind of line: {\"xxx", lambda ls: _set(ls, 2, LONG)),
        (
            r", line 2: damaged: it has unknown fields: yyy",
            _changed(1, **{"y" * 10**6: 1}),
        ),
        (r", line 2: damaged: start is \"zzz", _changed(1, start="z" * 10**6)),
        (
            r", line 1: damaged: workers: 0: name is \[\"zzz",
            _worker(name=["z" * 10**6]),
        ),
        (r", line 1: a trace of version \"zzz", _changed(0, trace="z" * 10**6)),
    ],
)
def test_damage_is_named_with_file_and_line(damaged, message, change):
    with pytest.raises(ValueError, match=r"t\.jsonl" + message) as raised:
        damaged(change)
    assert len(str(raised.value).partition("t.jsonl")[2]) < 400


FIELDS = ("strategy", "seed", "workers", "instants", "step_modes", "nodes", "on_nan")


@pytest.mark.parametrize("field", FIELDS)
def test_a_header_without_a_field_is_refused(damaged, field):
    def change(lines):
        header = json.loads(lines[0])
        del header[field]
        lines[0] = json.dumps(header)

    with pytest.raises(ValueError, match=f"line 1: this is not .* it lacks {field}"):
        damaged(change)


def test_half_a_line_at_the_end_means_that_the_run_was_cut_off(damaged, tmp_path):
    whole = damaged(lambda lines: None)
    path = tmp_path / "t.jsonl"
    path.write_text(path.read_text()[:-9])  # the last line says how the run ended
    cut = Trace.load(path)
    assert (cut.lines, cut.end) == (whole.lines, {})


@pytest.mark.parametrize("lines_kept", range(1, 12))
def test_a_truncated_trace_replays_as_far_as_it_goes(damaged, lines_kept):
    whole = replayed(POLICY, damaged(lambda lines: None))
    trace = damaged(lambda lines: lines.__delitem__(slice(lines_kept, None)))
    assert trace.end == {}
    *part, last = replayed(POLICY, trace)
    assert last == ("the trace was cut off here", None)
    # what followed the last event may be cut off, too
    *before, (event, (merges, dispatch, *_)) = part
    assert before == whole[: len(before)]
    true = whole[len(before)]
    assert event == true[0]
    assert merges == true[1].merges[: len(merges)]
    assert dispatch == true[1].dispatch[: len(dispatch)]
    assert len(part) >= lines_kept // 4  # a round has dispatches, a merge and events


def test_a_replay_ends_for_the_same_reason():
    _, trace = recorded(POLICY, machine(1.0), count=2)
    assert trace.end == {"stopped": "as asked"}
    assert replayed(POLICY, trace)[-1] == ("as asked", None)


# Runs that differ from the recorded one

STEP = LocalRound(1, 8)


def replaying_clock(*actions, count=2):
    """A clock that replays the trace of these actions."""
    _, trace = recorded(scripted(*actions), machine(1.0, 1.0), count=count)
    return StoredTape(trace)


GIVEN = Actions(dispatch=((0, STEP),))
MERGED = Actions(merges=(MergeAction((0, 1), op=MergeOp.PUSH),))


def merge(clock, *members, **changes):
    action = MergeAction(members, **({"op": MergeOp.PUSH} | changes))
    return clock.plan(MergeRequest(action, 0.0, 0.0, ()))


@pytest.mark.parametrize(
    ("actions", "message", "act"),
    [
        (GIVEN, r"worker 1 gets LocalRound\(", lambda c: give(c, 1, STEP)),
        (
            GIVEN,
            r"worker 0 gets LocalRound\(local_steps=2",
            lambda c: give(c, 0, LocalRound(2, 8)),
        ),
        (GIVEN, r"batch_size=8.5", lambda c: give(c, 0, LocalRound(1, 8.5))),
        (GIVEN, r"lr_scale=0.5", lambda c: give(c, 0, LocalRound(1, 8, 0.5))),
        (GIVEN, "the run continues with a merge", lambda c: merge(c, 0, 1)),
        (GIVEN, "the run waits for an event", lambda c: c.next()),
        (MERGED, "the run continues with a dispatch", lambda c: give(c, 0, STEP)),
        (MERGED, r"\(1, 0\) merge at 'root'", lambda c: merge(c, 1, 0)),
        (MERGED, r"\(0, 1\) merge at 'a'", lambda c: merge(c, 0, 1, node="a")),
        (MERGED, r"\(PUSH\|FETCH, with", lambda c: merge(c, 0, 1, op=PUSH_FETCH)),
        (MERGED, "the run waits for an event", lambda c: c.next()),
    ],
)
def test_another_action_is_refused(actions, message, act):
    with pytest.raises(ValueError, match=r"the trace, line .*" + message):
        act(replaying_clock(actions))


def give(clock, worker, local_round):
    return clock.dispatch(worker, local_round, [0] * local_round.local_steps)


def test_other_partners_are_refused():
    """Partners receive the merge's result, so they are part of the action."""
    actions = Actions(merges=(MergeAction((0,), partners=(1,)),))
    clock = replaying_clock(actions)
    with pytest.raises(ValueError, match="the seed differ from the recorded ones"):
        merge(clock, 0, op=PUSH_FETCH)


@pytest.mark.parametrize(
    ("actions", "act"),
    [
        (GIVEN, lambda c: give(c, 1, STEP)),
        (GIVEN, lambda c: merge(c, 0)),
        (MERGED, lambda c: merge(c, 1, 0)),
        (MERGED, lambda c: c.next()),
    ],
)
def test_the_line_that_differs_is_named(actions, act):
    """The header is line 1, the first action is line 2."""
    with pytest.raises(ValueError, match="the trace, line 2:"):
        act(replaying_clock(actions))


# Damage that no single line shows

TWO = machine(1.0, 1.0)
THRICE = Actions(merges=(MergeAction((0,)),), dispatch=((0, STEP),))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"members": [1]}, "line 5: worker 1 has a round in flight here"),
        ({"members": ["here"]}, "line 5: the node 'here' here"),
        ({"merge": "here"}, "line 5: the node 'here' here"),
    ],
)
def test_a_merge_that_the_run_cannot_have_is_refused(fields, message):
    """A replay ignores its policy, which would have decided differently."""
    policy = scripted(Actions(dispatch=((0, STEP), (1, STEP))), THRICE)
    _, trace = recorded(policy, TWO, count=3)
    (merged,) = (line for line in trace.lines if "merge" in line)
    merged.update(fields)
    with pytest.raises(ValueError, match=f"the trace, {message}.*: it is damaged"):
        replayed(policy, trace)


def test_a_second_round_of_a_worker_is_refused():
    policy = scripted(Actions(dispatch=((0, STEP), (1, STEP))))
    _, trace = recorded(policy, TWO, count=2)
    trace.lines[1]["dispatch"] = 0
    with pytest.raises(ValueError, match="line 3: worker 0 has a round in flight"):
        replayed(policy, trace)


def test_actions_after_the_last_line_end_the_run():
    clock = replaying_clock(GIVEN)
    give(clock, 0, STEP)
    assert (clock.next().worker, clock.now) == (0, 1.0)
    with pytest.raises(RunEnded, match="as asked"):
        give(clock, 0, STEP)
