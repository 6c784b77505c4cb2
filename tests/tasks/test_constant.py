"""The metric of a constant prediction, computed manually; None if it is unknown."""

import numpy as np
import pytest
import scipy.sparse as sp

import hetjax as hj
from hetjax.data.dataset import Dataset, Split
from hetjax.report import Comparison, History
from hetjax.tasks.constant_prediction import constant_metric

X = np.zeros((4, 2), np.float32)
MODEL = hj.from_functions(lambda key: (), lambda params, x: x)


def of(make, train, test, classes=0, x=X):
    data = Dataset(Split(x, train), Split(x, test), classes)
    return constant_metric(make(MODEL, data), data)


def test_the_commonest_class_of_the_training_split():
    train, test = (np.array(y, np.int32) for y in ([1, 1, 0, 1], [0, 1, 0, 0]))
    assert of(hj.classification, train, test, classes=2) == 0.25


def test_the_commonest_label_of_the_training_split():
    train = sp.csr_array(np.array([[1, 0], [1, 1], [0, 0], [1, 0]], np.float32))
    test = sp.csr_array(np.array([[1, 1], [0, 1], [0, 0], [1, 0]], np.float32))
    assert of(hj.classification, train, test, classes=2) == 0.5


def test_the_mean_of_the_training_split():
    train = np.array([[0, 0], [2, 2], [0, 4], [2, 2]], np.float32)  # means 1 and 2
    test = np.array([[1, 2], [1, 2], [1, 2], [3, 0]], np.float32)
    assert of(hj.regression, train, test) == pytest.approx((8 / 8) ** 0.5)


def test_the_frequencies_of_the_training_tokens():
    model = hj.from_functions(
        lambda key: np.zeros(3, np.float32),
        lambda params, x: params[None, None] + np.zeros((*x.shape, 3), np.float32),
    )
    x = np.zeros((1, 4), np.int32)

    def task(_, data):
        return hj.next_token(model, data)

    train = np.array([[0, 0, 1, 2]], np.int32)
    test = {"targets": np.array([[0, 0, 1, 2]]), "mask": np.array([[1, 1, 1, 0]])}
    train = {"targets": train, "mask": np.ones((1, 4), np.int32)}
    assert of(task, train, test, x=x) == pytest.approx((2 * 2 * 4) ** (1 / 3))


def test_other_tasks_have_none():
    y = np.array([1, 1, 0, 1], np.int32)
    data = Dataset(Split(X, y), Split(X, y), 2)
    task = hj.classification(MODEL, data)
    other = task._replace(metrics=lambda *arguments: {})
    assert constant_metric(task, data) == 0.75
    assert constant_metric(other, data) is None
    assert constant_metric(task._replace(metric="p@3"), data) is None


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_table_says_whether_it_reaches_the_target(mode, tmp_path):
    evals = [
        {"seconds": float(t), "updates": 0, "examples": 0, "loss": 1.0, "score": score}
        for t, score in enumerate((0.5, 0.9))
    ]
    history = History("sync", 0, {}, "score", mode, evals=evals)

    def table(constant, target):
        runs = Comparison(
            [history], data={}, machine={}, target=target, constant=constant
        )
        runs.to_json(tmp_path / "results.json")
        again = Comparison.from_json(tmp_path / "results.json")
        assert str(again) == str(runs)
        return str(runs)

    line = "constant prediction: 0.8 score"
    reached, missed = (0.7, 0.85) if mode == "max" else (0.85, 0.7)
    assert f"{line}, which reaches the target: choose a" in table(0.8, reached)
    assert f"{line}\n" in table(0.8, missed)
    assert "constant" not in table(None, reached)
