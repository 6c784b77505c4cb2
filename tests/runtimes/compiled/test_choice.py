"""Which player a simulated run has, and the reasons."""

import jax
import numpy as np
import pytest
from compiled_runs import compiled, runs_of
from small_runs import RUN, problem, strategy, train
from tiny_problems import three_workers

import hetjax as hj
from hetjax.data.columns import RowsView
from hetjax.data.dataset import Split
from hetjax.engine import device_data
from hetjax.report.record import run_record
from hetjax.runtimes.compiled import player_choice

MLP = "mlp"


def chosen(name="local_sgd", kind=MLP, *, devices=1, made=None, train=None, **settings):
    """The choice of a run of three workers."""
    made = made or strategy(name, 6)
    job = runs_of(kind).job("mine", made, 0)._replace(**settings)
    job = job if train is None else job._replace(train=train)
    return player_choice.choose(made, job, 3, jax.devices("cpu")[:devices])


def observing(*, bulk):
    """A strategy whose sampler observes the losses of its rounds."""
    sampler = hj.STRATEGIES["biased_local_sgd"](
        local_steps=(4, 1, 2), batch_size=6, learning_rate=0.1
    ).sampler
    assert sampler.observe is not None
    return strategy("local_sgd" if bulk else "async_sgd", 6)._replace(sampler=sampler)


def on_disk():
    split = problem().data.train
    return Split(RowsView(split.x, np.arange(len(split))), split.y)


def test_a_small_run_is_compiled_and_its_data_are_on_the_device():
    found = chosen()
    assert (found.compiled, found.on_device, found.description) == (
        True,
        True,
        "compiled",
    )


def test_the_user_may_say_otherwise():
    assert chosen(compiled=False).description == "reference player: compiled=False"
    assert not chosen(compiled=False).on_device
    found = chosen(data_on="host")
    assert (found.compiled, found.on_device) == (True, False)
    assert chosen(data_on="device").on_device


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"kind": "convolution"}, "a convolution in a loop is slow on a CPU"),
        (
            {"made": observing(bulk=False)},
            "its sampler observes the losses of every round",
        ),
    ],
)
def test_where_it_is_slower_it_is_compiled_only_if_that_is_asked_for(given, why):
    assert chosen(**given).description == f"reference player: {why}"
    assert chosen(**given, compiled=True).compiled


def test_a_sampler_that_observes_at_barriers_is_no_hindrance():
    assert chosen(made=observing(bulk=True)).compiled


def test_a_large_model_whose_steps_touch_a_few_rows(monkeypatch):
    assert chosen(kind="sparse").compiled
    monkeypatch.setattr(player_choice, "ROWS_ONLY", 100)
    said = chosen(kind="sparse").description
    assert said == "reference player: its steps touch few rows of a large model"
    assert chosen().compiled  # its steps touch all rows


@pytest.mark.parametrize("impossible", ["devices", "memory"])
def test_where_it_is_impossible_compiled_true_is_an_error(impossible, monkeypatch):
    given, why = {"devices": 2}, "its workers are spread over several devices"
    if impossible == "memory":
        given, why = {}, "its replicas need 0.0 GiB, which do not fit"
        monkeypatch.setattr(player_choice, "device_memory", lambda device: 100)
    assert chosen(**given).description == f"reference player: {why}"
    with pytest.raises(ValueError, match=f"^mine: compiled=True: {why}; omit compiled"):
        chosen(**given, compiled=True)


def test_data_that_do_not_fit_are_sent(monkeypatch):
    assert not chosen(train=on_disk()).on_device
    with pytest.raises(ValueError, match='data_on="device": .* is not in memory'):
        chosen(train=on_disk(), data_on="device")
    monkeypatch.setattr(device_data, "DATA_SHARE", 1e-12)
    found = chosen()
    assert (found.compiled, found.on_device) == (True, False)
    with pytest.raises(ValueError, match="larger than 0% of the device"):
        chosen(data_on="device")


def test_stretches_of_costly_steps_are_short():
    made = strategy("local_sgd", 6)
    job = runs_of(MLP).job("", made, 0)
    assert (
        player_choice.max_steps_ahead(made, job, "cpu") == player_choice.MAX_STEPS_AHEAD
    )
    costly = job._replace(programs=_Costly(1e9))
    assert player_choice.max_steps_ahead(made, costly, "cpu") == pytest.approx(20 / 18)
    assert player_choice.max_steps_ahead(made, costly, "cuda") == pytest.approx(
        20_000 / 18
    )


class _Costly:
    """Programs of a task whose loss has so many operations."""

    def __init__(self, operations):
        self._operations = operations

    def once(self, key, make):
        return self._operations


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compiled": "yes"}, "compiled='yes': pass True or False or 'auto'"),
        ({"compiled": None}, "compiled=None: pass True or False or 'auto'"),
        ({"data_on": "disk"}, "data_on='disk': choose one of auto, device, host"),
    ],
)
@pytest.mark.parametrize("compares", [False, True])
def test_bad_arguments(given, message, compares):
    p, made = problem(), strategy("local_sgd", 6)
    begin = hj.compare if compares else hj.train
    strategies = {"a": made} if compares else made
    with pytest.raises(ValueError, match=message):
        begin(p.task, p.data, three_workers(), strategies, **RUN, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"compiled": True}, "compiled=True: only runs on a simulated machine"),
        ({"data_on": "host"}, "data_on='host': only a simulated machine"),
    ],
)
def test_real_workers_compile_no_runs(given, message):
    with pytest.raises(ValueError, match=message):
        train(machine=hj.local_machine(["cpu:0"]), **given)


def test_the_history_says_it():
    assert train(name="local_sgd").played == "compiled"
    history = train(name="local_sgd", compiled=False)
    assert history.played == "reference player: compiled=False"
    assert run_record(history)["played"] == history.played


def test_batches_that_are_sent_give_the_same():
    runs, made = runs_of(MLP), strategy("async_sgd", 6)
    ours = compiled(runs, made, data_on="host")
    theirs = compiled(runs, made, data_on="device")
    jax.tree.map(np.testing.assert_array_equal, ours.params, theirs.params)
    assert ours.evals == theirs.evals
