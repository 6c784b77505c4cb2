"""The leaderboard: its cells, what is run again, and the folder of its results."""

import importlib
import json
from dataclasses import replace

import numpy as np
import pytest
from absl import flags
from script_parts import no_scripts
from stored_cells import cell

import hetjax as hj
from hetjax.data.held_out import FEW, held_out_rows

TINY = (
    *("--machines=v100x2", "--tasks=digits", "--partitions=iid", "--seeds=2"),
    *("--num_evals=2", "--share=0.01", "--inner=0.1,0.3", "--outer=1"),
    "--grow=0",
)
ALONE = [*TINY, "--strategies=sync_sgd"]  # with the references, which are two


@pytest.fixture(scope="module")
def script():
    """Modules of the leaderboard by name; others' flags are there again at the end."""
    with no_scripts():
        yield lambda name: importlib.import_module(f"experiments.{name}")


@pytest.fixture
def main(script, tmp_path):
    """Run the script in a folder; returns its status."""
    own = script("leaderboard")

    def run(*arguments):
        flags.FLAGS.unparse_flags()
        for name in flags.FLAGS.flags_by_module_dict()["experiments.leaderboard"]:
            name.unparse()
        flags.FLAGS(["leaderboard.py", f"--out={tmp_path}", *arguments])
        own.apply_presets()
        return own.main()

    return run


def stored(folder, place, strategy):
    return json.loads((folder / "cells" / place / f"{strategy}.json").read_text())


# Cells and the script.


@pytest.mark.full
def test_a_cell_has_the_numbers_of_compare(script, main, tmp_path):
    assert main(*ALONE) == 0
    found = stored(tmp_path, "v100x2, digits, iid", "sync_sgd")
    problems = script("leaderboard_problems")
    task, data, _ = problems.problem("digits")
    rates = [pair[0] for pair in found["asked"]["rates"]]
    wanted = hj.compare(
        task,
        data,
        hj.machine.preset("v100x2"),
        {"sync_sgd": hj.sync_sgd(batch_size=32, learning_rate=1.0)},
        seconds=found["asked"]["seconds"],
        seeds=2,
        num_evals=2,
        learning_rates=rates,
        tune="each",
        progress=False,
    )
    assert wanted.tuning is not None
    assert wanted.tuning["chosen"] == {"sync_sgd": found["chosen"][0]}
    scores = list(wanted.tuning["scores"]["sync_sgd"].values())
    np.testing.assert_allclose(found["scores"], scores, rtol=1e-6)
    for run, history in zip(found["runs"], wanted.histories, strict=True):
        points = [[p.seconds, p.accuracy] for p in history.evals]
        np.testing.assert_allclose(run["evals"], points, rtol=1e-6)
    row = wanted.summary()[0]
    moved = np.median([run["mb_per_worker"] for run in found["runs"]])
    assert moved == row["mb_per_worker"]


@pytest.mark.full
def test_pairs_of_rates_on_unlike_shards(script, main, tmp_path):
    arguments = ("--strategies=downpour", "--partitions=unlike", "--outer=0.1,1")
    assert main(*TINY, *arguments) == 0
    found = stored(tmp_path, "v100x2, digits, unlike", "downpour")
    assert found["asked"]["rates"] == [[i, o] for o in (0.1, 1) for i in (0.1, 0.3)]
    best = int(np.argmax(found["scores"]))
    assert found["chosen"] == found["asked"]["rates"][best]
    page = (tmp_path / "leaderboard.md").read_text()
    assert "| downpour | " in page
    assert "unlike" in page


def fake(script, calls):
    """In place of running a cell: a file with a curve, whose height is its number."""

    def run(one, effort, path):
        calls.append(one.strategy)
        problems, cells = script("leaderboard_problems"), script("leaderboard_cells")
        seconds = problems.seconds(one.machine, one.task, effort.share)
        asked = cells.asked(one, effort, seconds)
        curve = [(0, 0.1), (seconds, 0.5 + len(calls) / 100)]
        found = {**cell(one.strategy, curve, curve), "asked": asked}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
        return found

    return run


def test_cells_that_are_done_are_not_run_again(script, main, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(script("leaderboard_cells"), "run", fake(script, calls))
    assert main(*ALONE) == 0
    assert calls == ["sequential_sgd", "sync_sgd"]
    page = (tmp_path / "leaderboard.html").read_text()
    assert main(*ALONE) == 0
    assert len(calls) == 2
    assert (tmp_path / "leaderboard.html").read_text() == page
    assert main(*TINY, "--strategies=hogwild") == 0
    assert calls[2:] == ["hogwild"]
    ranking = json.loads((tmp_path / "leaderboard.json").read_text())["ranking"]
    assert [row["strategy"] for row in ranking] == [
        *("hogwild", "sync_sgd", "sequential_sgd")
    ]
    with pytest.raises(ValueError, match="seeds=2, not 1: pass another --out"):
        main(*ALONE, "--seeds=1")


def test_ctrl_c_leaves_the_page_of_the_cells_that_are_done(
    script, main, tmp_path, monkeypatch
):
    calls = []
    run = fake(script, calls)

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt("SIGINT")
        return run(*arguments)

    monkeypatch.setattr(script("leaderboard_cells"), "run", interrupted)
    assert main(*TINY) == 130
    found = json.loads((tmp_path / "leaderboard.json").read_text())
    assert set(found["places"][0]["strategies"]) == {"sequential_sgd", "sync_sgd"}


def test_an_error_of_one_cell_does_not_end_the_others(
    script, main, tmp_path, monkeypatch
):
    calls = []
    run = fake(script, calls)

    def failing(one, *rest):
        if one.strategy == "hogwild":
            raise RuntimeError("of this one")
        return run(one, *rest)

    monkeypatch.setattr(script("leaderboard_cells"), "run", failing)
    assert main(*TINY, "--strategies=hogwild,async_sgd") == 1
    assert calls == ["sequential_sgd", "sync_sgd", "async_sgd"]
    page = (tmp_path / "leaderboard.md").read_text()
    assert "v100x2, digits, iid, hogwild: RuntimeError: of this one" in page


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--machines=v100", "--machines: 'v100' is not one of v100x4"),
        ("--strategies=sgd", "--strategies: 'sgd' is not one of"),
        ("--part=3/2", "--part=3/2: pass K/N with K from 1 to N"),
        ("--inner=0.3,0.1", "those of --inner have to rise"),
        ("--outer=", "--outer needs rates"),
        ("--tasks=", "--tasks= has no names: pass some of digits"),
        ("--strategies=uniform:4", "--strategies: 'uniform:4' is not one of"),
    ],
)
def test_wrong_flags(main, argument, message):
    with pytest.raises(ValueError, match=message):
        main(*TINY, argument)


@pytest.mark.parametrize("argument", ["--inner=0,1", "--outer=-1", "--outer=nan"])
def test_rates_that_are_none(main, argument):
    with pytest.raises(flags.IllegalFlagValueError, match="steps must move the model"):
        main(*TINY, argument)


def test_processes_have_parts_of_their_own(main):
    with pytest.raises(ValueError, match="pass it without --part"):
        main(*TINY, "--processes=2", "--part=1/2")


def test_a_page_says_what_is_not_done(script, main, tmp_path, monkeypatch):
    monkeypatch.setattr(script("leaderboard_cells"), "run", fake(script, []))
    main(*TINY, "--strategies=hogwild,async_sgd", "--part=1/2")
    note = "2 of 4 cells are not done: ranks of strategies that lack places"
    assert note in (tmp_path / "leaderboard.md").read_text()
    path = tmp_path / "cells" / "v100x2, digits, iid" / "hogwild.json"
    path.write_text(path.read_text().replace('"0.1"', '"0.0"'))
    main(*TINY, "--strategies=hogwild,async_sgd", "--part=2/2")
    assert "remove older ones" in (tmp_path / "leaderboard.md").read_text()


def test_parts_divide_the_cells(script, main, monkeypatch):
    calls = []
    monkeypatch.setattr(script("leaderboard_cells"), "run", fake(script, calls))
    arguments = (*TINY, "--strategies=hogwild,async_sgd")
    assert main(*arguments, "--part=2/2") == 0
    assert calls == ["sync_sgd", "async_sgd"]
    assert main(*arguments, "--part=1/2") == 0
    assert calls[2:] == ["sequential_sgd", "hogwild"]


def test_processes_divide_the_cells(script, main, tmp_path, monkeypatch):
    """Those started here run their part at once, as their arguments say."""
    own, calls = script("leaderboard"), []
    cells = script("leaderboard_cells")
    monkeypatch.setattr(cells, "run", fake(script, calls))
    monkeypatch.setattr("sys.argv", ["leaderboard.py", *ALONE, "--processes=2"])

    class Process:
        def __init__(self, command, **options):
            assert command[1] == "leaderboard.py"
            self.status = main(*command[2:])

        def wait(self):
            return self.status

    monkeypatch.setattr(own.subprocess, "Popen", Process)
    assert main(*ALONE, "--processes=2") == 0
    assert calls == ["sequential_sgd", "sync_sgd"]
    places = json.loads((tmp_path / "leaderboard.json").read_text())["places"]
    assert set(places[0]["strategies"]) == set(calls)


def test_faults_of_a_machine_are_scaled_to_the_run(script, monkeypatch):
    problems = script("leaderboard_problems")
    faults = [hj.machine.ScriptedFault(3.0, "kill", "gpu1")]
    preset = hj.machine.preset("v100x2")
    lossy = replace(preset, faults=tuple(faults))
    monkeypatch.setattr(hj.machine, "preset", lambda name: lossy)
    (fault,) = problems.machine("v100x2", 0.5).faults
    assert fault.seconds == 0.25  # in the middle, as of six seconds


@pytest.mark.parametrize("held", [0, 100])
def test_unlike_shards_have_the_classes_of_the_examples_that_are_left(script, held):
    problems = script("leaderboard_problems")
    classes = np.repeat(np.arange(10), 100)
    workers = hj.machine.preset("v100x4").worker_infos(0.0)
    sampler = problems.shards(classes)
    state = sampler.init(workers, 1000 - held, 3)
    left = classes[held_out_rows(1000, 3, FEW)[0]] if held else classes
    wanted = hj.data.dirichlet(left, 4, alpha=problems.ALPHA, seed=3)
    for worker, rows in enumerate(wanted):
        np.testing.assert_array_equal(sampler.rows(state, worker), rows)
    assert sum(map(len, wanted)) == 1000 - held


def test_a_run_lasts_as_long_as_its_batches(script):
    problems = script("leaderboard_problems")
    times = [w.seconds(32) for w in hj.machine.preset("v100x4").worker_infos(0.0)]
    wanted = problems.TASKS["digits"].batches / sum(1 / t for t in times)
    np.testing.assert_allclose(problems.seconds("v100x4", "digits"), wanted, rtol=5e-3)
