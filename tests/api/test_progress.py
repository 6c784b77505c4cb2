"""Progress: bars on a terminal, lines elsewhere."""

import io
import sys
import time
import warnings

import pytest
from small_runs import at, send, train
from tiny_runs import averaging, counting_data, counting_task, machine
from tqdm import tqdm

import hetjax as hj
from hetjax.api import progress
from hetjax.api.progress import ProgressBar, step_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, output, run):
    monkeypatch.setattr(sys, "stderr", output)
    run()
    return output.getvalue()


TASK = counting_task()


def compared(**given):
    strategies = {"one": averaging(), "two": averaging(local_steps=2)}
    return hj.compare(
        TASK,
        counting_data(),
        machine(1.0, 1.0),
        strategies,
        seconds=10.0,
        num_evals=10,
        **given,
    )


def test_a_line_for_every_tenth_where_there_is_no_terminal(monkeypatch):
    text = shown(monkeypatch, io.StringIO(), compared)
    lines = text.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"{k:3.0f} %" for k in range(0, 101, 10)
    ]
    assert all("one, w " in line for line in lines[:6])
    assert all("two, w " in line for line in lines[6:])
    assert lines[0] == "  0 %, one, w 0.0000"
    assert all("virtual s/s, " in line for line in lines[1:])
    assert "\r" not in text


def test_a_bar_for_every_run_on_a_terminal(monkeypatch):
    text = shown(monkeypatch, Terminal(), compared)
    ends = [piece for piece in text.split("\r") if "100%" in piece]
    assert any("one (1/2) 100%" in end and "10/10 virtual s" in end for end in ends)
    assert any("two (2/2) 100%" in end and "w 10.0000" in end for end in ends)
    assert "virtual s/s" in text


def test_no_silence_for_long(monkeypatch):
    monkeypatch.setattr(progress, "SILENCE", 0.0)
    text = shown(monkeypatch, io.StringIO(), compared)
    assert len(text.splitlines()) >= 2 * 11


@pytest.mark.parametrize("output", [io.StringIO, Terminal])
def test_nothing_where_none_is_wanted(monkeypatch, output):
    assert shown(monkeypatch, output(), lambda: compared(progress=False)) == ""


def test_a_run_that_stops_early_ends_at_its_end(monkeypatch):
    text = shown(monkeypatch, io.StringIO(), lambda: compared(target=2.0, epochs=0.1))
    assert text.splitlines()[-1].startswith("100 %")


def test_it_follows_the_clock_between_evaluations(monkeypatch):
    """It never goes back when an evaluation is behind the clock."""
    monkeypatch.setattr(progress, "_PERIOD", 0.001)
    monkeypatch.setattr(sys, "stderr", Terminal())
    moved = []
    update = tqdm.update
    monkeypatch.setattr(tqdm, "update", lambda b, n: moved.append(n) or update(b, n))
    bar = ProgressBar(10.0)
    bar.begin("run", 10.0)
    with bar.following(lambda: 4.0):
        deadline = time.monotonic() + 10
        while not moved and time.monotonic() < deadline:
            time.sleep(0.001)
    bar.advance(2.0, {"w": 1.0}, "w")
    bar.advance(5.0, {"w": 1.0}, "w")
    bar.finish()
    shown = bar._bar
    bar.close()
    assert moved == [4.0, 1.0]
    assert (shown.n, shown.initial) == (10.0, 5.0)  # its rate is of 5 seconds


def test_rates_are_of_what_was_run(monkeypatch):
    """A resumed run shows no time left before it has run."""
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def goes_on():
        bar = ProgressBar(100.0, real=True)
        bar.begin("one", 50.0)
        now[0] = 0.5
        bar.advance(30.0, {"w": 1.0}, "w", ran=False)
        now[0] = 5.0
        bar.advance(40.0, {"w": 1.0}, "w")
        now[0] = 6.0
        bar.finish()
        bar.begin("two", 50.0)
        now[0] = 12.0
        bar.advance(100.0, {"w": 1.0}, "w")
        bar.close()

    lines = shown(monkeypatch, io.StringIO(), goes_on).splitlines()
    assert lines == [
        " 30 %, one, w 1.0000",
        " 40 %, one, w 1.0000,  2.00 s/s, 00:30 left",  # 10 s in 5 s
        " 50 %, one, w 1.0000,  1.67 s/s, 00:30 left",
        "100 %, two, w 1.0000,  5.00 s/s, 00:00 left",  # 60 s in 12 s
    ]


def test_rates_of_runs_that_are_played_at_once(monkeypatch):
    """Their seconds are those since the call, not since the computer started."""
    before = time.perf_counter()
    text = shown(
        monkeypatch, io.StringIO(), lambda: compared(learning_rates=[0.1, 0.2])
    )
    spent = time.perf_counter() - before
    line = text.splitlines()[-1]
    assert "2 x one" in text
    assert line.endswith(", 00:00 left")
    rate = float(line.split(", ")[-2].split()[0])
    assert rate >= 60.0 / spent  # 60 virtual seconds in all


@pytest.mark.parametrize("output", [io.StringIO, Terminal])
def test_a_run_that_is_interrupted_ends_where_it_was(monkeypatch, output):
    stop = at(4, send("SIGINT"))
    text = shown(monkeypatch, output(), lambda: train(on_eval=stop, progress=True))
    assert "30%" in text or " 30 %" in text
    assert "100%" not in text
    assert "100 %" not in text


def test_the_rate_of_a_bar_is_of_what_was_run(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])

    def goes_on():
        bar = ProgressBar(10.0)
        bar.begin("one", 10.0)
        bar.advance(7.0, {"w": 1.0}, "w", ran=False)
        now[0] = 2.0
        bar.advance(10.0, {"w": 1.0}, "w")
        bar.close()

    text = shown(monkeypatch, Terminal(), goes_on)
    *_, running, over = (piece for piece in text.split("\r") if "100%" in piece)
    assert "[00:02<00:00,  1.50 virtual s/s" in running
    assert "[00:02<00:00,  1.50 virtual s/s" in over


def test_a_run_of_a_third_of_a_second_fills_its_bar(monkeypatch):
    """Its steps add up to more, in floating point, which tqdm would warn of."""

    def two_steps():
        bar = ProgressBar(1 / 3)
        bar.begin("one", 1 / 3)
        for time_at in (1 / 3 / 6, 1 / 3):
            bar.advance(time_at, {"w": 1.0}, "w")
        bar.close()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = shown(monkeypatch, Terminal(), two_steps)
    assert "100%|##########| 0.333/0.333 virtual s" in text


def test_lines_of_steps_where_there_is_no_terminal(monkeypatch):
    def two_steps():
        with step_bar(2, "round", shown=True, silence=0.0) as bar:
            bar.set_description_str("calibrating", refresh=False)
            bar.update()
            bar.update()

    text = shown(monkeypatch, io.StringIO(), two_steps)
    assert text == "calibrating, 1 of 2 rounds\ncalibrating, 2 of 2 rounds\n"
