"""Workers that are on and off by a trace or by chance, and that fail."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.engine.decisions import decisions
from hetjax.machine import (
    Cost,
    Join,
    Leave,
    Link,
    Machine,
    Profile,
    ScriptedFault,
    SimulatedClock,
    with_drawn_presence,
    with_failures,
    with_presence,
)
from hetjax.schedule import asynchronous, rounds

LINKS = {"": Link(latency=0.0, bandwidth=1e9)}
LAWS = settings(max_examples=60, deadline=None, derandomize=True)
TIMES = st.integers(0, 12).map(float)
HALVES = [k / 2 for k in range(30)]  # the times of scripts, and times between them


def machine(workers=2, faults=()):
    """Workers a, b, ... whose step takes 0.5 s; faults are (seconds, what, worker)."""
    profiles = tuple(Profile(n, "gpu", Cost(0.5, 0.0)) for n in "abcdefgh"[:workers])
    return Machine(
        "m", profiles, LINKS, faults=tuple(ScriptedFault(*f) for f in faults)
    )


def script(m):
    return [(f.seconds, f.what, f.worker) for f in m.faults]


def of(name, m):
    """The script of one worker."""
    return [f for f in script(m) if f[2] == name]


def present(m):
    """The workers that are present just after each of HALVES, by the clock's events."""
    clock = SimulatedClock(m, seed=0)
    events = list(iter(clock.next, None))
    on, found = {w.name for w in clock.workers if w.present}, []
    for time in HALVES:
        while events and events[0].time <= time:
            event = events.pop(0)
            name = clock.workers[event.worker].name
            (on.add if isinstance(event, Join) else on.discard)(name)
        found.append(set(on))
    return found


# Presence


def test_intervals_are_kills_and_joins():
    intervals = {"b": [(0, 2), (5, 7.5)], "c": [(1, None)], "a": [(0, math.inf)]}
    assert script(with_presence(machine(3), intervals)) == [
        (1.0, "join", "c"),
        (2.0, "kill", "b"),
        (5.0, "join", "b"),
        (7.5, "kill", "b"),
    ]


def test_intervals_that_touch_are_a_restart():
    found = with_presence(machine(), {"b": [(0, 2), (2, None)]})
    assert script(found) == [(2.0, "kill", "b"), (2.0, "join", "b")]
    events = list(iter(SimulatedClock(found, seed=0).next, None))
    assert [type(event) for event in events] == [Leave, Join]


@st.composite
def traces(draw):
    """Presence of b and c; a is always present."""
    found = {}
    for name in draw(st.sets(st.sampled_from("bc"))):
        times = sorted(draw(st.sets(TIMES, min_size=2, max_size=6)))
        pairs = list(zip(times[::2], times[1::2], strict=False))
        found[name] = pairs + [(13.0, None)] * draw(st.booleans())
    return found


@st.composite
def scripts(draw):
    """Faults of b and c in any order, also such that change nothing."""
    what, worker = st.sampled_from(("kill", "join")), st.sampled_from("bc")
    times = TIMES.filter(bool)  # a worker that is killed at 0 s was present before
    return draw(st.lists(st.tuples(times, what, worker), max_size=6))


@LAWS
@given(trace=traces(), own=scripts(), more=traces())
def test_a_worker_is_present_while_everything_lets_it(trace, own, more):
    """By brute force, at all times: of a script, and of two traces in any order."""
    base = machine(3, own)

    named, own_present = {*trace, *more}, present(base)
    expected = [
        {n for n in on if _is_on(trace, n, time) and _is_on(more, n, time)}
        for time, on in zip(HALVES, own_present, strict=True)
    ]
    if named - set().union(*expected):
        with pytest.raises(ValueError, match="is never present"):
            with_presence(with_presence(base, trace), more)
        return
    both = with_presence(with_presence(base, trace), more)
    assert present(both) == expected
    swapped = with_presence(with_presence(base, more), trace)
    assert all(of(name, swapped) == of(name, both) for name in "abc")
    absent = {w.name for w in both.worker_infos(0.0) if not w.present}
    first = {w.name for w in base.worker_infos(0.0) if not w.present}
    off = {n for n in "abc" if not (_is_on(trace, n, 0) and _is_on(more, n, 0))}
    assert absent == first | off


def _is_on(intervals, name, time):
    """Whether an interval of the worker covers the time, if it has some."""
    ends = [
        (on, math.inf if off is None else off)
        for on, off in intervals.get(name, [(0, None)])
    ]
    return any(on <= time < off for on, off in ends)


def test_slowdowns_and_the_rest_of_a_machine_stay():
    own = [(1.0, "slow", "b", 3.0), (4.0, "kill", "a"), (6.0, "join", "a")]
    found = with_presence(machine(faults=own), {"b": [(0, 2)]})
    assert found.faults[0] == ScriptedFault(1.0, "slow", "b", 3.0)
    assert script(found)[1:] == [
        (2.0, "kill", "b"),
        (4.0, "kill", "a"),
        (6.0, "join", "a"),
    ]
    assert (found.name, found.workers, found.links) == ("m", *_parts(found))
    assert with_presence(machine(faults=own), {}) == machine(faults=own)


def _parts(m):
    return machine().workers, m.links


# Files


def written(path, *lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_a_file_is_a_mapping(tmp_path, kind):
    lines = "worker,on,off", "b,0,2", "c,1,", "", "b, 5,7.5", "a,0,inf"
    path = written(tmp_path / "trace.csv", *lines)
    intervals = {"b": [(0, 2), (5, 7.5)], "c": [(1, None)]}
    assert with_presence(machine(3), kind(path)) == with_presence(machine(3), intervals)


def test_names_may_be_quoted(tmp_path):
    path = written(tmp_path / "trace.csv", "worker,on,off", '"b",0,"2"')
    assert script(with_presence(machine(), path)) == [(2.0, "kill", "b")]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "no worker"),
        (("b,0,2",), r"trace\.csv, line 1: begin the file with the header worker,on,o"),
        (("worker,on,off", "b,0"), r"line 2: 'b,0' is not a worker and two times"),
        (("worker,on,off", "b,x,1"), r"line 2: 'b,x,1' is not a worker and two times"),
        (("worker,on,off", "", "z,0,1"), r"line 3: there is no worker 'z'; the worke"),
        (("worker,on,off", "b,3,2"), r"line 2: on=3, off=2: pass 0 <= on < off"),
        (("worker,on,off", "b,nan,2"), r"line 2: on=nan, off=2: pass 0 <= on < off"),
        (("worker,on,off", "b,-1,2"), r"line 2: on=-1, off=2: pass 0 <= on < off"),
        (
            ("worker,on,off", "b,0,4", "a,0,1", "b,3,5"),
            r"trace\.csv, line 4: b is on from 3 s, but also from 0 to 4 s: pass its",
        ),
        (("worker,on,off", "b,5,", "b,9,"), r"line 3: b is on from 9 s, but also fro"),
        (("worker,on,off", "b,6,7", "b,1,2"), r"line 3: b is on from 1 s, but also "),
        (("worker,on,off", '"b,0,1'), r"line 2: "),
    ],
)
def test_damage_of_a_file_is_named(tmp_path, lines, message):
    path = written(tmp_path / "trace.csv", *lines)
    if not lines:
        assert with_presence(machine(), path) == machine()  # nobody is named
        return
    with pytest.raises(ValueError, match=message):
        with_presence(machine(), path)


def test_other_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.csv"):
        with_presence(machine(), tmp_path / "none.csv")
    (tmp_path / "image.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"image\.csv: not a text file in UTF-8"):
        with_presence(machine(), tmp_path / "image.csv")


@pytest.mark.parametrize(
    ("presence", "message"),
    [
        (5, "presence=5: pass a"),
        ({"z": [(0, 1)]}, "presence: there is no worker 'z'; the workers are a, b"),
        ({"b": 3}, r"presence\['b'\]=3: pass a sequence of \(on, off\) intervals"),
        ({"b": [(0, 1), 3]}, r"presence\['b'\]\[1\]=3: pass a pair of numbers"),
        ({"b": [(0, 1, 2)]}, r"presence\['b'\]\[0\]=\(0, 1, 2\): pass a pair of num"),
        ({"b": [(0, 3), (2, 4)]}, r"presence\['b'\]\[1\]: b is on from 2 s, but also"),
        ({"b": [(1, 1)]}, r"presence\['b'\]\[0\]: on=1, off=1: pass 0 <= on < off"),
        ({"b": []}, "worker 'b' is never present: let it join, or leave it out"),
        ({"a": [(1, 2)], "b": [(2, 3)]}, "no worker is present at 0 s"),
    ],
)
def test_what_is_no_presence(presence, message):
    with pytest.raises(ValueError, match=message):
        with_presence(machine(), presence)


# Draws


def drawn(m, seed=0, mean_on=3.0, mean_off=1.0, seconds=50.0):
    return with_drawn_presence(
        m, mean_on=mean_on, mean_off=mean_off, seconds=seconds, seed=seed
    )


def failing(m, seed=0, rate=0.2, seconds=50.0, repair=2.0):
    return with_failures(m, rate=rate, seconds=seconds, seed=seed, repair=repair)


@pytest.mark.parametrize("draw", [drawn, failing])
def test_draws_repeat_and_workers_are_independent(draw):
    small, large = draw(machine(3)), draw(machine(5))
    assert draw(machine(3)) == small
    assert draw(machine(3), seed=1) != small
    for name in "abc":  # also with more workers beside them
        assert of(name, small) == of(name, large)
    times = {name: [f[0] for f in of(name, small)] for name in "abc"}
    assert not set(times["a"]) & set(times["b"])
    # a longer trace begins with the shorter one
    begun = [f for f in script(draw(machine(3), seconds=100.0)) if f[0] < 50]
    assert begun == [f for f in script(small) if f[0] < 50]


@pytest.mark.parametrize("mean_off", [1.0, 9.0])
def test_drawn_presence_is_stationary(mean_off):
    """The share of workers that are present is the same at the begin and later."""
    share, count = 3 / (3 + mean_off), 0
    seen = {0.0: 0, 7.0: 0, 40.0: 0}
    for seed in range(30):
        m = drawn(machine(8), seed=seed, mean_off=mean_off)
        first = {w.name for w in m.worker_infos(0.0) if w.present}
        assert first
        count += 8
        for time in seen:
            seen[time] += len(_present_at(m, first, time))
    # a binomial number; one worker is present at the begin in any case
    error = 4 * math.sqrt(count * share * (1 - share)) + 30 * (1 - share) ** 8
    for time in seen:
        assert abs(seen[time] - share * count) < error


def _present_at(m, first, time):
    found = set(first)
    for fault in m.faults:
        if 0 < fault.seconds <= time:
            (found.discard if fault.what == "kill" else found.add)(fault.worker)
    return found


def test_the_times_have_their_means():
    faults = of("a", drawn(machine(1), seconds=8000.0))
    times = [time for time, _, _ in faults]
    lengths = [b - a for a, b in itertools.pairwise(times)]
    by_kind = {"kill": lengths[::2], "join": lengths[1::2]}
    if faults[0][1] == "join":
        by_kind = {"kill": lengths[1::2], "join": lengths[::2]}
    for what, mean in (("kill", 1.0), ("join", 3.0)):  # after a kill it is off
        found = by_kind[what]
        error = 4 * mean / math.sqrt(len(found))  # the deviation is the mean
        assert sum(found) / len(found) == pytest.approx(mean, abs=error)


def test_one_worker_is_present_at_first():
    """The one that would join first; all others are as they were drawn."""
    rare = {"mean_on": 1e-3, "mean_off": 1e3, "seconds": 1e4}
    for seed in range(5):
        m = drawn(machine(8), seed=seed, **rare)
        (first,) = (w.name for w in m.worker_infos(0.0) if w.present)
        joins = {name: of(name, m)[0] for name in "abcdefgh" if name != first}
        assert all(what == "join" for _, what, _ in joins.values())
        ended, what, _ = of(first, m)[0]
        # it joined before the others did, and stayed for a short time
        assert what == "kill"
        assert ended < min(time for time, _, _ in joins.values()) + 0.1


def test_the_first_worker_is_one_that_the_machine_has_by_then():
    own = [(5.0, "join", name) for name in "abc"]
    for seed in range(20):
        m = drawn(machine(4, own), seed=seed, mean_on=1.0, mean_off=9.0)
        assert [w.name for w in m.worker_infos(0.0) if w.present] == ["d"]


def test_after_the_drawn_seconds_workers_come_back_and_stay():
    for draw in (drawn, failing):
        m = draw(machine(8))
        assert all(f.what == "join" for f in m.faults if f.seconds >= 50)
        assert len(_present_at(m, _first(m), math.inf)) == 8


def _first(m):
    return {w.name for w in m.worker_infos(0.0) if w.present}


def test_failures_have_their_rate_and_repairs():
    faults = of("a", failing(machine(1), seconds=20_000.0))
    kills = [time for time, what, _ in faults if what == "kill"]
    joins = [time for time, what, _ in faults if what == "join"]
    assert [b - a for a, b in zip(kills, joins, strict=True)] == pytest.approx(
        [2.0] * len(kills)
    )
    present = sum(b - a for a, b in zip([0.0, *joins], kills, strict=False))
    # a Poisson number of 0.2 per second of presence
    assert len(kills) == pytest.approx(0.2 * present, abs=4 * math.sqrt(0.2 * present))


def test_failures_without_repair_are_for_good():
    m = failing(machine(8), repair=None)
    assert {f.what for f in m.faults} == {"kill"}
    assert len({f.worker for f in m.faults}) == len(m.faults)
    assert with_failures(machine(), rate=0.0, seconds=9.0, seed=0) == machine()


def test_only_present_workers_fail():
    """One at 1000 per second fails as soon as it is there."""
    own = [(1.0, "kill", "a"), (7.0, "join", "a"), (5.0, "join", "b")]
    m = failing(machine(3, own), rate=1000.0, seconds=8.0, repair=None)
    (_, _, _), *rest = of("b", m)
    assert [what for _, what, _ in rest] == ["kill"]
    assert rest[0][0] == pytest.approx(5.0, abs=0.02)
    assert [what for _, what, _ in of("a", m)] == ["kill"]
    assert of("a", m)[0][0] < 0.02


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda: drawn(machine(), mean_on=0.0), "mean_on=0.0: pass a number above 0"),
        (lambda: drawn(machine(), mean_off=0), "mean_off=0: pass a number above 0"),
        (lambda: drawn(machine(), seconds=-1), "seconds=-1: pass a number above 0"),
        (lambda: drawn(machine(), seed=-1), "seed=-1: pass a whole number"),
        (lambda: failing(machine(), rate=-1), "rate=-1: pass a number of at least 0"),
        (lambda: failing(machine(), repair=0), "repair=0: pass a number above 0 or N"),
        (lambda: drawn(machine(), seconds=1e9), r"about 1e\+09 faults, at most 1,000,"),
        (lambda: failing(machine(), seconds=1e9), r"about 5.7e\+08 faults, at most 1,"),
    ],
)
def test_refused_draws(change, message):
    with pytest.raises(ValueError, match=message):
        change()


# Runs


@pytest.mark.parametrize("make", [rounds, asynchronous])
def test_a_policy_goes_on_while_workers_come_and_go(make):
    """Each round arrives unless its worker leaves; whoever is present works."""
    m = drawn(machine(4), mean_on=3.0, mean_off=2.0, seconds=60.0, seed=1)
    clock = SimulatedClock(m, seed=0)
    on = {w.index for w in clock.workers if w.present}
    merges = dict.fromkeys(range(4), 0)  # after 60 s
    counts = {Leave: 0, Join: 0}
    for event, actions in decisions(make(batch_size=8), clock, num_examples=1000):
        if isinstance(event, Leave):
            on.discard(event.worker)
        elif isinstance(event, Join):
            on.add(event.worker)
        counts[type(event)] = counts.get(type(event), 0) + 1
        for merge in actions.merges:
            assert set(merge.members) <= on
            if clock.now > 60:
                for worker in merge.members:
                    merges[worker] += 1
        assert clock.roster.active == on
        if clock.now > 90:
            break
    assert (counts[Leave], counts[Join]) == _numbers(m, 90)
    assert min(merges.values()) > 20  # all of them work on when the trace is over


def _numbers(m, end):
    whats = [f.what for f in m.faults if f.seconds <= end]
    return whats.count("kill"), whats.count("join")


def test_all_workers_may_be_away_for_a_while():
    """The run waits for the first that joins."""
    m = with_presence(machine(), {"a": [(0, 2), (9, None)], "b": [(0, 3), (7, None)]})
    clock = SimulatedClock(m, seed=0)
    arrivals = []
    for event, actions in decisions(rounds(batch_size=8), clock, num_examples=100):
        if clock.now > 12:
            break
        arrivals += [clock.now for merge in actions.merges for _ in merge.members]
        assert event is None or not 3 < event.time < 7
    assert min(t for t in arrivals if t > 3) == 7.5
    assert max(arrivals) == 12.0
