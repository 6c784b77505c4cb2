"""Evaluations on a part of the test split, and on all of it at the end."""

import csv
import json
import signal
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.machine import preset

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
DATA = from_arrays((X[:40], Y[:40]), (X[40:], Y[40:]), num_classes=3)
TASK = hj.classification(hj.models.mlp(hidden=5), DATA)
STRATEGY = hj.sync_sgd(batch_size=4, learning_rate=0.5)
COMMON = {"seconds": 0.01, "num_evals": 2}
MACHINE = preset("uniform:2")


def train(**options):
    return hj.train(
        TASK, DATA, MACHINE, STRATEGY, **{**COMMON, "progress": False, **options}
    )


def accuracy_on(history, rows):
    logits = history.model(DATA.test.x[rows])
    return float((np.asarray(logits).argmax(1) == DATA.test.y[rows]).mean())


def test_the_curve_is_of_a_part_and_the_end_of_all():
    whole, part = train(), train(eval_examples=7)
    assert (whole.eval_examples, whole.at_end) == (0, {})
    assert part.eval_examples == 7
    assert part.at_end["examples"] == 50
    assert part.at_end["accuracy"] == pytest.approx(whole.evals[-1]["accuracy"])
    assert part.at_end["loss"] == pytest.approx(whole.evals[-1]["loss"], rel=1e-6)
    rows = np.sort(np.random.default_rng(0).permutation(50)[:7])
    assert part.evals[-1]["accuracy"] == pytest.approx(accuracy_on(part, rows))
    assert part.at_end["accuracy"] == pytest.approx(accuracy_on(part, np.arange(50)))
    # other seeds and strategies see the same examples
    again = train(eval_examples=7, seed=3)
    assert again.evals[-1]["accuracy"] == pytest.approx(accuracy_on(again, rows))


FEW = np.zeros((50, 3), np.float32)
FEW[[4, 30, 41], [0, 1, 1]] = 1


@cache
def labelled():
    """A multi-label task, in whose test split few rows have labels."""
    labels = np.eye(3, dtype=np.float32)[Y[:40]]
    data = from_arrays(
        (X[:40], sp.csr_array(labels)), (X[40:], sp.csr_array(FEW)), num_classes=3
    )
    return hj.classification(hj.models.mlp(hidden=5), data), data


@pytest.mark.parametrize("number", [2, 5, 20])
def test_a_part_without_labels(number):
    """It would have no loss, and end the run as if it diverged: one has labels."""
    task, data = labelled()
    history = hj.train(
        task, data, MACHINE, STRATEGY, **COMMON, eval_examples=number, progress=False
    )
    assert not history.stopped
    assert history.eval_examples == number
    assert history.at_end["examples"] == 50
    # the same for few examples with labels as for all: others are in the mean, too
    rows = np.sort(np.random.default_rng(0).permutation(50)[:20])
    right = np.take_along_axis(
        FEW, np.asarray(history.model(X[40:])).argmax(1)[:, None], 1
    )
    assert history.at_end["p@1"] == pytest.approx(right.mean())
    if number == 20:
        assert history.evals[-1]["p@1"] == pytest.approx(right[rows].mean())


def test_learning_rates_are_chosen_on_a_part():
    """And no such run is evaluated on all that was held out."""
    comparison = hj.compare(
        TASK,
        DATA,
        MACHINE,
        {"sync": STRATEGY},
        **COMMON,
        eval_examples=3,
        learning_rates=(0.1, 0.5),
        progress=False,
    )
    assert comparison.tuning["held_out"] == 3
    assert comparison.histories[0].eval_examples == 3
    assert comparison.histories[0].at_end["examples"] == 50


def test_a_run_that_is_resumed_is_evaluated_on_the_same_part(tmp_path):
    settings = {"eval_examples": 7, "seconds": 0.05, "num_evals": 5}
    once = train(**settings)
    points = []

    def interrupt(point):
        points.append(point)
        if len(points) == 3:
            signal.raise_signal(signal.SIGTERM)

    first = train(**settings, checkpoint=tmp_path / "run", on_eval=interrupt)
    assert first.interrupted
    assert first.at_end == {}  # evaluating all takes long, and the process should end
    again = hj.resume(
        tmp_path / "run", task=TASK, data=DATA, strategy=STRATEGY, progress=False
    )
    assert (again.eval_examples, again.evals) == (7, once.evals)
    assert again.at_end == once.at_end


@pytest.mark.parametrize("number", [50, 51, 10**9])
def test_no_fewer_than_all(number):
    history = train(eval_examples=number)
    assert (history.eval_examples, history.at_end) == (0, {})
    assert history.evals == train().evals


def test_a_run_that_stops_early_is_evaluated_at_its_end():
    history = train(eval_examples=7, target=0.0)
    assert history.stopped
    assert len(history.evals) == 1
    assert history.at_end["accuracy"] == pytest.approx(
        accuracy_on(history, np.arange(50))
    )


def test_the_table_says_so(tmp_path):
    strategies = {
        "sync": STRATEGY,
        "local": hj.local_sgd(batch_size=4, learning_rate=0.5, local_steps=2),
    }
    comparison = hj.compare(
        TASK, DATA, MACHINE, strategies, **COMMON, eval_examples=7, progress=False
    )
    text = str(comparison.table())
    assert "on the whole test split" in text
    assert f"constant prediction: {comparison.constant:.3g} accuracy" in text
    assert "evaluations during a run are on 7 test examples" in text
    assert "those at its end on all 50" in text
    for row, history in zip(comparison.summary(), comparison.histories, strict=True):
        assert row["at_end"] == history.at_end["accuracy"]
        assert f"{row['at_end']:.3f}" in text
    comparison.to_json(tmp_path / "results.json")
    run = json.loads((tmp_path / "results.json").read_text())["runs"][0]
    assert run["eval_examples"] == 7
    assert run["at_end"]["examples"] == 50
    comparison.to_csv(tmp_path / "evals.csv")
    with (tmp_path / "evals.csv").open() as file:
        assert len(list(csv.reader(file))) == 1 + 2 * 3
    usual = str(
        hj.compare(TASK, DATA, MACHINE, strategies, **COMMON, progress=False).table()
    )
    assert "whole test split" not in usual
    assert "during a run" not in usual


def test_a_checkpointed_run_remembers_it(tmp_path):
    first = train(eval_examples=7, checkpoint=tmp_path / "run")
    again = train(eval_examples=7, checkpoint=tmp_path / "run")
    assert again.at_end == first.at_end
    assert again.evals == first.evals
    with pytest.raises(ValueError, match="eval_examples"):
        train(eval_examples=8, checkpoint=tmp_path / "run")


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "all"])
def test_values_that_cannot_be_meant(value):
    with pytest.raises(ValueError, match=f"eval_examples={value!r}: pass a whole"):
        train(eval_examples=value)
