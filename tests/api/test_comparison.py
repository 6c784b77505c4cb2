"""Comparisons: fair starts, learning rates chosen on held-out data, equal results."""

import json
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import (
    averaging,
    column,
    counting_data,
    counting_task,
    machine,
    nothing_compiled,
)

import hetjax as hj
from hetjax import local
from hetjax.api.compare import describe
from hetjax.data import from_arrays
from hetjax.data.dataset import Dataset, Split
from hetjax.data.held_out import num_held_out
from hetjax.sampling import uniform

TASK = counting_task()


def compare(table, task=None, data=None, **options):
    options = {"seconds": 4.0, "num_evals": 4, "progress": False, **options}
    task = TASK if task is None else task
    data = counting_data() if data is None else data
    return hj.compare(task, data, machine(1.0, 1.0), table, **options)


# Refusals.

NAN = float("nan")
WRONG = [
    ({"table": {}}, "no strategies to compare"),
    ({"seeds": 0}, "seeds=0"),
    ({"seeds": ()}, r"seeds=\(\): pass 1 to 10,000 of them"),
    ({"seeds": (0, 1, 0)}, "pass every seed once"),
    ({"seeds": (0, -1)}, r"seeds=\(0, -1\)"),
    ({"tune": "best"}, "tune='best': choose one of common, each"),
    ({"learning_rates": (0.1, 0.0)}, "rates=.*, 0.0"),
    ({"learning_rates": (NAN,)}, "rates=.nan"),
    ({"seconds": 0.0}, "seconds=0.0"),
    ({"seconds": NAN}, "seconds=nan"),
    ({"seconds": {"a": NAN}}, "seconds=nan"),
    ({"seconds": {"b": 1.0}}, "seconds is for b, but the strategies are a"),
    (
        {"seconds": {"a": 1.0}, "learning_rates": (0.1,)},
        "learning_rates are compared over the same seconds",
    ),
    ({"num_evals": 0}, "num_evals=0"),
    ({"num_evals": 1.5}, "num_evals=1.5"),
    ({"target": NAN}, "target=nan"),
    ({"table": [averaging()]}, "strategies must be a dictionary"),
    (
        {"table": {"a": averaging().policy}},
        r"strategies\['a'\]=<a Policy>: pass a Strategy",
    ),
    (
        {"table": {"a": averaging(), "b": averaging(learning_rate=-1.0)}},
        "b: learning_rate=-1.0",
    ),
    ({"table": {"a": averaging(), "b": averaging(batch_size=25)}}, "b: a batch of 25"),
    # two of the 24 rows are held out
    (
        {
            "table": {"a": averaging(), "b": averaging(batch_size=23)},
            "learning_rates": (0.1,),
        },
        "b: a batch of 23 is larger than the 22 examples",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[m for _, m in WRONG])
def test_invalid_comparisons_are_refused_before_anything_is_compiled(options, message):
    options = {"table": {"a": averaging()}, **options}
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        compare(**options)


def test_each_strategy_may_have_seconds_of_its_own(tmp_path):
    """It is evaluated as often, and is the run that it is with these seconds alone."""
    table = {"short": averaging(), "long": averaging(local_steps=2)}
    seconds = {"short": 4.0, "long": 12.0}
    both = compare(table, seconds=seconds, out=tmp_path)
    for history in both.histories:
        end = seconds[history.strategy]
        instants = [point["seconds"] for point in history.evals]
        assert instants == [end * k / 4 for k in range(5)]
        alone = compare({history.strategy: table[history.strategy]}, seconds=end)
        assert [p["w"] for p in alone.histories[0].evals] == column(history, "w")
    # another strategy changes nothing of the checkpointed ones
    more = table | {"third": averaging(local_steps=3)}
    again = compare(more, seconds=seconds | {"third": 24.0}, out=tmp_path)
    assert [h.strategy for h in again.histories] == ["short", "long", "third"]


NAMES = ("adam/1e-3", "é 1", "学习率" * 30, "W" * 300, "W" * 299 + "V")


def test_any_name_of_a_run_has_a_folder_of_its_own(tmp_path):
    table = dict.fromkeys(NAMES, averaging())
    found = compare(table, out=tmp_path, num_evals=1)
    assert [h.strategy for h in found.histories] == list(NAMES)
    folders = {path.name for path in tmp_path.iterdir()}
    assert len(folders) == len(NAMES)
    assert {"adam%2F1e-3_0", "%C3%A9 1_0"} < folders  # as before: runs are found again
    compare(table, out=tmp_path, num_evals=1, resume="must")


# Fair, and deterministic.


def classes(seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=60)
    x = (rng.normal(size=(3, 4))[y] + rng.normal(size=(60, 4))).astype(np.float32)
    return from_arrays((x[:40], y[:40]), (x[40:], y[40:]), num_classes=3)


@cache
def problem():
    data = classes()
    return hj.classification(hj.models.mlp(hidden=3), data), data


TABLE = {
    "sync": hj.sync_sgd(batch_size=4, learning_rate=0.1),
    "sma": hj.sma(batch_size=4, learning_rate=0.1),
    "adaptive": hj.adaptive_sgd(
        batch_size=4, min_batch_size=1, learning_rate=0.1, mega_batch=12
    ),
}


@cache
def real(seeds, call=0):
    """A comparison with tuning; `call` only makes equal calls distinct."""
    task, data = problem()
    return compare(
        TABLE, task, data, seeds=seeds, learning_rates=(0.05, 0.5), tune="each"
    )


def first_points(runs, seed):
    num_evals = [h.evals[0] for h in runs.histories if h.seed == seed]
    common = ("seconds", "updates", "examples", "loss", "accuracy")
    return [{name: p[name] for name in common} for p in num_evals]


def test_one_seed_is_one_start_for_all():
    starts = [first_points(real(2), seed) for seed in (0, 1)]
    assert starts[0] == [starts[0][0]] * 3
    assert starts[1] == [starts[1][0]] * 3
    assert starts[0][0] != starts[1][0]


def test_one_seed_is_one_order_of_examples():
    drawn = {}

    def watched(name):
        inner = uniform()

        def draw(state, worker, n):
            state, indices = inner.draw(state, worker, n)
            drawn.setdefault(name, []).extend(indices.tolist())
            return state, indices

        return inner._replace(draw=draw)

    compare(
        {
            "one": averaging(sampler=watched("one")),
            "two": hj.sma(batch_size=3, learning_rate=0.1)._replace(
                sampler=watched("two")
            ),
        }
    )
    n = min(map(len, drawn.values()))
    assert n > 12
    assert drawn["one"][:n] == drawn["two"][:n]


def timeless(runs, path):
    """results.json without the fields that depend on the host."""
    runs.to_json(path)
    document = json.loads(path.read_text())
    for run in document["runs"]:
        # programs that another test compiled are not compiled again in this process
        for name in ("compile_seconds", "host_seconds", "compilations", "programs"):
            run.pop(name)
    for row in document["summary"]:
        row.pop("compilations")
    return json.dumps(document)


def test_equal_calls_have_equal_results(tmp_path):
    one, two = real(2), real(2, call=1)
    assert one is not two
    assert [h.evals for h in one.histories] == [h.evals for h in two.histories]
    assert timeless(one, tmp_path / "1.json") == timeless(two, tmp_path / "2.json")


def test_seeds_as_a_number_are_the_first_seeds():
    number, sequence = real(2), real((0, 1))
    assert [(h.strategy, h.seed) for h in number.histories] == [
        (name, seed) for name in TABLE for seed in (0, 1)
    ]
    for a, b in zip(number.histories, sequence.histories, strict=True):
        assert (a.strategy, a.seed, a.evals) == (b.strategy, b.seed, b.evals)


def test_seeds_may_be_any_numbers():
    runs = compare({"a": averaging()}, seeds=[7, 3])
    assert [h.seed for h in runs.histories] == [7, 3]


def test_a_run_of_a_comparison_equals_a_separate_run():
    task, data = problem()
    options = {"seconds": 4.0, "num_evals": 4, "progress": False}
    runs = compare({name: TABLE[name] for name in ("sync", "adaptive")}, task, data)
    for h in runs.histories:
        strategy = TABLE[h.strategy]
        alone = hj.train(task, data, machine(1.0, 1.0), strategy, **options)
        assert h.evals == alone.evals


# Learning rates. The model is one number w, which moves from 0 to 1; a step at learning
# rate r leaves (1 - r) of the distance. The metric is minus the distance.


@cache
def distance_task():
    def loss(params, model_state, batch, key):
        w = jnp.broadcast_to(params["w"], batch.weight.shape)
        return (w - 1) ** 2 / 2, model_state

    def metrics(params, model_state, batch):
        losses, _ = loss(params, model_state, batch, None)
        return {"loss": losses, "closeness": -jnp.sqrt(2 * losses)}

    return TASK._replace(loss=loss, metrics=metrics, metric="closeness")


@cache
def stepping(slowness=1.0):
    """Ten steps of SGD by one worker, with updates `slowness` times smaller."""
    strategy = hj.sequential_sgd(batch_size=2, learning_rate=0.1)
    plain = local.sgd()

    def step(replica, batch, learning_rate, grad_fn):
        return plain.step(replica, batch, learning_rate / slowness, grad_fn)

    rule = plain._replace(step=step)
    return strategy if slowness == 1.0 else strategy._replace(local=rule)


# after ten steps:     rate 0.5         1.6               5            1e30
# "quick"              0.5^10 = 0.001   0.6^10 = 0.006    4^10         diverges
# "slow", ten times    0.95^10 = 0.6    0.84^10 = 0.17    0.5^10       diverges
RATES = (0.5, 1e30, 1.6, 5.0)


@cache
def tuned(tune):
    table = {"quick": stepping(), "slow": stepping(10.0)}
    task = distance_task()
    return compare(
        table, task, learning_rates=RATES, tune=tune, seconds=10.0, num_evals=1
    )


def test_scores_are_the_final_held_out_metrics():
    scores = tuned("common").tuning["scores"]
    names = ["0.5", "1e+30", "1.6", "5"]
    assert {n: list(s) for n, s in scores.items()} == {"quick": names, "slow": names}
    # 4^10 is worse than the start; minus infinity means divergence
    quick = [-(0.5**10), -np.inf, -(0.6**10), -(4.0**10)]
    slow = [-(0.95**10), -np.inf, -(0.84**10), -(0.5**10)]
    assert list(scores["quick"].values()) == pytest.approx(quick, rel=1e-4)
    assert list(scores["slow"].values()) == pytest.approx(slow, rel=1e-4)


def test_the_common_learning_rate_is_the_best_on_average():
    """1.6: a distance of (0.006 + 0.17) / 2, against 0.3 for 0.5, and 0.5 for 5."""
    assert tuned("common").tuning["chosen"] == {"quick": 1.6, "slow": 1.6}


def test_each_strategy_may_have_its_own_learning_rate():
    assert tuned("each").tuning["chosen"] == {"quick": 0.5, "slow": 5.0}


def test_runs_of_several_epochs_are_whole():
    table = {"quick": stepping(), "slow": stepping(2.0)}
    runs = compare(table, distance_task(), seconds=50.0, num_evals=50, epochs=2)
    assert all("2 epochs are done" in h.stopped for h in runs.histories)
    assert not any(h.ended_early for h in runs.histories)
    assert "stopped early" not in str(runs.table())


def test_a_strategy_that_always_diverges_is_ignored():
    """ "slow" survives both learning rates, best is 0.5; "quick" survives none."""
    table = {"quick": stepping(1e-30), "slow": stepping(10.0)}
    options = {"seconds": 10.0, "num_evals": 1, "learning_rates": (0.5, 5.0)}
    runs = compare(table, distance_task(), tune="common", **options)
    assert runs.tuning["scores"]["quick"] == {"0.5": -np.inf, "5": -np.inf}
    assert runs.tuning["chosen"] == {"quick": 5.0, "slow": 5.0}
    assert [bool(h.stopped) for h in runs.histories] == [True, False]


def test_a_learning_rate_that_more_strategies_survive_is_better():
    """At 1e30 "slow" is perfect in one step, but "quick" diverges."""
    table = {"quick": stepping(), "slow": stepping(1e30)}
    options = {"seconds": 10.0, "num_evals": 1, "learning_rates": (1e30, 0.5)}
    runs = compare(table, distance_task(), tune="common", **options)
    assert runs.tuning["scores"]["slow"]["1e+30"] > -1e-3
    assert runs.tuning["chosen"] == {"quick": 0.5, "slow": 0.5}


@pytest.mark.parametrize("tune", ["common", "each"])
def test_runs_use_the_chosen_learning_rate(tune):
    runs = tuned(tune)
    for h in runs.histories:
        learning_rate = runs.tuning["chosen"][h.strategy]
        assert h.settings["learning_rate"] == learning_rate
        left = 1 - (learning_rate if h.strategy == "quick" else learning_rate / 10)
        assert -h.evals[-1]["closeness"] == pytest.approx(abs(left) ** 10, rel=1e-4)


def test_tuning_is_recorded(tmp_path):
    runs = tuned("each")
    runs.to_json(tmp_path / "results.json")
    recorded = json.loads((tmp_path / "results.json").read_text())["tuning"]
    assert recorded["tune"] == "each"
    assert recorded["held_out"] == 2  # of 24
    assert recorded["chosen"] == {"quick": 0.5, "slow": 5.0}
    assert recorded["scores"]["slow"]["1e+30"] is None
    assert recorded["scores"]["slow"]["5"] == pytest.approx(-(0.5**10), rel=1e-4)
    assert compare({"a": averaging()}).tuning is None


# A model that only remembers: one number per row; a step on the row sets it to 1.

ROWS = 40


@cache
def memory_task():
    def loss(params, model_state, batch, key):
        w = params["w"][batch.x[:, 0].astype(int)]
        # a batch of two at learning rate 2 moves its rows all the way
        return (w - 1) ** 2 / 2, model_state

    def metrics(params, model_state, batch):
        row = batch.x[:, 0].astype(int)
        known = params["w"][row]
        # 100 reveals an evaluation on the test split
        return {"loss": jnp.ones_like(known), "known": known + 100 * (row >= ROWS)}

    init = lambda key: ({"w": jnp.zeros(ROWS + 5)}, ())  # noqa: E731
    return hj.Task(init, loss, metrics, "known")


def rows_data():
    x = np.arange(ROWS + 5, dtype=np.float32)[:, None]
    y = np.zeros(ROWS + 5, int)
    return from_arrays((x[:ROWS], y[:ROWS]), (x[ROWS:], y[ROWS:]), num_classes=2)


def drawing(drawn):
    """A sampler that records the size of the split and the rows drawn."""
    inner = uniform()

    def init(workers, num_examples, seed):
        drawn.append((num_examples, set()))
        return inner.init(workers, num_examples, seed)

    def draw(state, worker, n):
        state, indices = inner.draw(state, worker, n)
        drawn[-1][1].update(indices.tolist())
        return state, indices

    return inner._replace(init=init, draw=draw)


def test_held_out_rows_are_not_trained_on_and_the_test_split_is_unused():
    """Two workers with batches of two rows pass over all 40 rows within 10 s."""
    drawn = []
    strategy = averaging(learning_rate=2.0, sampler=drawing(drawn))
    runs = compare(
        {"memory": strategy},
        memory_task(),
        rows_data(),
        learning_rates=(2.0, 1.0),
        seconds=12.0,
        num_evals=3,
    )
    held = num_held_out(ROWS)
    assert runs.tuning["held_out"] == held
    # no held-out row was learnt, and no test row was evaluated
    assert runs.tuning["scores"] == {"memory": {"2": 0.0, "1": 0.0}}
    rest = ROWS - held, set(range(ROWS - held))
    # both rates draw at once; the run itself has all of the training split
    assert drawn == [rest, (ROWS, set(range(ROWS)))]
    (history,) = runs.histories
    assert np.all(np.asarray(history.params["w"][:ROWS]) > 0)
    assert column(history, "known") == [100.0] * 4


def test_another_seed_holds_out_other_rows():
    """The first of several seeds decides."""

    def held_out(seeds):
        seen, task = [], memory_task()
        task = task._replace(metrics=spying(task.metrics, seen))
        table = {"memory": averaging()}
        compare(
            table, task, rows_data(), seeds=seeds, learning_rates=(2.0,), num_evals=1
        )
        jax.effects_barrier()
        return seen[0]

    zero = held_out((0, 1))
    assert len(zero) == len(set(zero) & set(range(ROWS))) == 4
    assert zero == held_out((0,))
    assert zero != held_out((1,))


def spying(metrics, seen):
    """Metrics that record the rows that they are computed on, batch by batch."""

    def watched(params, model_state, batch):
        jax.debug.callback(lambda x: seen.append(x[:, 0].tolist()), batch.x)
        return metrics(params, model_state, batch)

    return watched


# Callbacks and records.


def test_on_history_is_called_for_every_run_seed_by_seed():
    told = []
    table = {"a": averaging(), "b": averaging()}
    runs = compare(table, seeds=2, on_history=told.append)
    names = [(h.strategy, h.seed) for h in told]
    assert names == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    # results are in the order of the strategies
    assert [h.strategy for h in runs.histories] == ["a", "a", "b", "b"]
    assert set(map(id, runs.histories)) == set(map(id, told))


def test_the_record_of_a_comparison():
    runs = compare({"a": averaging()}, target=0.5)
    assert runs.target == 0.5
    assert runs.machine["name"] == "hand-made"
    assert [w["name"] for w in runs.machine["workers"]] == ["a", "b"]
    assert runs.data == {
        "name": "arrays",
        "train_examples": 24,
        "test_examples": 3,
        "features": 1,
        "classes": 2,
        "sparse": False,
        "multilabel": False,
        "notes": [],
    }


def test_classes_that_only_the_test_split_has_are_noted():
    x = np.zeros((3, 2), np.float32)
    train, test = np.array([0, 1, 0]), np.array([0, 2, 3])
    data = Dataset(Split(x, train), Split(x, test), 4)
    note = "2 class ids that only the test split has, and no model can learn: 2, 3"
    assert describe(data)["notes"] == [note]
    assert describe(Dataset(Split(x, test), Split(x, test), 4))["notes"] == []
