"""Calibrated machines: their times, subsets, files, and refusals."""

import dataclasses
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_runs import profiles

from hetjax.machine import (
    Cost,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Profile,
    ScriptedFault,
    SimulatedClock,
)
from hetjax.machine.contention import Contention
from hetjax.machine.simulated_machine import Calibration

LINK = Link(latency=1.0, bandwidth=1e9, topology="central")
AT_LEAST_0 = st.floats(0.0, 1e6)
POSITIVE = st.floats(1e-9, 1e6)
LAWS = settings(max_examples=50, deadline=None, derandomize=True)


def clock(*workers):
    return SimulatedClock(Machine("m", workers, {"": LINK}), seed=0)


# Time


def test_every_round_has_its_fixed_cost():
    """Two steps of 1 s, and 0.5 s per round; nothing for a round without steps."""
    c = clock(*profiles(Cost(1.0, 0.0, per_round=0.5), factor=2.0))
    assert c.dispatch(0, LocalRound(2, 8), (0, 0)).finish == 2 * (2 * 1.0 + 0.5)
    c.next()
    assert c.dispatch(0, LocalRound(0, 8), ()).finish == 5.0


def test_contention_slows_the_fixed_cost_too():
    costs = [Cost(1.0, 0.0, per_round=0.5)] * 2
    c = clock(*profiles(*costs, contention=2.0))
    for k in (0, 1):
        c.dispatch(k, LocalRound(1, 8), (0,))
    assert [c.next().finish for _ in range(2)] == [3.0, 3.0]


@pytest.mark.parametrize(
    # 1 s there, 1 s back; 100 bytes there and back take 100 * per_byte
    ("action", "seconds"),
    [
        (MergeAction((0,)), 2 + 1),
        (MergeAction((1,)), 2 + 4),
        (MergeAction((0, 1)), 2 + 1 + 4),
        (MergeAction((0, 1), transfers=1), 1 + 0.5 + 2),
        (MergeAction((0,), partners=(1,)), 2 + 1 + 4),
        (MergeAction((0, 1), transfers=0), 0),
    ],
)
def test_bytes_take_the_time_of_their_members(action, seconds):
    cost = Cost(1.0, 0.0)
    c = clock(
        Profile("a", "gpu", cost, per_byte=0.01),
        Profile("b", "gpu", cost, per_byte=0.04),
    )
    assert c.merge(action, 100.0).finish == pytest.approx(seconds, rel=1e-6)


# A subset of a machine


def test_a_subset_keeps_its_links_and_faults():
    cost, script = Cost(1.0, 0.0), []
    places = {"a": ("x", "y"), "b": ("x",), "c": ("z",), "d": ()}
    for name in places:
        script.append(ScriptedFault(5.0, "slow", name, 2.0))
    m = Machine(
        "m",
        tuple(Profile(n, "cpu", cost, place=p) for n, p in places.items()),
        {"": LINK, "x": LINK, "x/y": LINK, "z": LINK},
        noise=0.25,
        seed=3,
        faults=tuple(script),
    )
    part = m.subset(["d", "b"])
    assert part.workers == (m.workers[1], m.workers[3])  # in the machine's order
    assert set(part.links) == {"", "x"}
    assert part.faults == (script[1], script[3])
    assert (part.noise, part.seed) == (0.25, 3)
    assert m.subset(list(places)) == m


@pytest.mark.parametrize(("names", "contention"), [("a", 1.0), ("ab", 2.0), ("abc", 3)])
def test_a_subset_contends_less(names, contention):
    """Linear between one worker alone and all three, which are three times as slow."""
    workers = tuple(Profile(n, "cpu", Cost(1.0, 0.0), contention=3.0) for n in "abc")
    part = Machine("m", workers, {"": LINK}).subset(list(names))
    assert {w.contention for w in part.workers} == {contention}


@LAWS
@given(
    contentions=st.lists(st.floats(1.0, 9.0), min_size=2, max_size=6),
    duty=st.floats(0.1, 1.0),
    data=st.data(),
)
def test_a_subset_is_as_fast_as_if_the_others_rested(contentions, duty, data):
    workers = tuple(
        Profile(f"w{k}", "cpu", Cost(1.0, 0.0), contention=c, duty=duty)
        for k, c in enumerate(contentions)
    )
    m = Machine("m", workers, {"": LINK})
    chosen = data.draw(st.sets(st.sampled_from(range(len(workers))), min_size=1))
    part = m.subset([f"w{k}" for k in chosen])
    whole, some = Contention(m.workers), Contention(part.workers)
    for number, k in enumerate(sorted(chosen)):
        finishes = whole.begin(k, 1.0 + k, 0.5 * number)
        expected = some.begin(number, 1.0 + k, 0.5 * number)
        assert list(finishes.values()) == pytest.approx(list(expected.values()))


def test_an_unknown_worker_cannot_be_chosen():
    m = Machine("m", profiles(Cost(1.0, 0.0)), {"": LINK})
    with pytest.raises(ValueError, match=r"no worker 'w1'; the workers are \['w0'\]"):
        m.subset(["w0", "w1"])
    with pytest.raises(ValueError, match="a machine needs at least one worker"):
        m.subset([])


def test_a_worker_named_twice_is_chosen_once():
    workers = tuple(Profile(n, "cpu", Cost(1.0, 0.0), contention=3.0) for n in "abc")
    m = Machine("m", workers, {"": LINK})
    assert m.subset(["a", "a"]) == m.subset(["a"])


def test_links_of_deep_places_are_kept():
    deep = tuple(f"p{d}" for d in range(12))
    links = {"/".join(deep[:d]): LINK for d in range(13)}
    worker = Profile("a", "cpu", Cost(1.0, 0.0), place=deep)
    assert Machine("m", (worker,), links).subset(["a"]).links == links


# Files

calibrations = st.builds(
    Calibration,
    model=st.text(max_size=9),
    data=st.text(max_size=9),
    batch_sizes=st.lists(st.integers(1, 2**31 - 1), max_size=3).map(tuple),
    error=AT_LEAST_0,
    worst=AT_LEAST_0,
    local_rounds=st.integers(0, 2**31 - 1),
    versions=st.text(max_size=9),
)
workers = st.builds(
    Profile,
    name=st.text(max_size=5),
    kind=st.just("cpu"),
    cost=st.builds(Cost, POSITIVE, AT_LEAST_0, AT_LEAST_0, per_round=AT_LEAST_0),
    contention=st.floats(2.0, 1e6),
    contention_range=st.just(()) | st.tuples(st.floats(1.0, 2.0), st.floats(1e6, 2e6)),
    duty=st.floats(1e-6, 1.0),
    per_byte=AT_LEAST_0,
)


@st.composite
def machines(draw):
    chosen = st.lists(workers, min_size=1, max_size=4, unique_by=lambda w: w.name)
    profiles = tuple(draw(chosen))
    fault = st.builds(
        ScriptedFault,
        seconds=AT_LEAST_0,
        what=st.sampled_from(["kill", "slow", "join"]),
        worker=st.sampled_from([w.name for w in profiles]),
        factor=POSITIVE,
    )
    stays = ScriptedFault(
        0.0, "kill", profiles[0].name
    )  # a worker that is killed first is active at the start
    return Machine(
        "m",
        profiles,
        {"": LINK},
        faults=(stays, *draw(st.lists(fault, max_size=4))),
        calibration=draw(st.none() | calibrations),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("machines")


@LAWS
@given(machine=machines())
def test_round_trip(folder, machine):
    machine.save(folder / "m.json")
    assert Machine.load(folder / "m.json") == machine


def test_old_files_have_no_calibration(tmp_path):
    """Their workers have no contention, no cost per round and no faults."""
    path = tmp_path / "m.json"
    machine = Machine("m", profiles(Cost(1.0, 0.0)), {"": LINK})
    machine.save(path)
    data = json.loads(path.read_text())
    del data["faults"], data["calibration"], data["workers"][0]["cost"]["per_round"]
    for field in ("contention", "contention_range", "duty", "per_byte"):
        del data["workers"][0][field]
    path.write_text(json.dumps(data))
    assert Machine.load(path) == machine
    assert (machine.workers[0].contention, machine.workers[0].duty) == (1.0, 1.0)


# Refusals


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("contention=0.5.*: pass a number", {"contention": 0.5}),
        ("contention=nan.*: pass a number", {"contention": math.nan}),
        ("contention=inf.*: pass a number", {"contention": math.inf}),
        ("contention_range=.*: pass two num", {"contention_range": (1.0, 1.0, 1.0)}),
        ("contention_range=.*: pass two num", {"contention_range": (1.0,)}),
        ("contention_range=.*=1.0 between", {"contention_range": (1.1, 2.0)}),
        ("contention_range=.*=1.0 between", {"contention_range": (0.5, 2.0)}),
        ("contention_range=.*: pass", {"contention_range": (1.0, math.nan)}),
        ("duty=1.5.*: pass a number", {"duty": 1.5}),
        ("duty=0.*: pass a number", {"duty": 0.0}),
        ("duty=nan.*: pass a number", {"duty": math.nan}),
        ("per_byte=-1.*: pass a number", {"per_byte": -1.0}),
        ("per_byte=inf.*: pass a number", {"per_byte": math.inf}),
    ],
)
def test_invalid_workers(message, changes):
    worker = Profile("a", "cpu", Cost(1.0, 0.0))
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(worker, **changes)


def test_invalid_costs():
    with pytest.raises(ValueError, match="per_round=-1.*: pass a number of at least 0"):
        Cost(1.0, 0.0, per_round=-1.0)
    with pytest.raises(ValueError, match="a Cost of zeros would"):
        Cost(0.0, 0.0, per_round=1.0)  # a step would take no time
