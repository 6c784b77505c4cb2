"""Callbacks: what stops a run and why, what is written, what an exception leaves."""

import csv
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_runs import averaging, counting_data, counting_task, machine

import hetjax as hj
from hetjax.callbacks import Callbacks, EarlyStopping


def run(on_eval, seconds=10.0, **given):
    """The metric w grows by 1 each second."""
    given = {"num_evals": 10, "progress": False, **given}
    workers = machine(1.0, 1.0)
    strategy = averaging()
    task, data = counting_task(), counting_data()
    return hj.train(
        task, data, workers, strategy, seconds=seconds, on_eval=on_eval, **given
    )


def test_stop_ends_the_run_at_that_evaluation():
    history = run(lambda point: hj.STOP if point["w"] >= 3 else None)
    assert [point["w"] for point in history.evals] == [0, 1, 2, 3]
    assert history.stopped == "stopped at 3 s as asked: on_eval returned STOP"
    assert history.error is None


@pytest.mark.parametrize("answer", [None, True, 0, "stop"])
def test_nothing_else_does(answer):
    assert len(run(lambda point: answer).evals) == 11


def test_all_of_several_callbacks_see_every_evaluation():
    seen = []
    history = run([seen.append, lambda p: p["w"] == 2 and hj.STOP, seen.append])
    assert seen == [point for point in history.evals for _ in range(2)]
    seen[0].clear()  # a copy: the history keeps its own
    assert history.evals[0]


def test_an_exception_keeps_the_history_and_closes_the_others(tmp_path):
    def fails(point):
        if point["w"] == 4:
            raise RuntimeError("no more")

    file = hj.callbacks.CSV(tmp_path / "evals.csv")
    with pytest.raises(RuntimeError, match="no more") as caught:
        run([file, fails])
    assert len(caught.value.history.evals) == 5
    assert file._file.closed
    history = run([fails, file], on_error="keep")  # all see what one fails at
    assert len(rows(tmp_path / "evals.csv")) == 5
    assert history.stopped == "on_eval raised RuntimeError: no more"
    assert len(history.evals) == 5


def test_what_has_begun_is_closed_if_the_next_one_cannot_begin(tmp_path):
    first = hj.callbacks.CSV(tmp_path / "evals.csv")
    with pytest.raises(FileNotFoundError):
        run([first, hj.callbacks.CSV(tmp_path / "nowhere" / "evals.csv")])
    assert first._file.closed


def test_a_failing_close_keeps_the_history():
    def close():
        raise OSError("disk full")

    class Fails:
        def __call__(self, point):
            pass

    callback = Fails()
    callback.close = close
    history = run(callback, on_error="keep")
    assert len(history.evals) == 11
    assert str(history.error) == "disk full"


@pytest.mark.parametrize("wrong", ["print", 3, [print, 3]])
def test_what_is_no_callback_is_an_error(wrong):
    with pytest.raises(ValueError, match=r"on_eval=.*: pass a function"):
        run(wrong)


def expected_stop(values, mode, patience, delta):
    """The number of evaluations after which patience is at its end."""
    sign = 1 if mode == "max" else -1
    best, since = -np.inf, 0
    for k, value in enumerate(values):
        if sign * value > best + delta:
            best, since = sign * value, 0
        else:
            since += 1
        if since >= patience:
            return k + 1
    return len(values) + 1


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("patience", [1, 3])
@pytest.mark.parametrize("delta", [0.0, 0.5])
def test_early_stopping_beside_a_plain_count(mode, patience, delta):
    rng = np.random.default_rng(patience)
    stopping = EarlyStopping("m", mode=mode, patience=patience, min_delta=delta)
    for _ in range(20):
        values = rng.normal(size=12).cumsum()
        points = [{"m": value} for value in values]
        stop = expected_stop(values, mode, patience, delta)
        stopping.begin(points[:2] if stop > 2 else [])
        rest = points[2:] if stop > 2 else points
        asked = [stopping(point) for point in rest]
        first = next((k + 1 for k, a in enumerate(asked) if a), len(rest) + 1)
        assert first + len(points) - len(rest) == stop


def test_early_stopping_says_why():
    stopping = hj.callbacks.EarlyStopping("loss", mode="min", patience=2)
    history = run(stopping)
    assert len(history.evals) == 3  # the loss is 1 from the start
    assert "loss has not improved on 1 for 2 evaluations" in history.stopped
    assert run(stopping).stopped == history.stopped  # it serves another run


def test_an_untrained_model_does_not_try_patience():
    """Nothing counts before the first merge, which changes the model."""
    stopping = EarlyStopping("m", mode="max", patience=2)
    same = {"seconds": 0.0, "updates": 0, "m": 0.5}
    for k in range(9):
        assert stopping({**same, "seconds": float(k), "updates": k}) is None
    assert [bool(stopping({**same, "m": m})) for m in (0.4, 0.5, 0.5)] == [
        False,
        True,
        True,
    ]


WRONG = [
    ({"mode": "least"}, "mode='least': choose one of"),
    ({"mode": "min", "patience": 0}, "patience=0: pass a whole number"),
    ({"mode": "min", "min_delta": -1.0}, "min_delta=-1.0: pass a number of at least 0"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_early_stopping_that_cannot_be_meant(given, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping("loss", **given)


def test_a_metric_that_is_not_there_ends_the_run_with_its_name():
    stopping = EarlyStopping("accuracy", mode="max")
    with pytest.raises(ValueError, match="an evaluation has no 'accuracy', only"):
        run(stopping)


def rows(path):
    with path.open() as file:
        return [
            {k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)
        ]


def test_csv_is_the_history(tmp_path):
    path = tmp_path / "evals.csv"
    lengths, file = [], hj.callbacks.CSV(path)
    history = run([file, lambda point: lengths.append(len(rows(path)))])
    assert rows(path) == history.evals
    assert lengths == list(range(1, 12))  # at once


def test_a_continued_run_has_its_whole_csv_and_patience(tmp_path):
    """Evaluations before the interruption are told again to what keeps count."""
    path = tmp_path / "evals.csv"

    def given(stops=None):
        return [
            hj.callbacks.CSV(path),
            EarlyStopping("loss", mode="min", patience=5),
            lambda point: stops and point["w"] == stops and _interrupt(),
        ]

    def _interrupt():
        signal.raise_signal(signal.SIGINT)

    whole = run(given())
    kept = {"checkpoint": tmp_path / "run", "every": "1 evals"}
    cut = run(given(stops=3), **kept)
    assert cut.interrupted
    again = run(given(), **kept)
    assert again.evals == whole.evals == rows(path)
    assert again.stopped == whole.stopped


def test_files_are_the_first_processs(tmp_path):
    path = tmp_path / "evals.csv"
    others = Callbacks([hj.callbacks.CSV(path), print], writes=False)
    others.begin([])
    assert not path.exists()
    assert others.close() is None


def test_tensorboard_writes_every_number(tmp_path):
    pytest.importorskip("tensorboardX")
    history = run(hj.callbacks.TensorBoard(tmp_path / "board"))
    (file,) = (tmp_path / "board").iterdir()
    content = file.read_bytes()
    assert len(history.evals) > 1
    for name in ("seconds", "updates", "examples", "loss"):
        assert content.count(name.encode()) == len(history.evals)


def test_wandb_logs_every_evaluation(monkeypatch):
    """With a stand-in for the package, which needs an account."""
    logged, ended = [], []
    there = SimpleNamespace(log=logged.append, finish=lambda: ended.append(True))
    package = SimpleNamespace(init=lambda **settings: logged.append(settings) or there)
    monkeypatch.setitem(sys.modules, "wandb", package)
    history = run(hj.callbacks.WandB(project="mine"))
    assert logged == [{"project": "mine"}, *history.evals]
    assert ended == [True]


@pytest.mark.parametrize("name", ["TensorBoard", "WandB"])
def test_a_missing_package_names_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    make = getattr(hj.callbacks, name)
    with pytest.raises(ImportError, match=rf"pip install 'hetjax\[{name.lower()}\]'"):
        make(*(["folder"] if name == "TensorBoard" else []))
