"""Invalid requests: a one-line error names the argument, and nothing compiles."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse as sp
from compile_events import compile_events
from tiny_runs import averaging, counting_data, counting_task, machine, nothing_compiled

import hetjax as hj
from hetjax.data.dataset import Dataset, Split

NAN, INF = float("nan"), float("inf")
DATA = counting_data()


def train(**changes):
    """Train with valid arguments, except for these."""
    given = {
        "task": counting_task(),
        "data": DATA,
        "machine": machine(1.0),
        "strategy": averaging(),
        "seconds": 1.0,
        "num_evals": 1,
        "progress": False,
    }
    return hj.train(**(given | changes))


def compare(**changes):
    given = {
        "task": counting_task(),
        "data": DATA,
        "machine": machine(1.0),
        "strategies": {"a": averaging()},
        "seconds": 1.0,
        "num_evals": 1,
        "progress": False,
    }
    return hj.compare(**(given | changes))


def split(x=24, y=24, **changes):
    """The counting data with another training split."""
    rows, ids = np.zeros((x, 1), np.float32), np.zeros(y, np.int32)
    return replace(DATA, train=Split(rows, ids), **changes)


BOTH = [
    ({"task": "classification"}, "task='classification': pass a Task, such as hetjax"),
    ({"task": DATA}, "task=<a Dataset>: pass a Task"),
    ({"data": (1, 2)}, r"data=\(1, 2\): pass a Dataset, such as hetjax"),
    ({"data": split(y=23)}, "x of the training split of arrays has 24 rows, but y has"),
    ({"data": split(num_classes=NAN)}, "num_classes=nan: pass a whole number"),
    ({"data": split(num_classes=-1)}, "num_classes=-1: pass a whole number, at least"),
    (
        {"data": replace(DATA, train=Split(DATA.train.x, DATA.train.y + 2))},
        r"y of the training split of arrays has the class id 2, outside 0\.\.1",
    ),
    (
        {"data": replace(DATA, test=Split(DATA.test.x, DATA.test.y - 1))},
        r"y of the test split of arrays has the class id -1, outside 0\.\.1",
    ),
    (
        {"data": replace(DATA, train=Split([[1.0]], [0]))},
        "x of the training split of arrays is a list: pass a NumPy array",
    ),
    (
        {"data": replace(DATA, train=Split(sp.coo_array((24, 1)), DATA.train.y))},
        "x of the training split of arrays is a coo_array: pass .* scipy CSR",
    ),
    (
        {"data": replace(DATA, test=Split(np.zeros((3, 2)), DATA.test.y))},
        r"is \[1\] for each example, x of the test split is \[2\]: they must agree",
    ),
    ({"machine": "v100x4"}, "machine='v100x4': pass a Machine, such as"),
    ({"seconds": "1"}, "seconds='1': pass a number above 0"),
    ({"seconds": None}, "seconds=None"),
    ({"seconds": True}, "seconds=True"),
    ({"num_evals": 4294967296}, "num_evals=4294967296: pass a .* from 1 to 1000000"),
    ({"num_evals": "many"}, "num_evals='many'"),
    ({"num_evals": NAN}, "num_evals=nan"),
    ({"target": NAN}, "target=nan: pass a finite number or None"),
    ({"target": INF}, "target=inf"),
    ({"target": "0.9"}, "target='0.9'"),
    ({"epochs": -1}, "epochs=-1: pass a number above 0 or None"),
    ({"epochs": 0}, "epochs=0"),
    ({"epochs": NAN}, "epochs=nan"),
    ({"epochs": INF}, "epochs=inf"),
    ({"epochs": "1"}, "epochs='1'"),
]
TRAIN = [
    ({"strategy": "sma"}, "strategy='sma': pass a Strategy, such as hetjax.sma"),
    ({"strategy": hj.sma}, "strategy=<.*function.*>: pass a Strategy"),
    ({"strategy": None}, "strategy=None: pass a Strategy"),
    ({"strategy": averaging(batch_size=2)._replace(batch_size=NAN)}, "batch_size=nan"),
    (
        {"strategy": averaging()._replace(batch_size=2.5)},
        "batch_size=2.5: pass a whole",
    ),
    ({"strategy": averaging()._replace(batch_size=0)}, "batch_size=0: pass a whole"),
    ({"strategy": averaging()._replace(batch_size="8")}, "batch_size='8': pass a"),
    (
        {"strategy": averaging()._replace(merge=(hj.merge.average(),) * 2)},
        "it has 2 merges, but its policy has one level",
    ),
    ({"every": "5 evals"}, "every='5 evals': pass the folder as checkpoint="),
    ({"checkpoint": __file__}, "checkpoint=.*: this is a file; pass a folder"),
    ({"on_eval": 3}, "on_eval=3: pass a function or a sequence of functions"),
    ({"on_nan": "restart"}, "on_nan='restart': choose one of stop, reset or None"),
    ({"on_lost_worker": None}, "on_lost_worker=None: choose one of continue, stop"),
    ({"trace": 3}, "trace=3: pass a string or a Path or None"),
    ({"trace": "t.jsonl"}, "trace='t.jsonl': only real runs are recorded"),
    ({"seed": True}, "seed=True: pass a whole number"),
    ({"seed": "1"}, "seed='1'"),
]
COMPARE = [
    ({"strategies": "sma"}, "strategies must be a dictionary"),
    ({"strategies": {"a": "sma"}}, r"strategies\['a'\]='sma': pass a Strategy"),
    ({"strategies": {3: averaging()}}, "strategies has the key 3: pass names"),
    ({"seeds": 2.5}, "seeds=2.5: pass a whole number from 1 to 10000 or a seq"),
    ({"seeds": NAN}, "seeds=nan"),
    ({"seeds": None}, "seeds=None"),
    ({"seeds": True}, "seeds=True"),
    ({"seeds": "12"}, "seeds='12'"),
    ({"seeds": -1}, "seeds=-1: pass a whole number from 1 to 10000"),
    ({"seeds": 10_000_000}, "seeds=10000000: pass a whole number from 1 to 10000"),
    ({"seeds": range(10**12)}, r"seeds=range\(0, 1000000000000\): pass a whole"),
    ({"seeds": (0, 1.5)}, r"seeds=\(0, 1\.5\): pass a whole number"),
    ({"learning_rates": 0.1}, "learning_rates=0.1: pass a sequence of numbers above 0"),
    (
        {"learning_rates": ("0.1",)},
        r"learning_rates=\('0.1',\): pass a sequence of numbers",
    ),
    ({"learning_rates": (INF,)}, r"learning_rates=\(inf,\)"),
    ({"tune": None}, "tune=None: choose one of common, each"),
    ({"every": "5 evals"}, "every='5 evals' and .*: pass out, the folder of the runs"),
    ({"on_history": 3}, "on_history=3: pass a function"),
    (
        {"traces": __file__},
        "traces='.*test_requests.py': this is a file; pass a folder",
    ),
]


def ids(cases):
    return [message[:30] for _, message in cases]


@pytest.mark.parametrize(("change", "message"), BOTH + TRAIN, ids=ids(BOTH + TRAIN))
def test_invalid_runs(change, message):
    with nothing_compiled(), pytest.raises(ValueError, match=message) as caught:
        train(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("change", "message"), BOTH + COMPARE, ids=ids(BOTH + COMPARE))
def test_invalid_comparisons(change, message):
    with nothing_compiled(), pytest.raises(ValueError, match=message) as caught:
        compare(**change)
    assert "\n" not in str(caught.value)


def failing(examples):
    raise KeyError("no such epoch")


def over(schedule, unit="epochs"):
    return hj.schedule.LearningRate(schedule, over=unit)


SCHEDULES = [
    (lambda examples: None, "schedule begins with None; it must return one finite"),
    (lambda examples: NAN, "schedule begins with nan; .* finite number, at least 0"),
    (lambda examples: INF, "schedule begins with inf"),
    (lambda examples: -0.1, r"schedule begins with -0\.1"),
    (
        lambda examples: np.ones(3),
        r"schedule begins with array\(\[1\., 1\., 1\.\]\); it",
    ),
    (lambda examples: [0.1], r"schedule begins with \[0\.1\]"),
    (lambda examples: 1j, "schedule begins with 1j"),
    (lambda examples: "fast", "schedule begins with 'fast'"),
    (failing, r"fails at its start, for examples=0 \(KeyError: 'no such epoch'\)"),
    (lambda: 0.1, r"fails at its start, for examples=0 \(TypeError"),
    (over(lambda epochs: None), "schedule begins with None"),
    (over(failing), r"fails at its start, for epochs=0\.0"),
    ("0.1", "learning_rate='0.1': pass a number above 0 or a function"),
    (None, "learning_rate=None: pass a number"),
    (True, "learning_rate=True: pass a number"),
    (np.ones(2), r"learning_rate=array\(\[1., 1.\]\): pass a number"),
]


@pytest.mark.parametrize(("rate", "message"), SCHEDULES, ids=ids(SCHEDULES))
def test_invalid_learning_rates(rate, message):
    strategy = averaging(learning_rate=rate)
    with (
        nothing_compiled(),
        pytest.raises(ValueError, match=f"^averaging: .*{message}"),
    ):
        train(strategy=strategy)
    with nothing_compiled(), pytest.raises(ValueError, match=f"^mine: .*{message}"):
        compare(strategies={"mine": strategy})


@pytest.mark.parametrize(
    "rate",
    [
        0.5,
        np.float32(0.5),
        lambda examples: jnp.float32(0.5),
        lambda examples: 0.5 if examples else 0.0,  # a warm-up
        optax.constant_schedule(0.5),
        optax.linear_schedule(0.0, 1.0, 10),
        over(lambda epochs: 0.5, "seconds"),
    ],
)
def test_valid_learning_rates(rate):
    train(strategy=averaging(learning_rate=rate))


def test_a_mean_loss_is_refused_before_anything_is_compiled():
    """Only its shapes are traced: no program is compiled or run."""
    task = counting_task()

    def mean(params, model_state, batch, key):
        losses, state = task.loss(params, model_state, batch, key)
        return jnp.mean(losses), state

    wrong = task._replace(loss=mean)
    message = r"the task's loss is a scalar, \[\] for a batch of 2 examples: return one"
    with compile_events() as events:
        with pytest.raises(ValueError, match=message):
            train(task=wrong)
        with pytest.raises(ValueError, match=message):
            compare(task=wrong)
    assert events == []


def test_a_complete_custom_data_set_is_accepted():
    x, y = DATA.train.x, DATA.train.y
    whole = Dataset(Split(x, y), Split(x, y), np.int64(2))
    assert len(train(data=whole).evals) == 2


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("policy", hj.schedule.rounds, "policy is <function.*, not a Policy: call it"),
        ("local", hj.local.sgd, "local is .*, not a LocalUpdate: call it"),
        ("merge", hj.merge.average, "merge is .*, not a Merge: call it"),
        ("merge", (), r"merge is \(\), not a Merge"),
        ("merge", (hj.merge.average(), None), "merge is None, not a Merge"),
        ("sampler", "biased", "sampler is 'biased', not a Sampler"),
    ],
)
def test_a_part_of_another_type(part, value, message):
    strategy = hj.sma(batch_size=4, learning_rate=0.1)._replace(**{part: value})
    with nothing_compiled(), pytest.raises(ValueError, match=message):
        train(strategy=strategy)
