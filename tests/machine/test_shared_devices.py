"""Several workers on one device, workers that start and stop, and timed copies."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import (
    Arrival,
    Cost,
    Join,
    Leave,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Merged,
    Profile,
    SimulatedClock,
    preset,
)

LINKS = {"": Link(latency=0.0, bandwidth=1e9)}
STEP = LocalRound(1, 1)


def profile(name="w", **changes):
    """A worker whose step takes a second."""
    return Profile(name, "gpu", Cost(1.0, 0.0), **changes)


def clock(*workers):
    return SimulatedClock(Machine("m", workers, LINKS), seed=0)


def dispatched(c, *workers):
    """Seconds of a step of each of these workers, begun now."""
    arrivals = [c.dispatch(k, STEP, (0,)) for k in workers]
    return [a.finish - a.start for a in arrivals]


# Speed


@pytest.mark.parametrize(
    ("curve", "slowdowns"),
    [
        # m / curve(m), constant beyond the end
        ((), [1.0, 2.0, 3.0, 4.0]),
        ((1.0,), [1.0, 2.0, 3.0, 4.0]),
        ((1.0, 1.6), [1.0, 2 / 1.6, 3 / 1.6, 4 / 1.6]),
        ((1.0, 2.0, 3.0, 4.0), [1.0, 1.0, 1.0, 1.0]),
        ((1.0, 1.5, 1.2), [1.0, 2 / 1.5, 3 / 1.2, 4 / 1.2]),
    ],
)
def test_slowdown(curve, slowdowns):
    worker = profile(curve=curve)
    assert [worker.slowdown(m) for m in (1, 2, 3, 4)] == slowdowns
    assert worker.slowdown(0) == 1.0


def test_a_step_is_slowed_by_the_active_workers():
    shared = {"device": "d", "curve": (1.0, 1.6, 2.0)}
    c = clock(*(profile(f"w{k}", **shared) for k in range(3)), profile("alone"))
    assert dispatched(c, 0, 3) == [1.5, 1.0]  # 3 / 2, whether they are busy or not
    c.stop(2)
    assert dispatched(c, 1) == [1.25]  # 2 / 1.6
    c.start(2)
    assert dispatched(c, 2) == [1.5]


def test_a_round_in_flight_keeps_its_speed():
    c = clock(profile("a", device="d"), profile("b", device="d"))
    c.stop(1)
    arrival = c.dispatch(0, LocalRound(4, 1), (0,) * 4)
    c.start(1)
    assert arrival.finish == 4.0


def test_each_worker_has_its_own_device_unless_it_says():
    infos = clock(profile("a"), profile("b"), profile("c", device="b")).workers
    assert [info.device for info in infos] == ["a", "b", "b"]
    c = clock(profile("a"), profile("b"), profile("c", device="b"))
    assert dispatched(c, 0, 1, 2) == [1.0, 2.0, 2.0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(0.5, 4.0), max_size=5).map(lambda c: (1.0, *c)))
def test_throughput_is_the_curves(curve):
    """m workers at once do curve(m) steps per second."""
    for m in range(1, len(curve) + 1):
        workers = (profile(f"w{k}", device="d", curve=curve) for k in range(m))
        seconds = dispatched(clock(*workers), *range(m))
        assert sum(1 / s for s in seconds) == pytest.approx(curve[m - 1])


# Machines with several workers per device


def test_with_workers_per_device():
    machine = preset("v100x2", seed=3, noise=0.1).with_workers_per_device(2, (1, 1.3))
    first, second = machine.workers[:2], machine.workers[2:]
    names = [w.name for w in machine.workers]
    assert names == ["gpu0/0", "gpu0/1", "gpu1/0", "gpu1/1"]
    assert [machine.device_of(k) for k in range(4)] == ["gpu0"] * 2 + ["gpu1"] * 2
    assert {w.factor for w in first} == {1.0}
    assert {w.factor for w in second} == {1.32}
    assert {w.curve for w in machine.workers} == {(1.0, 1.3)}
    assert (machine.seed, machine.noise) == (3, 0.1)
    assert machine.links == preset("v100x2").links


def test_one_worker_per_device_changes_nothing():
    machine = preset("v100x2")
    one = machine.with_workers_per_device(1)
    assert [w.name for w in one.workers] == [w.name for w in machine.workers]
    assert one.worker_infos(0.0) == machine.worker_infos(0.0)


def test_workers_of_workers_share_the_first_device():
    machine = preset("v100x1").with_workers_per_device(2).with_workers_per_device(3)
    assert len({w.name for w in machine.workers}) == 6
    assert {machine.device_of(k) for k in range(6)} == {machine.device_of(0)}


def test_device_of():
    machine = Machine("m", (profile("a"), profile("b", device="d")), LINKS)
    assert [machine.device_of(k) for k in (0, 1)] == ["a", "d"]


def test_shared_devices_are_saved_and_loaded(tmp_path):
    machine = preset("v100x4").with_workers_per_device(2, (1, 1.3, 1.25))
    machine.save(tmp_path / "m.json")
    assert Machine.load(tmp_path / "m.json") == machine


def test_old_files_have_no_devices(tmp_path):
    machine = Machine("m", (profile("a"),), LINKS)
    machine.save(tmp_path / "m.json")
    data = json.loads((tmp_path / "m.json").read_text())
    del data["workers"][0]["device"], data["workers"][0]["curve"]
    (tmp_path / "m.json").write_text(json.dumps(data))
    assert Machine.load(tmp_path / "m.json") == machine


@pytest.mark.parametrize(
    ("message", "build"),
    [
        (
            r"number=0: pass a whole number",
            lambda m: m.with_workers_per_device(0),
        ),
        ("curve must begin with 1", lambda m: m.with_workers_per_device(2, (1.1, 1.3))),
        (
            r"curve=.*: pass a sequence of numbers above 0",
            lambda m: m.with_workers_per_device(2, (1.0, 0.0)),
        ),
        (
            "curve=.*: pass a sequence of numbers above 0",
            lambda m: m.with_workers_per_device(2, (1, float("inf"))),
        ),
    ],
)
def test_refused_machines(message, build):
    with pytest.raises(ValueError, match=message):
        build(preset("v100x1"))


# Workers that start and stop


def test_stop_and_start_are_events_and_count_at_once():
    c = clock(profile("a"), profile("b"))
    c.stop(1)
    with pytest.raises(ValueError, match=r"worker 1 \(b\) was stopped: start it first"):
        c.dispatch(1, STEP, (0,))
    c.start(1)
    c.dispatch(1, STEP, (0,))
    assert [c.next() for _ in range(2)] == [Leave(1, 0.0), Join(1, 0.0)]
    assert isinstance(c.next(), Arrival)


def test_a_stopped_worker_finishes_its_round_and_may_still_merge():
    c = clock(profile("a"), profile("b"))
    arrival = c.dispatch(1, LocalRound(2, 1), (0, 0))
    c.stop(1)
    assert list(iter(c.next, None)) == [Leave(1, 0.0), arrival]
    c.merge(MergeAction((0, 1)), 0.0)
    assert isinstance(c.next(), Merged)


def test_events_at_one_time():
    """Merged, then leaves and joins, in this order, then arrivals, then timers."""
    c = clock(profile("a"), profile("b"), profile("c"))
    c.set_timer("x", 0.0)
    c.dispatch(0, LocalRound(0, 1), ())
    c.stop(2)
    c.stop(1)
    c.start(2)
    c.merge(MergeAction((1,), transfers=0), 0.0)
    kinds = [(type(e).__name__, getattr(e, "worker", None)) for e in iter(c.next, None)]
    assert kinds == [
        ("Merged", None),
        ("Leave", 2),
        ("Leave", 1),
        ("Join", 2),
        ("Arrival", 0),
        ("Timer", None),
    ]


@pytest.mark.parametrize(
    ("message", "act"),
    [
        ("worker 0 cannot be started: it is active", lambda c: c.start(0)),
        ("worker 1 cannot be stopped: it is not active", lambda c: c.stop(1)),
        ("no worker 2", lambda c: c.stop(2)),
        ("no worker -1", lambda c: c.start(-1)),
    ],
)
def test_refused_changes(message, act):
    c = clock(profile("a"), profile("b"))
    c.stop(1)
    with pytest.raises(ValueError, match=message):
        act(c)
    assert list(iter(c.next, None)) == [Leave(1, 0.0)]


# Timed copies


def test_seconds_come_before_the_steps():
    c = clock(profile("a", factor=2.0), profile("b"))
    assert c.dispatch(0, LocalRound(2, 1, seconds=3.0), (0, 0)).finish == 3.0 + 4.0
    fetch = c.dispatch(1, LocalRound(0, 1, seconds=3.0), ())
    assert (fetch.start, fetch.finish, fetch.local_round.examples) == (0.0, 3.0, 0)


def test_a_copy_is_no_slower_on_a_shared_device_and_has_no_noise():
    workers = (profile(f"w{k}", device="d") for k in range(2))
    machine = dataclasses.replace(Machine("m", tuple(workers), LINKS), noise=0.5)
    c = SimulatedClock(machine, seed=0)
    assert c.dispatch(0, LocalRound(0, 1, seconds=3.0), ()).finish == 3.0


@pytest.mark.parametrize(
    ("batch_size", "size"), [(0.2, 1), (1.5, 2), (2.5, 2), (7.4, 7), (7.6, 8)]
)
def test_sizes_are_whole_and_at_least_one(batch_size, size):
    local_round = LocalRound(3, batch_size)
    assert (local_round.size, local_round.examples) == (size, 3 * size)
