"""Progress: lines where the output is no terminal, bars where it is one."""

import io
import sys
import time

import pytest
from tiny_runs import averaging, counting_data, counting_task, machine
from tqdm import tqdm

import hetjax as hj
from hetjax.api import progress
from hetjax.api.progress import ProgressBar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, output, run):
    monkeypatch.setattr(sys, "stderr", output)
    run()
    return output.getvalue()


def compared(**given):
    strategies = {"one": averaging(), "two": averaging(local_steps=2)}
    return hj.compare(
        counting_task(),
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
    assert all("virtual s per second" in line for line in lines[1:])
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
    monkeypatch.setattr(progress, "_LOOK", 0.001)
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
    bar.advance(3.0, {"w": 1.0}, "w")
    bar.skip(100.0)
    bar.close()
    assert moved == [4.0, 1.0, 5.0]
