"""Plots of single runs: the Gantt chart, and the file for Perfetto."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from hetjax.engine.records.history import WorkerEvent
from hetjax.report import History, WorkerRecord, plot


@pytest.fixture
def run(make):
    """10 s of two workers: 7 s and 10 s busy, a merge and a transfer of worker 0."""
    h = make("sync", 3, waiting=(3.0, 0.0))
    h.timeline.add(0, "merging", 7.0, 8.5)
    h.timeline.add(0, "transfer", 8.5, 8.75)
    h.workers[0].waiting, h.workers[0].merging, h.workers[0].transfer = 1.25, 1.5, 0.25
    return h


def titles(figure):
    """The titles of the panels, without those of the shares of the whole run."""
    return [ax.get_title("left") for ax in figure.axes[::2]]


def test_only_what_is_public_is_offered():
    assert dir(plot) == ["chrome_trace", "curve", "timeline"]
    for name in dir(plot):
        assert len(getattr(plot, name).__doc__) > 60, name


# The Gantt chart


def test_the_timeline_of_one_run(run):
    figure = plot.timeline(run)
    assert isinstance(figure, Figure)
    left, right = figure.axes
    assert titles(figure) == ["sync: 0 to 10 s of 10 s"]
    assert [t.get_text() for t in left.get_yticklabels()] == ["w0", "w1"]
    labels = {c.get_label() for c in left.collections}
    assert labels == {"busy", "merging", "transfer", "waiting"}
    # in percent, row after row: busy, merging, transfer, waiting and idle
    widths = [p.get_width() for p in right.patches]
    assert widths == pytest.approx([70, 100, 15, 0, 2.5, 0, 12.5, 0, 0, 0])


def test_the_legend_names_transfers_only_if_there_are_any(make, run):
    def legend(history):
        return [t.get_text() for t in plot.timeline(history).legends[0].get_texts()]

    simulated = make(waiting=(3.0,))
    assert legend(simulated) == ["busy", "merging", "waiting", "idle"]
    assert legend(run) == ["busy", "merging", "transfer", "waiting", "idle"]


def test_real_seconds_are_not_called_virtual(make):
    for real, label in ((False, "virtual time [s]"), (True, "time [s]")):
        figure = plot.timeline(make(real=real))
        assert figure.axes[0].get_xlabel() == label


def test_chosen_workers_in_a_window(run):
    figure = plot.timeline(run, workers=[1], window=(2.0, 4.0))
    left, _ = figure.axes
    assert [t.get_text() for t in left.get_yticklabels()] == ["w1"]
    assert left.get_xlim() == (2.0, 4.0)
    assert titles(figure) == ["sync: 2 to 4 s of 10 s, 1 of 2 workers"]


def test_several_runs_are_one_below_the_other(make, run):
    figure = plot.timeline([run, make("async", stopped="loss is nan")])
    expected = ["sync: 0 to 10 s of 10 s", "async: 0 to 10 s of 10 s, stopped early"]
    assert titles(figure) == expected


def test_two_runs_of_one_strategy_are_both_shown(make):
    """A real run and a simulated one."""
    figure = plot.timeline([make("sync", real=True), make("sync", duration=12.0)])
    assert [t.split(" of ")[1] for t in titles(figure)] == ["10 s", "12 s"]


def test_unknown_workers_and_windows(run):
    with pytest.raises(ValueError, match=r"sync has no workers \[2\]: it has 2"):
        plot.timeline(run, workers=[0, 2])
    with pytest.raises(ValueError, match=r"the window \(4.0, 2.0\) is empty"):
        plot.timeline(run, window=(4.0, 2.0))


# Perfetto


def trace_of(history, path):
    """The file's events, by their phase."""
    plot.chrome_trace(history, path)
    data = json.loads(path.read_text(encoding="utf-8"))
    assert set(data) == {"displayTimeUnit", "traceEvents"}
    phases = {"M": [], "X": [], "i": []}
    for event in data["traceEvents"]:
        phases[event["ph"]].append(event)
    return phases


def test_one_event_per_segment_in_microseconds(run, tmp_path):
    events = trace_of(run, tmp_path / "t.json")["X"]
    found = [(e["tid"], e["name"], e["cat"], e["ts"], e["dur"]) for e in events]
    assert found == [
        (0, "busy", "busy", 0.0, 7e6),
        (1, "busy", "busy", 0.0, 10e6),
        (0, "merging", "merging", 7e6, 1.5e6),
        (0, "transfer", "transfer", 8.5e6, 0.25e6),
    ]
    assert {e["pid"] for e in events} == {0}


def test_the_run_and_its_workers_have_names(run, tmp_path):
    process, *threads = trace_of(run, tmp_path / "t.json")["M"]
    assert process["name"] == "process_name"
    assert process["args"] == {"name": "sync, seed 3"}
    assert [t["name"] for t in threads] == ["thread_name"] * 2
    names = [(t["pid"], t["tid"], t["args"]["name"]) for t in threads]
    assert names == [(0, 0, "w0"), (0, 1, "w1")]


def test_worker_events_are_marked_in_their_rows(run, tmp_path):
    run.events = [
        WorkerEvent(1.5, "w1", "lost", "Traceback\nKeyError"),
        WorkerEvent(2.25, "w1", "joined", "as scripted"),
        WorkerEvent(3.0, "w0", "nan", "its loss was nan"),
    ]
    marks = trace_of(run, tmp_path / "t.json")["i"]
    found = [(m["tid"], m["name"], m["ts"], m["args"]["why"]) for m in marks]
    assert found == [
        (1, "lost", 1.5e6, "Traceback\nKeyError"),
        (1, "joined", 2.25e6, "as scripted"),
        (0, "nan", 3e6, "its loss was nan"),
    ]
    assert {(m["pid"], m["s"]) for m in marks} == {(0, "t")}


def test_an_empty_run_gives_a_valid_file(make, tmp_path):
    events = trace_of(make(waiting=()), tmp_path / "t.json")
    assert [len(events[phase]) for phase in ("M", "X", "i")] == [1, 0, 0]


def test_the_path_may_be_a_string(run, tmp_path):
    plot.chrome_trace(run, str(tmp_path / "t.json"))
    assert len(json.loads((tmp_path / "t.json").read_text())["traceEvents"]) == 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("traces")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    names=st.lists(st.text(max_size=9), min_size=1, max_size=4, unique=True),
    spans=st.lists(st.tuples(st.floats(0.0, 1e5), st.floats(0.0, 1e3)), max_size=20),
    why=st.text(max_size=9),
)
def test_any_run_is_valid_json_of_all_its_segments(folder, names, spans, why):
    """With any names of workers."""
    h = History("sync", 0, {}, "accuracy")
    h.workers = [WorkerRecord(name) for name in names]
    h.events = [WorkerEvent(0.0, name, "lost", why) for name in names]
    for number, (start, seconds) in enumerate(spans):
        h.timeline.add(number % len(names), "busy", start, start + seconds)
    events = trace_of(h, folder / "t.json")
    assert [e["args"]["name"] for e in events["M"][1:]] == names
    assert [e["tid"] for e in events["i"]] == list(range(len(names)))
    expected = [(s.worker, 1e6 * s.start, s.finish - s.start) for s in h.timeline]
    found = [(e["tid"], e["ts"], e["dur"] / 1e6) for e in events["X"]]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other)


def test_a_cluster_has_a_group_of_rows_for_each_node(run, tmp_path):
    for worker, node in zip(run.workers, ("a", "b"), strict=True):
        worker.node = node
    run.events = [WorkerEvent(1.5, "w1", "lost", "its node died")]
    phases = trace_of(run, tmp_path / "t.json")
    named = [e["args"]["name"] for e in phases["M"] if e["name"] == "process_name"]
    assert named == ["sync, seed 3, on a", "sync, seed 3, on b"]
    rows = {(e["pid"], e["tid"]) for e in phases["X"]}
    assert rows == {(0, 0), (1, 1)}
    assert [(e["pid"], e["tid"]) for e in phases["i"]] == [(1, 1)]
