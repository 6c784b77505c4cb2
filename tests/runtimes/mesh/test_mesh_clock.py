"""The clock of a mesh: planned and true times, timers, control messages."""

import numpy as np
import pytest

from hetjax.machine import Arrival, LocalRound, Timer, WorkerInfo
from hetjax.runtimes.mesh import mesh_clock as module
from hetjax.runtimes.mesh.mesh_clock import MeshClock
from hetjax.runtimes.mesh.mesh_player import MeshPlayer
from hetjax.runtimes.mesh.mesh_times import RateEstimate
from hetjax.runtimes.mesh.superstep import ControlMessage

STEP = LocalRound(1, 1)


class FakeSuperstep:
    def __init__(self, number):
        self.number, self.launched = number, 0.0


class FakeSupersteps:
    """Devices that run every superstep in the next of the scripted `seconds`."""

    def __init__(self, *seconds, ahead=0, says=None):
        self.script, self.ahead, self.says = list(seconds), ahead, says
        self.count = 0
        self.current, self.in_flight = None, []
        self.device = 0.0  # [s] until when the devices are busy
        self._supersteps = self  # as `MeshPlayer` has them

    flush = MeshPlayer.flush

    def next(self):
        """End a turn and return the next event, as the loop does."""
        self.flush()
        event = self._clock.next()
        if isinstance(event, Arrival) and self.current is None:
            self.count += 1
            self.current = FakeSuperstep(self.count)
        return event

    def complete(self):
        if self.current is None:
            return
        while len(self.in_flight) > self.ahead:
            self.finish()
        superstep, self.current = self.current, None
        superstep.launched = self.device
        message = self.says and self._clock.control_message()
        self.in_flight.append((superstep, self.script.pop(0), message))

    def finish(self):
        superstep, seconds, message = self.in_flight.pop(0)
        self.device += seconds
        if message is not None:
            message = ControlMessage(*self.says(superstep.number))
        self._clock.finish_launch((superstep,), self.device, message)

    def wait(self):
        while self.in_flight:
            self.finish()


def clock_of(supersteps, *seconds, devices=None, **settings):
    devices = devices or [""] * len(seconds)
    infos = tuple(
        WorkerInfo(k, f"w{k}", "cpu", (), s, 0.0, device)
        for k, (s, device) in enumerate(zip(seconds, devices, strict=True))
    )
    supersteps._clock = MeshClock(infos, **settings)
    return supersteps._clock


def dispatch(clock, *rounds):
    """Dispatch a round to each worker, which forms a superstep."""
    for k, local_round in enumerate(rounds):
        clock.dispatch(k, local_round, ())


def play(clock, supersteps, number, *rounds):
    """Play `number` supersteps of these rounds; return all events."""
    dispatch(clock, *rounds)
    events = []
    while (event := supersteps.next()) is not None:
        events.append(event)
        if isinstance(event, Arrival) and event.worker == len(rounds) - 1:
            number -= 1
            if number:
                dispatch(clock, *rounds)
    supersteps.wait()
    return events


def test_arrivals_come_in_the_order_of_workers_at_planned_times():
    supersteps = FakeSupersteps(2.0, 2.0)
    clock = clock_of(supersteps, 1.0, 0.5)
    events = play(clock, supersteps, 1, STEP, LocalRound(3, 1))
    assert [(e.worker, e.start, e.finish) for e in events] == [
        (0, 0.0, 1.0),
        (1, 0.0, 1.5),
    ]


def test_planned_times_are_corrected_to_true_ones():
    """The slowest worker is busy for the whole superstep, others in proportion."""
    supersteps = FakeSupersteps(3.0, 6.0)
    clock = clock_of(supersteps, 1.0, 0.5)
    events = play(clock, supersteps, 2, STEP, STEP)
    starts = clock.time_map(np.array([e.start for e in events]))
    finishes = clock.time_map(np.array([e.finish for e in events]))
    np.testing.assert_allclose(starts, [0, 0, 3, 3])
    np.testing.assert_allclose(finishes, [3, 1.5, 9, 6])


def test_the_rest_of_a_superstep_is_not_busy():
    """Supersteps take three times the measured seconds; merges take the rest."""
    supersteps = FakeSupersteps(*[3.0] * 40)
    clock = clock_of(supersteps, 1.0, 0.5)
    events = play(clock, supersteps, 40, STEP, STEP)
    last = events[-2:]
    busy = np.diff(clock.time_map(np.array([[e.start, e.finish] for e in last])))
    np.testing.assert_allclose(busy.ravel(), [1.0, 0.5], rtol=1e-4)


def test_workers_of_a_device_are_busy_while_it_makes_the_steps_of_all():
    supersteps = FakeSupersteps(*[5.0] * 40)
    clock = clock_of(supersteps, 1.0, 1.0, 0.5, devices=["d0", "d0", "d1"])
    events = play(clock, supersteps, 40, STEP, STEP, STEP)[-3:]
    busy = np.diff(clock.time_map(np.array([[e.start, e.finish] for e in events])))
    np.testing.assert_allclose(busy.ravel(), [2.0, 2.0, 0.5], rtol=1e-4)


def test_a_plan_that_is_ahead_lets_the_devices_catch_up():
    """Supersteps are slow at first, so later ones are planned too long."""
    supersteps = FakeSupersteps(*[1.0] * 5, *[5.0] * 3, *[1.0] * 60, ahead=1)
    clock = clock_of(supersteps, 1.0)
    play(clock, supersteps, 68, STEP)
    assert clock._last_end == pytest.approx(clock.time_map.end, abs=0.1)


def test_supersteps_without_steps_do_not_change_the_rate():
    """Their planned seconds are arbitrary."""
    supersteps = FakeSupersteps(*[2.0, 0.01] * 20)
    clock = clock_of(supersteps, 1.0)
    events = []
    for i in range(40):
        dispatch(clock, LocalRound((i + 1) % 2, 1))
        events.append(supersteps.next())
    supersteps.complete()
    supersteps.wait()
    clock.set_timer("look", 1e9)
    spans = np.diff(np.array([[e.start, e.finish] for e in events]))[-10:, 0]
    assert max(spans) < 3.0
    assert clock._rate.ratio == pytest.approx(2.0, rel=0.01)


def test_timers_of_equal_time_come_in_their_order():
    supersteps = FakeSupersteps()
    clock = clock_of(supersteps, 1.0)
    for name, seconds in (("first", 2.0), ("early", 1.0), ("z", 3.0)):
        clock.set_timer(name, seconds)
    assert supersteps.next().name == "early"
    clock.set_timer("a", 3.0)
    assert [supersteps.next().name for _ in range(3)] == ["first", "z", "a"]


def test_a_timer_comes_before_the_superstep_that_ends_after_it():
    supersteps = FakeSupersteps(*[1.0] * 9)
    clock = clock_of(supersteps, 1.0)
    for t in (0.0, 2.5, 6.0):
        clock.set_timer("look", t)
    events = play(clock, supersteps, 7, STEP)
    kinds = ["timer" if isinstance(e, Timer) else e.finish for e in events]
    assert kinds == ["timer", 1, 2, "timer", 3, 4, 5, 6, "timer", 7]


def test_a_timer_waits_for_supersteps_in_flight():
    """Supersteps are faster than planned: one more fits before the timer."""
    supersteps = FakeSupersteps(0.5, 0.5, 0.5, 0.5, 0.5, ahead=1)
    clock = clock_of(supersteps, 1.0)
    clock.set_timer("look", 1.9)
    events = play(clock, supersteps, 4, STEP)
    place = [isinstance(e, Timer) for e in events].index(True)
    assert place in (2, 3)
    assert supersteps.count == 4


def test_overdue_timers_come_one_after_another():
    supersteps = FakeSupersteps(10.0, 10.0)
    clock = clock_of(supersteps, 1.0)
    for t in (1.5, 2.5, 3.5):
        clock.set_timer("look", t)
    events = play(clock, supersteps, 2, STEP)
    assert [isinstance(e, Timer) for e in events] == [False, True, True, True, False]


def test_without_rounds_only_timers_come():
    supersteps = FakeSupersteps()
    clock = clock_of(supersteps, 1.0)
    clock.set_timer("look", 3.0)
    assert supersteps.next() == Timer("look", 3.0)
    assert supersteps.next() is None


def test_pauses_do_not_count(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    supersteps = FakeSupersteps()
    clock = clock_of(supersteps, 1.0)
    clock.begin()
    now[0] = 12.0
    with clock.paused():
        now[0] = 20.0
    now[0] = 21.0
    assert clock.seconds() == pytest.approx(3.0)
    assert clock.control_message()[:2] == (3, 0)


def test_short_supersteps_share_a_launch():
    supersteps = FakeSupersteps(*[1e-3] * 60)
    clock = clock_of(supersteps, 1e-3, several=True)
    chosen = []
    original = clock._choose_per_launch
    clock._choose_per_launch = lambda seconds: chosen.append(original(seconds)) or 1
    play(clock, supersteps, 30, STEP)
    assert chosen[0] == 1
    assert chosen[-1] == 16  # 16 ms


def test_supersteps_are_launched_singly_if_losses_are_observed():
    supersteps = FakeSupersteps(*[1e-3] * 60)
    clock = clock_of(supersteps, 1e-3)
    play(clock, supersteps, 30, STEP)
    assert clock.per_launch == 1


def test_the_control_message_alone_decides():
    """Processes with different devices expect the same, from process 0's stamps."""

    def says(number):
        return (2 * (number - 1), 500_000, 0, 1)

    found = []
    for seconds in (1.9, 2.3):
        supersteps = FakeSupersteps(*[seconds] * 9, says=says)
        clock = clock_of(supersteps, 1.0)
        clock.set_timer("look", 7.0)
        events = play(clock, supersteps, 6, STEP)
        found.append([(type(e).__name__, e.time) for e in events])
    assert found[0] == found[1]


@pytest.mark.parametrize("seconds", [7.9e-3, 8.1e-3, 1.0])
def test_process_0_sets_the_number_of_supersteps_per_launch(seconds):
    """Even if the clock of another process would choose differently.

    Different programs would exchange numbers that do not belong together.
    """
    numbers = iter(range(1, 100))

    def says(number):
        return (0, 8000 * number, 0, 4 if next(numbers) > 25 else 1)

    supersteps = FakeSupersteps(*[seconds] * 60, says=says)
    clock = clock_of(supersteps, 8e-3, several=True)
    play(clock, supersteps, 24, STEP)
    assert clock.per_launch == 1
    play(clock, supersteps, 6, STEP)
    assert clock.per_launch == 4


def test_process_0_broadcasts_its_choice():
    supersteps = FakeSupersteps(*[1e-3] * 60)
    clock = clock_of(supersteps, 1e-3, several=True)
    assert clock.control_message().per_launch == 1
    play(clock, supersteps, 30, STEP)
    assert clock.control_message().per_launch == clock.per_launch == 16


def test_ctrl_c_is_broadcast_by_process_0():
    supersteps = FakeSupersteps(
        *[1.0] * 9, says=lambda number: (number, 0, int(number == 3), 1)
    )
    clock = clock_of(supersteps, 1.0)
    received = clock.broadcast_interrupt(lambda: "SIGINT")
    assert received() is False  # it does not stop by itself
    assert clock.control_message().interrupted == 1
    play(clock, supersteps, 2, STEP)
    assert received() is False
    play(clock, supersteps, 4, STEP)
    assert received() is True


def test_a_due_snapshot_is_broadcast_by_process_0():
    def says(number):
        return (number, 0, 0, 1, int(number == 3))

    supersteps = FakeSupersteps(*[1.0] * 9, says=says)
    clock = clock_of(supersteps, 1.0)
    received = clock.broadcast_due(lambda evals: evals == 7)
    assert received(7) is False
    assert clock.control_message().due == 1
    play(clock, supersteps, 6, STEP)
    assert received(8) is True
    assert clock.control_message().due == 0
    clock.save()  # takes the snapshot
    assert received(8) is False


class TestRateEstimate:
    def test_it_follows_the_measurements(self):
        rate = RateEstimate()
        for k in range(40):
            rate.measure(1.0, launched=2.0 * k, done=2.0 * k + 2.0)
        assert rate.ratio == pytest.approx(2.0, abs=1e-4)
        assert rate.done == 80.0

    def test_a_gap_before_the_launch_does_not_count(self):
        rate = RateEstimate()
        rate.measure(1.0, launched=5.0, done=6.0)
        assert (rate.ratio, rate.done) == (1.0, 6.0)

    def test_stamps_of_process_0_lag_by_one_launch(self):
        rate = RateEstimate()
        for k in range(40):
            rate.receive(1.0, stamp=3.0 * k)
        assert rate.ratio == pytest.approx(3.0, abs=1e-4)
        assert rate.done == pytest.approx(120.0, abs=1e-3)
