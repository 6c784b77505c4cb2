"""The files of a comparison: schema, validity, equal bytes, old results are safe."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from full_disk import full_disk

from hetjax.atomic_files import write_whole
from hetjax.machine import preset
from hetjax.report import Comparison, check_out, results_folder, write_results

NAMES = ["results.json", "results.csv"] + [
    f"{plot}.png" for plot in ("time_to_accuracy", "batch_sizes", "timeline")
]
NAMES.append("report.html")


def write(make, folder, turn, **options):
    """The paths of all files of a run whose dictionaries are in another order."""
    h = make(accuracies=(0.1, 0.9))
    h.settings = dict(
        turn([("learning_rate", 0.1), ("momentum", {"x": 1, 2: 0, 10: 0})])
    )
    h.programs = dict(turn([("step", 2), ("merge", 1)]))
    h.workers[0].staleness = dict(turn([(10, 1), (2, 5)]))
    h.workers[0].batch_size_over_time = [(0.0, 32.0), (4.0, 48.0)]
    h.evals = [dict(turn(list(p.items()))) for p in h.evals]
    data = dict(turn([("name", "d"), ("rows", 3)]))
    runs = Comparison([h], data=data, machine={})
    return write_results(runs, folder, version="1.2", **options)


@pytest.fixture(scope="module")
def written(make, tmp_path_factory):
    return write(make, tmp_path_factory.mktemp("written") / "new" / "out", list)


def test_all_files_are_written(written):
    paths = written
    assert [p.name for p in paths] == NAMES
    assert sorted(p.name for p in paths[0].parent.iterdir()) == sorted(NAMES)
    for path in paths[2:5]:
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert paths[5].read_text().startswith("<!DOCTYPE html>")


def test_equal_histories_give_equal_bytes(make, written, tmp_path):
    """Old results that may be overwritten are removed."""
    for name in NAMES:
        (tmp_path / name).write_text("old")
    again = write(make, tmp_path, lambda items: items[::-1], overwrite=True)
    for one, other in zip(written, again, strict=True):
        assert one.name == other.name
        assert one.read_bytes() == other.read_bytes(), one.name
        assert not other.read_bytes().startswith(b"old")


def test_json_schema(runs):
    document = runs.document(version="1.2")
    assert list(document) == [
        *("hetjax", "versions", "data", "machine", "tuning", "target"),
        *(
            "target_is_default",
            "signal",
            "constant",
            "metric",
            "mode",
            "runs",
            "summary",
        ),
    ]
    run = document["runs"][0]
    assert list(run) == [
        *("strategy", "seed", "schedule_seed", "settings", "algorithm", "parts"),
        *("parameters", "command", "output", "duration", "eval_examples"),
        *("at_end", "merges", "root_merges", "unseen_merge", "merge_times"),
        *("compilations", "programs", "compile_seconds", "host_seconds", "stopped"),
        *("real", "placement", "played", "estimates_busy", "step_modes", "events"),
        *("stuck", "interruptions", "staleness", "workers", "evals"),
    ]
    assert list(run["evals"][0]) == [
        *("seconds", "updates", "examples", "loss", "accuracy")
    ]
    assert list(run["workers"][0]) == [
        *("name", "node", "busy", "waiting", "merging", "transfer", "idle"),
        *("updates", "examples", "padded", "lost", "nans"),
        *("cancelled", "cancelled_seconds"),
        *("bytes_received", "bytes_sent", "batch_size_over_time"),
    ]
    assert list(document["summary"][0]) == [
        *("strategy", "best", "best_spread", "final", "collapsed", "at_end"),
        *("seconds_to_target", "waiting_share", "updates", "examples", "merges"),
        *("mb_per_worker", "padding_share", "compilations", "seeds", "stopped"),
    ]


def test_json_values_are_exact(runs, tmp_path):
    runs.histories[0].workers[1].staleness = {2: 5, 10: 1}
    runs.histories[0].workers[1].batch_size_over_time = [(0.0, 32.0), (1.5, 40.25)]
    runs.to_json(tmp_path / "a.json", version="1.2")
    document = json.loads((tmp_path / "a.json").read_text())
    assert document["hetjax"] == "1.2"
    assert document["data"] == {"name": "hand-made"}
    assert document["target"] == runs.target == 0.873  # 0.97 x 0.9
    assert [(r["strategy"], r["seed"]) for r in document["runs"]] == [
        *(("sync", 0), ("async", 0), ("sync", 1), ("sync", 2))
    ]
    run = document["runs"][0]
    assert run["evals"] == runs.histories[0].evals
    assert run["staleness"] == [{}, {"2": 5, "10": 1}]
    assert list(run["staleness"][1]) == ["2", "10"]  # by number, not by text
    assert run["workers"][1]["waiting"] == 4.0
    assert run["workers"][1]["batch_size_over_time"] == [[0.0, 32.0], [1.5, 40.25]]
    assert document["summary"] == runs.summary()


def test_nan_and_infinity_become_null(make, tmp_path):
    h = make(accuracies=(0.1, math.nan), settings={"decay": math.inf})
    h.evals[0]["loss"] = np.float64("nan")
    runs = Comparison([h, make("b")], data={"mean": -math.inf}, machine={})
    runs.to_json(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    document = json.loads(text)
    assert document["data"] == {"mean": None}
    assert document["runs"][0]["settings"] == {"decay": None}
    assert document["runs"][0]["evals"][1]["accuracy"] is None
    assert document["runs"][0]["evals"][0]["loss"] is None
    assert document["summary"][1]["best"] is None
    assert document["summary"][1]["best_spread"] == [None, None]


class Profile(NamedTuple):
    fixed: float
    fn: object


def test_settings_of_any_type(make):
    thing = SimpleNamespace(a=1)
    h = make(
        settings={
            "optimizer": len,
            "sizes": np.array([1, 2]),
            "learning_rate": np.float32(0.5),
            "flag": np.bool_(True),
            "profile": Profile(0.1, thing),
            "kinds": {"b", "a"},
        }
    )
    (run,) = Comparison([h], data={}, machine={}).document()["runs"]
    assert run["settings"] == {
        "flag": True,
        "kinds": ["a", "b"],
        "optimizer": "<built-in function len>",
        "profile": {"fixed": 0.1, "fn": "namespace(a=1)"},
        "learning_rate": 0.5,
        "sizes": [1, 2],
    }


def test_memory_addresses_are_not_in_the_files(make):
    (run,) = Comparison([make(settings={"fn": make})], data={}, machine={}).document()[
        "runs"
    ]
    assert run["settings"] == {"fn": "<function history>"}


@pytest.mark.parametrize("name", NAMES)
def test_old_results_are_not_overwritten(runs, tmp_path, name):
    (tmp_path / name).write_text("old")
    with pytest.raises(
        FileExistsError, match=f"{name}: use --overwrite.*another --out"
    ):
        check_out(tmp_path, overwrite=False)
    with pytest.raises(FileExistsError):
        write_results(runs, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"
    check_out(tmp_path, overwrite=True)


def test_a_folder_without_results_is_accepted(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    check_out(tmp_path)
    check_out(tmp_path / "not_yet_there")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError, match="is a file"):
        check_out(tmp_path / "out", overwrite=True)


def test_an_interruption_leaves_the_old_file(tmp_path):
    path = tmp_path / "results.json"
    path.write_text("old")

    def interrupted(partial):
        partial.write_text("ha")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(path, interrupted)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_what_is_written_and_what_is_not(runs, tmp_path):
    """The plots and the page with them are too large."""
    (tmp_path / NAMES[2]).write_text("old")
    with full_disk(9_000), pytest.raises(OSError, match="too large") as raised:
        write_results(runs, tmp_path, overwrite=True)
    failed, _, written = str(raised.value).partition("; written: ")
    large = [NAMES[2], *NAMES[4:]]
    assert re.findall(r"too large: '(.*?)'", failed) == [
        str(tmp_path / name) for name in large
    ]
    small = NAMES[:2]
    assert written == ", ".join(str(tmp_path / name) for name in small)
    assert {p.name for p in tmp_path.iterdir()} == {*small, NAMES[2]}  # no half files
    assert (tmp_path / NAMES[2]).read_text() == "old"


def test_without_changed_batch_sizes_there_is_no_plot_of_them(runs, tmp_path):
    """An old one of other runs is deleted."""
    (tmp_path / "batch_sizes.png").write_text("old")
    paths = write_results(runs, tmp_path, overwrite=True)
    assert [p.name for p in paths] == [n for n in NAMES if n != "batch_sizes.png"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in paths)


def test_a_full_disk_names_the_file_of_every_method(runs, tmp_path):
    machine = preset("v100x2")
    for write in (runs.to_csv, runs.to_json, runs.report, machine.save):
        path = tmp_path / write.__name__
        with full_disk(10), pytest.raises(OSError, match=f"large: '{path}'"):
            write(path)


def test_the_report_imports_no_pyplot_jax_or_pandas():
    folder = Path(results_folder.__file__).parent
    lines = [line for p in folder.rglob("*.py") for line in p.read_text().splitlines()]
    imports = [line.strip() for line in lines if re.match(r"\s*(import|from) ", line)]
    assert "from matplotlib.figure import Figure" in imports
    assert not [line for line in imports if re.search(r"pyplot|\bjax|pandas", line)]
