"""Kept runs of `resume`, which finds them by name, and of `compare`."""

import warnings

import pytest
from checkpointed_runs import outcome
from small_runs import at, numbers, problem, send, strategy, train
from tiny_problems import three_workers

import hetjax as hj
from hetjax.api import session
from hetjax.tracing.fingerprint import data_fingerprint


def test_resume_needs_nothing_but_the_folder(tmp_path, cpu_alone):
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    machine, strategy = (
        hj.machine.preset("v100x2"),
        hj.sma(batch_size=32, learning_rate=0.2)._replace(learning_rate=0.1),
    )
    given = {"seconds": 0.2, "num_evals": 5, "progress": False}
    whole = hj.train(task, data, machine, strategy, **given)
    stop = at(3, send("SIGTERM"))
    hj.train(task, data, machine, strategy, checkpoint=tmp_path, on_eval=stop, **given)
    keep = hj.Checkpoint(tmp_path, every="1 eval", keep=9)
    hj.resume(keep, devices=["cpu:1"], on_eval=at(2, send("SIGTERM")), progress=False)
    assert len(numbers(tmp_path)) > 2
    last = hj.resume(tmp_path, progress=False)
    assert outcome(last) == outcome(whole)
    assert len(last.interruptions) == 2


def test_resume_names_what_it_cannot_find(tmp_path):
    with pytest.raises(ValueError, match="holds no checkpoint of a run"):
        hj.resume(tmp_path)
    train(tmp_path, on_eval=at(3, send("SIGTERM")))
    with pytest.raises(
        ValueError,
        match="data cannot be made again .*or pass data=",
    ):
        hj.resume(tmp_path)
    p = problem()
    with pytest.raises(ValueError, match="task cannot be made again .*or pass task="):
        hj.resume(tmp_path, data=p.data)
    last = hj.resume(tmp_path, p.task, p.data, progress=False)
    assert outcome(last) == outcome(train())


def test_compare_does_only_what_is_missing(tmp_path):
    p, made = problem(), []
    strategies = {name: strategy(name, 6) for name in ("sma", "easgd")}

    def compare(strategies, seeds=1):
        made.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return hj.compare(
                p.task,
                p.data,
                three_workers(),
                strategies,
                seconds=0.05,
                num_evals=3,
                seeds=seeds,
                learning_rates=(0.1, 0.2),
                out=tmp_path,
                progress=False,
            )

    first = compare(strategies)
    files_before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.json")}
    again = compare(strategies)
    assert again.tuning == first.tuning
    assert list(map(outcome, again.histories)) == list(map(outcome, first.histories))
    strategies["local_sgd"] = strategy("local_sgd", 6)
    more = compare(strategies, seeds=2)
    assert len(more.histories) == 6
    assert {p: p.stat().st_mtime_ns for p in files_before} == files_before
    strategies["sma"] = strategy("sma", 6, momentum=0.9)
    with pytest.raises(ValueError, match=r"sma.* strategy.momentum is 0.5 there"):
        compare(strategies)


def test_compare_tries_more_learning_rates(tmp_path):
    """Runs that chose among others are kept, whatever rate a strategy was made with."""
    p = problem()

    def compare(*rates):
        return hj.compare(
            p.task,
            p.data,
            three_workers(),
            {"sma": strategy("sma", 6, learning_rate=rates[0])},
            seconds=0.05,
            num_evals=3,
            learning_rates=rates,
            out=tmp_path,
            progress=False,
        )

    first = compare(0.1, 0.2)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    more = compare(0.05, 0.1, 0.2)
    scores = more.tuning["scores"]["sma"]
    assert scores.items() > first.tuning["scores"]["sma"].items()
    assert len(scores) == 3
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_compare_reads_the_data_once_to_describe_them(tmp_path, monkeypatch):
    """Those of the runs, and those of the runs that choose learning rates."""
    read = []

    def fingerprint(data):
        read.append(data)
        return data_fingerprint(data)

    monkeypatch.setattr(session, "data_fingerprint", fingerprint)
    p = problem()
    for _ in range(2):  # the second call finds all runs there
        read.clear()
        hj.compare(
            p.task,
            p.data,
            three_workers(),
            {name: strategy(name, 6) for name in ("sma", "easgd")},
            seconds=0.05,
            num_evals=3,
            seeds=2,
            learning_rates=(0.1, 0.2),
            out=tmp_path,
            progress=False,
        )
        assert len(read) == 2
        assert sum(data is p.data for data in read) == 1
