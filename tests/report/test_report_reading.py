"""Comparisons read back from results.json, and the sum of two comparisons."""

import json
import math

import pytest

from hetjax.engine.records.history import Interruption, WorkerEvent
from hetjax.report import Comparison, plot


@pytest.fixture
def rich(histories):
    """A comparison in which every stored field differs from its default."""
    first, other = histories[0], histories[1]
    first.workers[0].batch_size_over_time = [(0.0, 32.0), (4.0, 48.5)]
    first.workers[0].staleness = {2: 5, 10: 1}
    first.workers[1].lost, first.workers[1].nans, first.workers[1].padded = 1, 2, 64
    first.workers[1].cancelled, first.workers[1].cancelled_seconds = 3, 0.75
    first.merge_times.extend([2.0, 4.0, 8.0])
    first.merges = 3
    first.eval_examples, first.at_end = 100, {"examples": 500.0, "accuracy": 0.93}
    first.output, first.placement, first.step_modes = (
        "chunked",
        "mesh",
        {"cpu": "fused"},
    )
    first.real, first.estimates_busy = True, True
    first.events = [WorkerEvent(1.5, "w1", "lost", "Traceback <\n")]
    first.interruptions = [Interruption(3.0, 2, "damaged")]
    first.stuck, first.programs = ["w1"], {"step": 2}
    first.compile_seconds, first.host_seconds = 1.25, 2.5
    other.evals[2]["accuracy"], other.stopped = math.nan, "loss is nan"
    tuning = {
        "tune": "each",
        "held_out": 90,
        "scores": {"sync": {"0.5": 0.9}},
        "chosen": {"sync": 0.5},
    }
    return Comparison(
        histories,
        data={"name": "hand-made", "notes": []},
        machine={"workers": [{"name": "w0", "speed": math.inf}]},
        tuning=tuning,
        signal="SIGTERM",
        versions={"hetjax": "0.0.1", "jax": "0.9", "python": "3.11.2"},
    )


def stored(comparison, folder):
    """The comparison after a round trip through a file."""
    comparison.to_json(folder / "results.json")
    return Comparison.from_json(folder / "results.json")


def test_a_merge_that_never_ends_is_stored(rich, tmp_path):
    rich.histories[0].unseen_merge = math.inf
    assert stored(rich, tmp_path).histories[0].unseen_merge == math.inf


@pytest.mark.parametrize("changes", [{}, {"target": 0.55}])
def test_a_stored_comparison_is_the_same(rich, tmp_path, changes):
    if changes:
        rich = Comparison(rich.histories, data={}, machine={}, **changes)
    again = stored(rich, tmp_path)
    assert again.document() == rich.document()
    assert Comparison.from_json(tmp_path).document() == rich.document()
    assert again.target_is_default == rich.target_is_default == (not changes)
    assert again.table() == rich.table()
    assert again.table(target=0.5) == rich.table(target=0.5)
    rich.to_csv(tmp_path / "a.csv")
    again.to_csv(tmp_path / "b.csv")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    for name in ("plot", "plot_batch_sizes"):
        figures = [getattr(c, name)() for c in (rich, again)]
        assert figures[0]._repr_png_() == figures[1]._repr_png_(), name


def test_the_document_of_a_metric_to_minimize_comes_back(make, tmp_path):
    runs = Comparison([make(accuracies=(0.9, 0.2), mode="min")], data={}, machine={})
    again = stored(runs, tmp_path)
    assert again.mode == "min"
    assert again.histories[0].best() == 0.2
    assert again.table() == runs.table()


def test_timelines_are_not_stored(rich, tmp_path):
    again = stored(rich, tmp_path)
    calls = (
        again.plot_timeline,
        lambda: plot.timeline(again.histories[0]),
        lambda: plot.chrome_trace(again.histories[0], tmp_path / "t.json"),
    )
    for call in calls:
        with pytest.raises(ValueError, match="sync, seed 0, .* has no timelines: .*"):
            call()
    assert not (tmp_path / "t.json").exists()


FIELDS = [
    *(["metric"], ["mode"], ["target"], ["target_is_default"], ["hetjax"], ["data"]),
    *(["versions"], ["machine"], ["tuning"], ["signal"], ["runs"]),
    *(["runs", 1, name] for name in ("strategy", "seed", "evals", "duration")),
    *(["runs", 1, name] for name in ("workers", "stopped", "events", "staleness")),
    *(["runs", 1, "evals", 2, name] for name in ("seconds", "loss", "accuracy")),
    *(["runs", 1, "workers", 0, name] for name in ("name", "busy", "updates")),
]


@pytest.mark.parametrize("how", ["missing", "of another type"])
@pytest.mark.parametrize("path", FIELDS, ids=lambda p: ".".join(map(str, p)))
def test_fields_are_named(runs, tmp_path, path, how):
    document = runs.document()
    *above, name = path
    holder = document
    for key in above:
        holder = holder[key]
    holder.pop(name)
    if how != "missing":
        holder[name] = [[1]] if not isinstance(runs.document()[path[0]], list) else {}
    file = tmp_path / "old.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ValueError, match=r"old\.json") as found:
        Comparison.from_json(file)
    message = str(found.value)
    assert "\n" not in message
    where = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in path)[1:]
    assert f" {where} is " in message


def test_other_files_are_refused(tmp_path):
    file = tmp_path / "a.json"
    for text, message in (
        ("{", "a.json is not JSON: "),
        ("[]", "a.json: its content is not a JSON object"),
        ("{}", "a.json is not a results.json of this version .*: mode is missing"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            Comparison.from_json(file)
    with pytest.raises(FileNotFoundError):
        Comparison.from_json(tmp_path / "b.json")


# Sums


def part(*histories, **changes):
    about = {"data": {"rows": 3}, "machine": {"name": "m"}, **changes}
    return Comparison(list(histories), **about)


def test_the_sum_has_the_runs_of_both(make):
    one = part(make("a", 0, (0.1, 0.5)))
    other = part(make("a", 1, (0.1, 0.7)), make("b", 0, (0.9,)))
    both = one + other
    assert [(h.strategy, h.seed) for h in both.histories] == [
        *(("a", 0), ("a", 1), ("b", 0))
    ]
    assert both.target_is_default
    assert both.target == 0.873  # 0.97 x 0.9, no longer 0.97 x 0.5
    assert both.table() == part(*one.histories, *other.histories).table()


def test_a_given_target_is_that_of_the_sum(make):
    a, b = make("a", 0, (0.5,)), make("b", 0, (0.9,))
    for both in (
        part(a, target=0.4) + part(b, target=0.4),
        part(a, target=0.4) + part(b),
        part(a) + part(b, target=0.4),
    ):
        assert (both.target, both.target_is_default) == (0.4, False)
    with pytest.raises(ValueError, match=r"targets 0.4 and 0.5 cannot be added"):
        part(a, target=0.4) + part(b, target=0.5)


def test_what_differs_is_named(make):
    one = part(make("a", 0, (0.5,)))
    b = make("b", 0, (0.9,))
    for other, message in (
        (part(b, data={"rows": 4}), r"data.rows is 3 in one, and 4 in the other"),
        (part(b, machine={"name": "n"}), r"machine.name is 'm' in one, and 'n'"),
        (part(b, machine={"name": "m", "x": 1}), r"machine.x is None in one, and 1"),
        (part(make("b", 0, (), metric="p_at_1")), "metrics: accuracy, p_at_1"),
        (
            part(make("b", 0, (0.9,), mode="min")),
            "a larger accuracy is better",
        ),
        (part(make("a", 0, (0.6,))), "two runs are named 'a' with seed 0"),
    ):
        with pytest.raises(ValueError, match=message):
            one + other
    with pytest.raises(TypeError):
        one + 1


def test_a_stored_comparison_can_be_added(make, tmp_path):
    one, other = part(make("a", 0, (0.5,))), part(make("b", 0, (0.9,)))
    both = stored(one, tmp_path) + other
    assert both.table() == (one + other).table()


def test_tuning_and_versions_are_joined(make):
    def tuned(name, seed, learning_rate, version="1"):
        tuning = {
            "tune": "each",
            "held_out": 9,
            "scores": {name: {"0.1": 0.5}},
            "chosen": {name: learning_rate},
        }
        versions = {"hetjax": version, "jax": "2"}
        runs = make(name, seed, (0.5,))
        return part(runs, tuning=tuning, versions=versions)

    both = tuned("a", 0, 0.1) + tuned("b", 0, 0.2, version="1.1")
    assert both.tuning["chosen"] == {"a": 0.1, "b": 0.2}
    assert both.versions == {"hetjax": "1 and 1.1", "jax": "2"}
    assert (part(make("c", 0, (0.1,))) + tuned("a", 0, 0.1)).tuning["held_out"] == 9
    with pytest.raises(ValueError, match="tuning.chosen.a is 0.1 in one, and 0.2"):
        tuned("a", 0, 0.1) + tuned("a", 1, 0.2)
