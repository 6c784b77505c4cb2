"""The clock of a mesh: planned and true times, timers, and what process 0 says."""

import numpy as np
import pytest

from hetjax.machine import Arrival, LocalRound, Timer, WorkerInfo
from hetjax.runtimes.mesh import mesh_clock as module
from hetjax.runtimes.mesh.mesh_clock import MeshClock, RateEstimate
from hetjax.runtimes.mesh.mesh_player import MeshPlayer
from hetjax.runtimes.mesh.superstep import ControlMessage

STEP = LocalRound(1, 1)


class FakeWave:
    def __init__(self, number):
        self.number, self.launched = number, 0.0


class FakeWaves:
    """Devices that run every wave in the next of the scripted `seconds`."""

    def __init__(self, *seconds, ahead=0, says=None):
        self.script, self.ahead, self.says = list(seconds), ahead, says
        self.count = 0
        self.current, self.in_flight = None, []
        self.device = 0.0  # [s] until when the devices are busy
        self._waves = self  # as `MeshPlayer` has them

    flush = MeshPlayer.flush

    def next(self):
        """End a turn, and take the next event, as the loop does."""
        self.flush()
        event = self._clock.next()
        if isinstance(event, Arrival) and self.current is None:
            self.count += 1
            self.current = FakeWave(self.count)
        return event

    def complete(self):
        if self.current is None:
            return
        while len(self.in_flight) > self.ahead:
            self.finish()
        wave, self.current = self.current, None
        wave.launched = self.device
        word = self.says and self._clock.word()
        self.in_flight.append((wave, self.script.pop(0), word))

    def finish(self):
        wave, seconds, word = self.in_flight.pop(0)
        self.device += seconds
        heard = None if word is None else ControlMessage(*self.says(wave.number))
        self._clock.learn((wave,), self.device, heard)

    def wait(self):
        while self.in_flight:
            self.finish()


def clock_of(waves, *seconds, devices=None, **settings):
    devices = devices or [""] * len(seconds)
    infos = tuple(
        WorkerInfo(k, f"w{k}", "cpu", (), s, 0.0, device)
        for k, (s, device) in enumerate(zip(seconds, devices, strict=True))
    )
    waves._clock = MeshClock(infos, **settings)
    return waves._clock


def dispatch(clock, *rounds):
    """Give each worker a round; the wave forms."""
    for k, local_round in enumerate(rounds):
        clock.dispatch(k, local_round, ())


def play(clock, waves, number, *rounds):
    """So many waves, all of these rounds; every event."""
    dispatch(clock, *rounds)
    events = []
    while (event := waves.next()) is not None:
        events.append(event)
        if isinstance(event, Arrival) and event.worker == len(rounds) - 1:
            number -= 1
            if number:
                dispatch(clock, *rounds)
    waves.wait()
    return events


def test_arrivals_come_in_the_order_of_workers_at_planned_times():
    waves = FakeWaves(2.0, 2.0)
    clock = clock_of(waves, 1.0, 0.5)
    events = play(clock, waves, 1, STEP, LocalRound(3, 1))
    assert [(e.worker, e.start, e.finish) for e in events] == [
        (0, 0.0, 1.0),
        (1, 0.0, 1.5),
    ]


def test_planned_times_are_corrected_to_true_ones():
    """The longest worker is busy during the whole wave, others in proportion."""
    waves = FakeWaves(3.0, 6.0)
    clock = clock_of(waves, 1.0, 0.5)
    events = play(clock, waves, 2, STEP, STEP)
    starts = clock.corrected(np.array([e.start for e in events]))
    finishes = clock.corrected(np.array([e.finish for e in events]))
    np.testing.assert_allclose(starts, [0, 0, 3, 3])
    np.testing.assert_allclose(finishes, [3, 1.5, 9, 6])


def test_what_is_left_of_a_wave_is_not_busy():
    """Waves take three times the measured seconds: the rest is of merges."""
    waves = FakeWaves(*[3.0] * 40)
    clock = clock_of(waves, 1.0, 0.5)
    events = play(clock, waves, 40, STEP, STEP)
    last = events[-2:]
    busy = np.diff(clock.corrected(np.array([[e.start, e.finish] for e in last])))
    np.testing.assert_allclose(busy.ravel(), [1.0, 0.5], rtol=1e-4)


def test_workers_of_a_device_are_busy_while_it_makes_the_steps_of_all():
    waves = FakeWaves(*[5.0] * 40)
    clock = clock_of(waves, 1.0, 1.0, 0.5, devices=["d0", "d0", "d1"])
    events = play(clock, waves, 40, STEP, STEP, STEP)[-3:]
    busy = np.diff(clock.corrected(np.array([[e.start, e.finish] for e in events])))
    np.testing.assert_allclose(busy.ravel(), [2.0, 2.0, 0.5], rtol=1e-4)


def test_a_plan_that_is_ahead_lets_the_devices_catch_up():
    """Waves are slow at first, so that the seconds planned for others are too many."""
    waves = FakeWaves(*[1.0] * 5, *[5.0] * 3, *[1.0] * 60, ahead=1)
    clock = clock_of(waves, 1.0)
    play(clock, waves, 68, STEP)
    assert clock._last_end == pytest.approx(clock.corrected.end, abs=0.1)


def test_waves_without_steps_tell_nothing_of_the_pace():
    """Their planned seconds are made up."""
    waves = FakeWaves(*[2.0, 0.01] * 20)
    clock = clock_of(waves, 1.0)
    events = []
    for i in range(40):
        dispatch(clock, LocalRound((i + 1) % 2, 1))
        events.append(waves.next())
    waves.complete()
    waves.wait()
    clock.set_timer("look", 1e9)
    spans = np.diff(np.array([[e.start, e.finish] for e in events]))[-10:, 0]
    assert max(spans) < 3.0
    assert clock._pace.ratio == pytest.approx(2.0, rel=0.01)


def test_timers_of_equal_time_come_in_their_order():
    waves = FakeWaves()
    clock = clock_of(waves, 1.0)
    for name, seconds in (("first", 2.0), ("early", 1.0), ("z", 3.0)):
        clock.set_timer(name, seconds)
    assert waves.next().name == "early"
    clock.set_timer("a", 3.0)
    assert [waves.next().name for _ in range(3)] == ["first", "z", "a"]


def test_a_timer_comes_before_the_wave_that_ends_after_it():
    waves = FakeWaves(*[1.0] * 9)
    clock = clock_of(waves, 1.0)
    for t in (0.0, 2.5, 6.0):
        clock.set_timer("look", t)
    events = play(clock, waves, 7, STEP)
    kinds = ["timer" if isinstance(e, Timer) else e.finish for e in events]
    assert kinds == ["timer", 1, 2, "timer", 3, 4, 5, 6, "timer", 7]


def test_a_timer_waits_for_what_runs_before_it_is_decided():
    """Waves turn out faster than planned: one more fits before the timer."""
    waves = FakeWaves(0.5, 0.5, 0.5, 0.5, 0.5, ahead=1)
    clock = clock_of(waves, 1.0)
    clock.set_timer("look", 1.9)
    events = play(clock, waves, 4, STEP)
    place = [isinstance(e, Timer) for e in events].index(True)
    assert place in (2, 3)
    assert waves.count == 4


def test_timers_that_are_long_due_come_one_after_the_other():
    waves = FakeWaves(10.0, 10.0)
    clock = clock_of(waves, 1.0)
    for t in (1.5, 2.5, 3.5):
        clock.set_timer("look", t)
    events = play(clock, waves, 2, STEP)
    assert [isinstance(e, Timer) for e in events] == [False, True, True, True, False]


def test_without_rounds_only_timers_come():
    waves = FakeWaves()
    clock = clock_of(waves, 1.0)
    clock.set_timer("look", 3.0)
    assert waves.next() == Timer("look", 3.0)
    assert waves.next() is None


def test_pauses_do_not_count(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    waves = FakeWaves()
    clock = clock_of(waves, 1.0)
    clock.begin()
    now[0] = 12.0
    with clock.paused():
        now[0] = 20.0
    now[0] = 21.0
    assert clock.seconds() == pytest.approx(3.0)
    assert clock.word()[:2] == (3, 0)


def test_short_waves_are_launched_several_at_a_time():
    waves = FakeWaves(*[1e-3] * 60)
    clock = clock_of(waves, 1e-3, several=True)
    chosen = []
    original = clock._choose_at_once
    clock._choose_at_once = lambda seconds: chosen.append(original(seconds)) or 1
    play(clock, waves, 30, STEP)
    assert chosen[0] == 1
    assert chosen[-1] == 16  # 16 ms


def test_where_losses_are_observed_waves_are_launched_one_by_one():
    waves = FakeWaves(*[1e-3] * 60)
    clock = clock_of(waves, 1e-3)
    play(clock, waves, 30, STEP)
    assert clock.at_once == 1


def test_the_word_of_process_0_decides_alone():
    """Two processes whose devices differ expect the same, from process 0's stamps."""

    def says(number):
        return (2 * (number - 1), 500_000, 0, 1)

    found = []
    for seconds in (1.9, 2.3):
        waves = FakeWaves(*[seconds] * 9, says=says)
        clock = clock_of(waves, 1.0)
        clock.set_timer("look", 7.0)
        events = play(clock, waves, 6, STEP)
        found.append([(type(e).__name__, e.time) for e in events])
    assert found[0] == found[1]


@pytest.mark.parametrize("seconds", [7.9e-3, 8.1e-3, 1.0])
def test_process_0_says_how_many_waves_are_launched_at_a_time(seconds):
    """A process whose own clock would choose another number launches as many.

    Programs that differ would exchange numbers that do not belong together.
    """
    numbers = iter(range(1, 100))

    def says(number):
        return (0, 8000 * number, 0, 4 if next(numbers) > 25 else 1)

    waves = FakeWaves(*[seconds] * 60, says=says)
    clock = clock_of(waves, 8e-3, several=True)
    play(clock, waves, 24, STEP)
    assert clock.at_once == 1
    play(clock, waves, 6, STEP)
    assert clock.at_once == 4


def test_process_0_tells_what_it_has_chosen():
    waves = FakeWaves(*[1e-3] * 60)
    clock = clock_of(waves, 1e-3, several=True)
    assert clock.word().at_once == 1
    play(clock, waves, 30, STEP)
    assert clock.word().at_once == clock.at_once == 16


def test_ctrl_c_is_process_0s_word():
    waves = FakeWaves(*[1.0] * 9, says=lambda number: (number, 0, int(number == 3), 1))
    clock = clock_of(waves, 1.0)
    heard = clock.hear_interrupt(lambda: "SIGINT")
    assert heard() is False  # it does not stop by itself
    assert clock.word().interrupted == 1
    play(clock, waves, 2, STEP)
    assert heard() is False
    play(clock, waves, 4, STEP)
    assert heard() is True


def test_that_a_cut_is_due_is_process_0s_word():
    def says(number):
        return (number, 0, 0, 1, int(number == 3))

    waves = FakeWaves(*[1.0] * 9, says=says)
    clock = clock_of(waves, 1.0)
    heard = clock.hear_due(lambda evals: evals == 7)
    assert heard(7) is False
    assert clock.word().due == 1
    play(clock, waves, 6, STEP)
    assert heard(8) is True
    assert clock.word().due == 0
    clock.save()  # the cut was made
    assert heard(8) is False


class TestPace:
    def test_it_follows_what_is_measured(self):
        pace = RateEstimate()
        for k in range(40):
            pace.measure(1.0, launched=2.0 * k, done=2.0 * k + 2.0)
        assert pace.ratio == pytest.approx(2.0, abs=1e-4)
        assert pace.done == 80.0

    def test_a_gap_before_the_launch_does_not_count(self):
        pace = RateEstimate()
        pace.measure(1.0, launched=5.0, done=6.0)
        assert (pace.ratio, pace.done) == (1.0, 6.0)

    def test_stamps_of_process_0_are_one_launch_late(self):
        pace = RateEstimate()
        for k in range(40):
            pace.hear(1.0, stamp=3.0 * k)
        assert pace.ratio == pytest.approx(3.0, abs=1e-4)
        assert pace.done == pytest.approx(120.0, abs=1e-3)
