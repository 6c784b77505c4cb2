"""The loop: what evaluations see, how runs end, what a sampler observes."""

import copy
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import (
    EXAMPLES,
    averaging,
    column,
    counting_data,
    counting_task,
    machine,
    one_by_one,
    seconds_of,
    silent,
    train,
)

import hetjax as hj
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data import from_arrays
from hetjax.data.held_out import held_out_rows
from hetjax.sampling import uniform

# What an evaluation sees. In this file w is the number of merged steps.


def test_an_evaluation_sees_the_last_merge_that_finished():
    """Merges 2-5 and 7-10: evaluations in between see the model from before."""
    history = train(machine(1.0, 2.0, link=3.0), averaging(), 10.0, num_evals=10)
    assert column(history, "w") == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert column(history, "updates") == [0, 1, 2, 2, 2, 2, 3, 4, 4, 4, 4]


def test_an_evaluation_does_not_see_a_merge_that_overlaps_with_steps():
    """Merges 2-5, 5-8 (requested at 4), 8-11 (requested at 7)."""
    strategy = averaging(blocking=False)
    history = train(machine(1.0, 2.0, link=3.0), strategy, 11.0, num_evals=11)
    assert column(history, "w") == [0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3]


def test_several_merges_in_progress():
    """Three workers arrive at 1, 1.25 and 1.5; their merges queue: 1-3, 3-5, 5-7.

    A merge of one worker gives that worker's w, which is its learning rate.
    """
    strategy = averaging(policy=one_by_one((1.0, 2.0, 4.0)))
    history = train(machine(1.0, 1.25, 1.5, link=2.0), strategy, 8.0, num_evals=16)
    seen = dict(zip(column(history, "seconds"), column(history, "w"), strict=True))
    assert [seen[t] for t in (1.0, 1.5, 2.5)] == [0, 0, 0]
    assert [seen[t] for t in (3.0, 3.5, 4.5)] == [1, 1, 1]
    assert [seen[t] for t in (5.0, 6.5)] == [2, 2]
    assert seen[7.0] == 4
    # this policy gives every worker one round
    why = (
        "no worker has a local round since 7 s: the policy returned no actions "
        "on Merged"
    )
    assert (history.stopped, history.duration) == (why, 7.0)


STRATEGIES = {
    "sequential_sgd": hj.sequential_sgd(batch_size=2, learning_rate=0.1),
    "sync_sgd": hj.sync_sgd(batch_size=2, learning_rate=0.1),
    "elastic_sgd": hj.elastic_sgd(batch_size=2, learning_rate=0.1, local_steps=3),
    "sma": hj.sma(batch_size=2, learning_rate=0.1),
    "adaptive_sgd": hj.adaptive_sgd(
        batch_size=4, min_batch_size=1, learning_rate=0.1, mega_batch=12
    ),
}


def test_all_strategies_are_evaluated_at_the_same_times():
    runs = hj.compare(
        counting_task(),
        counting_data(),
        machine(0.7, 1.1, link=0.3),
        STRATEGIES,
        seconds=7.3,
        num_evals=5,
        progress=False,
    )
    instants = {tuple(column(h, "seconds")) for h in runs.histories}
    assert instants == {tuple(7.3 * k / 5 for k in range(6))}
    assert all(h.duration == 7.3 for h in runs.histories)


@pytest.mark.parametrize(("seconds", "num_evals"), [(0.1, 3), (0.7, 6), (1.9, 3)])
def test_the_last_instant_is_the_end(seconds, num_evals):
    """In each of these cases seconds * num_evals / num_evals is not seconds."""
    assert seconds * num_evals / num_evals != seconds
    history = train(machine(1.0, 1.0), averaging(), seconds, num_evals)
    assert history.duration == history.evals[-1]["seconds"] == seconds


@pytest.mark.parametrize("name", STRATEGIES)
def test_evaluations_never_change_the_run(name):
    unlike = machine(0.7, 1.1, link=0.9)
    task, data, bar = counting_task(), counting_data(), silent()
    seldom = Session(task, data, unlike, RunConfig(seconds=9.0, num_evals=1))
    often = copy.copy(seldom)  # with the same programs
    often.config = RunConfig(seconds=9.0, num_evals=40)
    few, many = (one.run(name, STRATEGIES[name], 0, bar) for one in (seldom, often))
    assert (len(few.evals), len(many.evals)) == (2, 41)
    assert float(few.params["w"][0]) == float(many.params["w"][0]) != 0.0
    assert seconds_of(few) == seconds_of(many)
    assert [w.updates for w in few.workers] == [w.updates for w in many.workers]
    assert list(few.timeline) == list(many.timeline)
    assert few.evals[0] == many.evals[0]
    ends = [{**run.evals[-1], "train_loss": 0} for run in (few, many)]
    assert ends[0] == ends[1]  # but for the loss since the evaluation before


# How runs end.


def alone(**fields):
    """Worker b is the fastest: its n-th step arrives at n seconds, when w is n."""
    return hj.sequential_sgd(batch_size=2, learning_rate=1.0)._replace(
        name="alone", **fields
    )


def test_a_loss_of_nan_stops_the_run():
    """The step from w = 5, at 6 s, gives NaN; the evaluation at 6 s checks it."""
    task = counting_task(nan_above=4.5)
    history = train(machine(2.0, 1.0), alone(), 10.0, num_evals=10, task=task)
    assert history.stopped.startswith("alone: the loss of worker b became nan at 6 s")
    assert column(history, "seconds") == [0, 1, 2, 3, 4, 5, 6]
    assert column(history, "w")[:6] == [0, 1, 2, 3, 4, 5]
    assert history.duration == 6.0
    assert seconds_of(history) == [(0.0, 0.0, 0.0, 6.0), (6.0, 0.0, 0.0, 0.0)]


def test_a_loss_of_nan_in_the_last_step():
    task = counting_task(nan_above=4.5)
    history = train(machine(2.0, 1.0), alone(), 6.5, num_evals=13, task=task)
    assert history.stopped.startswith("alone: the loss of worker b became nan at 6 s")
    assert (len(history.evals), history.duration) == (13, 6.0)


def test_a_model_of_nan_stops_the_run():
    task = counting_task(test_nan_above=2.5)
    told = []
    history = train(
        machine(2.0, 1.0),
        alone(),
        10.0,
        num_evals=10,
        task=task,
        on_eval=lambda point: told.append(point["seconds"]),
    )
    assert history.stopped.startswith("alone: the test loss of the model")
    assert "nan by 3 s" in history.stopped
    assert column(history, "seconds") == [0, 1, 2, 3]
    assert np.isnan(column(history, "loss")).tolist() == [False, False, False, True]
    assert told == [0, 1, 2]


def test_an_initial_model_of_nan_is_not_the_learning_rates_fault():
    task = counting_task(test_nan_above=-1.0)
    history = train(machine(2.0, 1.0), alone(), 10.0, num_evals=10, task=task)
    assert history.stopped.startswith("alone: the test loss of the initial model is")
    assert "learning rate" not in history.stopped


def test_the_other_strategies_continue():
    """An enormous learning rate on a real model: infinite values, then NaN."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype(np.float32), rng.integers(3, size=40)
    data = from_arrays((x, y), (x, y), num_classes=3)
    table = {
        "wild": averaging(learning_rate=1e30),
        "tame": averaging(learning_rate=0.1),
        "last": alone(learning_rate=0.1),
    }
    runs = hj.compare(
        hj.classification(hj.models.mlp(hidden=4), data),
        data,
        machine(1.0, 2.0),
        table,
        seconds=10.0,
        num_evals=5,
        progress=False,
    )
    wild, *others = runs.histories
    assert wild.stopped.startswith("wild: the test loss of the model became nan")
    assert [p["seconds"] for p in wild.evals] == [0.0, 2.0]
    assert [(h.strategy, h.stopped) for h in others] == [("tame", ""), ("last", "")]
    assert [len(h.evals) for h in others] == [6, 6]
    assert "wild, seed 0, stopped early: wild: the test loss" in str(runs.table())


def test_target():
    history = train(machine(2.0, 1.0), alone(), 10.0, num_evals=5, target=3.5)
    assert column(history, "seconds") == [0, 2, 4]
    assert history.stopped == "stopped at 4 s as asked: w has reached 3.5"
    assert (history.duration, history.workers[1].busy) == (4.0, 4.0)


def test_on_eval_is_called_once_per_evaluation():
    told = []
    history = train(machine(2.0, 1.0), alone(), 4.0, num_evals=4, on_eval=told.append)
    assert told == history.evals
    assert set(told[0]) == {
        *("seconds", "updates", "examples", "merges", "bytes", "loss", "w"),
    }
    assert set(told[1]) == {*told[0], "train_loss"}
    kinds = [float, int, int, int, int, float, float]
    assert [type(v) for v in told[0].values()] == kinds


def test_a_value_returned_by_on_eval_does_not_stop_the_run():
    history = train(
        machine(2.0, 1.0), alone(), 4.0, num_evals=4, on_eval=lambda p: True
    )
    assert len(history.evals) == 5
    assert history.stopped == ""


# Ctrl-C. A test that fails here must not end the session: hence our own handler.


@pytest.fixture
def ours():
    """A handler that records the signals that no other handler took."""
    taken = []
    numbers = signal.SIGINT, signal.SIGTERM
    before = {n: signal.signal(n, lambda *args: taken.append(args)) for n in numbers}
    yield taken
    for number, handler in before.items():
        signal.signal(number, handler)


def press(number=signal.SIGINT):
    signal.raise_signal(number)  # in this thread: immediate


def pressing_at(instant, number=signal.SIGINT):
    return lambda point: press(number) if point["seconds"] == instant else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("end", [0.0, 2.0, 4.0])
def test_ctrl_c_and_sigterm_return_the_history_so_far(ours, end, number):
    """The run ends with the evaluation in which the signal came, or is complete."""
    handler = signal.getsignal(number)
    history = train(
        machine(2.0, 1.0), alone(), 4.0, num_evals=4, on_eval=pressing_at(end, number)
    )
    assert history.stopped == ("interrupted" if end < 4 else "")
    assert (history.interrupted, history.signal) == (True, signal.Signals(number).name)
    assert column(history, "w") == list(range(int(end) + 1))
    assert (history.duration, float(history.params["w"][0])) == (end, end)
    assert seconds_of(history) == [(0.0, 0.0, 0.0, end), (end, 0.0, 0.0, 0.0)]
    assert history.workers[1].updates == end
    assert signal.getsignal(number) is handler
    assert ours == []


def sampler_pressing_at(draw_number):
    """A sampler that presses Ctrl-C during a draw; the first is draw 1."""
    inner, count = uniform(), []

    def draw(state, worker, n):
        count.append(n)
        if len(count) == draw_number:
            press()
        return inner.draw(state, worker, n)

    return inner._replace(draw=draw)


def compare(table, seeds=1, num_evals=4, **options):
    return hj.compare(
        counting_task(),
        counting_data(),
        machine(2.0, 1.0),
        table,
        seconds=4.0,
        num_evals=num_evals,
        seeds=seeds,
        progress=False,
        **options,
    )


def test_ctrl_c_in_a_comparison_returns_earlier_runs(ours):
    table = {
        "first": alone(),
        "second": alone(sampler=sampler_pressing_at(3)),
        "third": alone(),
    }
    runs = compare(table, seeds=2)
    assert [h.strategy for h in runs.histories] == ["first", "second"]
    assert [h.stopped for h in runs.histories] == ["", "interrupted"]
    assert [len(h.evals) for h in runs.histories] == [5, 2]
    assert ours == []


def test_ctrl_c_before_the_first_evaluation(ours, tmp_path):
    """The run has no evaluations then, and it can still be shown and written."""
    runs = compare({"first": alone(sampler=sampler_pressing_at(1))})
    (history,) = runs.histories
    assert (history.stopped, history.evals, history.duration) == (
        "interrupted",
        [],
        0.0,
    )
    assert "stopped early: interrupted" in str(runs.table())
    hj.report.write_results(runs, tmp_path)
    # no plot of batch sizes
    assert len(list(tmp_path.iterdir())) == 5


def test_ctrl_c_at_the_end_of_a_run_stops_the_comparison(ours):
    """The first run evaluates once, at the end, during the fifth draw."""
    table = {"first": alone(sampler=sampler_pressing_at(5)), "second": alone()}
    runs = compare(table, num_evals=1)
    assert [h.strategy for h in runs.histories] == ["first"]
    assert runs.histories[0].stopped == "interrupted"


def test_ctrl_c_between_two_runs():
    """Python's own handler raises KeyboardInterrupt there."""
    table = {"a": alone(), "b": alone()}
    try:
        runs = compare(table, on_history=lambda history: press())
    except KeyboardInterrupt:  # it would end the test session
        pytest.fail("a finished run is lost")
    assert [(h.strategy, h.stopped) for h in runs.histories] == [("a", "")]
    assert runs.interrupted
    assert "interrupted: not all runs were made" in str(runs)


def test_ctrl_c_while_learning_rates_are_chosen(ours):
    """There is no result yet to return."""
    table = {"first": alone(sampler=sampler_pressing_at(3))}
    with pytest.raises(KeyboardInterrupt):
        compare(table, learning_rates=(1.0, 2.0))
    assert ours == []


def impatient(point):
    press()
    press()


def test_a_second_ctrl_c_does_not_wait():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train(machine(2.0, 1.0), alone(), 4.0, on_eval=impatient)
    assert signal.getsignal(signal.SIGINT) is handler


def test_sigterm_twice_ends_the_run_once(ours):
    """A queue may send it to a process and to its group."""

    def terminate(point):
        press(signal.SIGTERM)
        press(signal.SIGTERM)

    history = train(machine(2.0, 1.0), alone(), 4.0, on_eval=terminate)
    assert history.stopped == "interrupted"
    assert ours == []


def test_a_thread_leaves_signals_alone():
    """Python handles signals in the main thread only."""
    with ThreadPoolExecutor() as pool:
        future = pool.submit(train, machine(2.0, 1.0), alone(), 2.0, num_evals=2)
    assert column(future.result(), "w") == [0, 1, 2]


# What a sampler is told.


def watching(seen):
    """A uniform sampler that records every (worker, index, loss)."""

    def observe(state, worker, indices, losses):
        seen.extend(
            (worker, int(i), float(v)) for i, v in zip(indices, losses, strict=True)
        )
        return state

    return uniform()._replace(observe=observe)


def identified_task():
    """A task whose loss on example i is i; w counts the steps, as usual."""
    task = counting_task()

    def loss(params, model_state, batch, key):
        zero = params["w"] - jax.lax.stop_gradient(params["w"])
        return batch.x[:, 0] - zero, model_state

    return task._replace(loss=loss)


def test_a_sampler_observes_every_loss_once_and_without_padding():
    """Batches of 10 are padded to 11 (buckets up to 16), two steps per local round.

    a arrives at 2 and 6, b at 4 and 8: at 7 s, 3 rounds of 20 examples are done, and 4
    are drawn.
    """
    seen = []
    strategy = averaging(batch_size=(10, 16), local_steps=2, sampler=watching(seen))
    history = train(
        machine(1.0, 2.0), strategy, 7.0, task=identified_task(), num_evals=3
    )
    assert [(i, loss) for _, i, loss in seen] == [(i, float(i)) for _, i, _ in seen]
    # the losses of a's second round would be reported at the merge at 8 s
    assert [sum(k == w for k, *_ in seen) for w in (0, 1)] == [20, 32]
    assert [w.examples for w in history.workers] == [40, 32]
    # the first pass of 24 examples: a's first round (20) and four of b's 32
    order = [i for k, i, _ in seen if k == 0][:20] + [i for k, i, _ in seen if k][:4]
    assert sorted(order) == list(range(24))


def test_a_sampler_observes_at_the_merge():
    """Of three rounds: a's at 1 and 2 s, and b's at 2.5 s, when all merge."""
    seen = []
    strategy = alone(sampler=watching(seen))._replace(
        policy=hj.schedule.mega_batch(examples=6, batch_size=2), batch_size=2
    )
    train(machine(1.0, 2.5), strategy, 3.0, task=identified_task())
    assert [worker for worker, *_ in seen] == [0, 0, 0, 0, 1, 1]


def test_every_step_of_a_run_has_a_key_of_its_own():
    """The model grows by numbers that are drawn from the steps' keys."""

    def loss(params, model_state, batch, key):
        w = jnp.broadcast_to(params["w"], batch.weight.shape)
        return -jax.random.uniform(key) * w, model_state

    task = counting_task()._replace(loss=loss)
    history = train(machine(1.0), averaging(), seconds=8, num_evals=8, task=task)
    drawn = np.diff(column(history, "w"))
    assert np.all((drawn > 0) & (drawn < 1))
    assert len(set(drawn.round(5))) == 8


def looking_task():
    """As the counting task; where the input is NaN, so are loss and gradient."""
    counting = counting_task()

    def loss(params, model_state, batch, key):
        losses, model_state = counting.loss(params, model_state, batch, key)
        return losses + 0 * batch.x[:, 0] * params["w"], model_state

    def metrics(params, model_state, batch):
        values = counting.metrics(params, model_state, batch)
        return values | {"loss": 1 + 0 * batch.x[:, 0]}

    return counting._replace(loss=loss, metrics=metrics)


LOOKING = looking_task()


@pytest.fixture
def mapped(tmp_path):
    """Data that were not checked before: inputs in a file, some of which are NaN."""

    def data(train=(), test=()):
        found = []
        for name, rows in (("train", train), ("test", test)):
            file = tmp_path / f"{name}.npy"
            x = np.lib.format.open_memmap(file, "w+", np.float32, (EXAMPLES, 1))
            x[:] = 1
            x[list(rows)] = np.nan
            found.append((x, np.zeros(EXAMPLES, int)))
        return hj.data.from_arrays(*found, num_classes=2)

    return data


def looked_at(data, strategy, **options):
    given = {"seconds": 40.0, "num_evals": 2, "progress": False, **options}
    return hj.train(LOOKING, data, machine(2.0, 1.0), strategy, **given)


@pytest.mark.parametrize("apart", [False, True], ids=["whole split", "held out"])
def test_a_loss_of_nan_names_the_rows_that_are(mapped, apart):
    """Rows are numbered as in the whole training split."""
    rest, _ = held_out_rows(EXAMPLES, 0)
    row = int(rest[20])
    assert row != 20  # as the round's own numbers have it
    strategy = alone() if not apart else hj.fed_acc(batch_size=2, learning_rate=1.0)
    history = looked_at(mapped(train=[row]), strategy)
    assert f"; row {row} of the training split, which it was g" in history.stopped
    assert "holds NaN or infinity: correct or remove such rows" in history.stopped
    assert "learning rate" not in history.stopped


def test_the_event_of_a_reset_worker_names_the_rows_that_are_nan(mapped):
    history = looked_at(mapped(train=range(EXAMPLES)), alone(), on_nan="reset")
    why = history.events[0].why
    assert re.search(r"reset to the center; rows \d+, \d+ of the training split", why)


def test_rows_of_the_test_split_that_are_nan_are_named(mapped):
    history = looked_at(mapped(test=range(3, 12)), alone())
    assert "rows 3, 4, 5, 6, 7 and 4 more of the test split hold" in history.stopped
