"""The log of a run, and how it and a timeline are printed."""

import dataclasses

import pytest
from tiny_runs import averaging, machine, train

import hetjax as hj


@pytest.fixture(scope="module")
def history():
    """Worker b is killed in its second round, and the run ends in a's fifth one."""
    fault = hj.machine.ScriptedFault(3.5, "kill", "b")
    workers = dataclasses.replace(machine(1.0, 2.0, link=0.5), faults=(fault,))
    return train(workers, averaging(), 6.0, num_evals=2)


EXPECTED = [
    (0.0, "", "evaluation"),
    (0.0, "a", "dispatch"),
    (0.0, "b", "dispatch"),
    (1.0, "a", "arrival"),
    (2.0, "b", "arrival"),
    (2.0, "a", "merge"),
    (2.0, "b", "merge"),
    (2.5, "", "merged"),
    (2.5, "a", "dispatch"),
    (2.5, "b", "dispatch"),
    (3.0, "", "evaluation"),
    (3.5, "a", "arrival"),
    (3.5, "b", "lost"),
    (3.5, "", "merged"),
    (3.5, "a", "dispatch"),
    (4.5, "a", "arrival"),
    (4.5, "", "merged"),
    (4.5, "a", "dispatch"),
    (5.5, "a", "arrival"),
    (5.5, "", "merged"),
    (5.5, "a", "dispatch"),
    (6.0, "", "evaluation"),
]


def test_a_log_has_every_round_merge_evaluation_and_event(history):
    assert [(s, w, what) for s, w, what, _ in history.log] == EXPECTED


def test_a_truncated_round_has_no_arrival(history):
    """Of b by its loss, and of a by the end; both count as busy."""
    assert history.workers[1].lost == 1
    for name, dispatches, arrivals in (("a", 5, 4), ("b", 2, 1)):
        mine = [e.what for e in history.log if e.worker == name]
        assert (mine.count("dispatch"), mine.count("arrival")) == (dispatches, arrivals)


def test_a_log_is_printed_as_a_table(history):
    first, second = str(history.log[3:5]).splitlines()[1:]
    assert first.split() == ["1.000000", "a", "arrival"]
    assert second.split() == ["2.000000", "b", "arrival"]
    text = str(hj.report.Log([*history.log] * 100))
    assert len(text.splitlines()) == 1 + 2 * 40 + 1
    assert f"...  {100 * len(history.log) - 80:,} more" in text


def test_a_timeline_is_printed_in_one_line(history):
    text = repr(history.timeline)
    assert text.startswith(f"<Timeline: {len(history.timeline)} segments of 2 workers")
    assert "history.log" in text
