"""Runs of a process share their programs: by task, and by equal parts of strategies."""

import functools
import gc
import pickle
import types
import weakref

import cloudpickle
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compile_events import compile_events
from quick import quick
from tiny_runs import averaging, counting_data, counting_task, machine, train
from zoo import in_one_part, make

import hetjax as hj
from hetjax.engine.programs import sharing
from hetjax.engine.programs.sharing import key_of, programs_of

TASK, DATA, MACHINE = counting_task(), counting_data(192), machine(1.0, 1.5, 2.0)


def run(strategy, task=TASK):
    """(the model's parameter, how many programs JAX compiled)."""
    with compile_events() as events:
        history = hj.train(
            task, DATA, MACHINE, strategy, seconds=12.0, num_evals=2, progress=False
        )
    return history.params["w"].tolist(), len(events)


@pytest.mark.parametrize(
    "name", quick([*hj.STRATEGIES], "sma", "hier_sgd", "adaptive_sgd")
)
def test_the_same_call_again_compiles_nothing_and_nor_does_another_rate(name):
    own = in_one_part(name)
    first, _ = run(make(name, 8, **own))
    assert run(make(name, 8, **own)) == (first, 0)
    other, compiled = run(make(name, 8, learning_rate=0.03, **own))
    assert compiled == 0
    assert other != first


def test_a_sweep_over_the_same_number_of_rates_compiles_nothing():
    task = counting_task()
    for i, rates in enumerate(([0.1, 0.2, 0.3], [0.2, 0.4, 0.6])):
        grid = hj.sweep(make("sma", 8), {"learning_rate": rates})
        with compile_events() as events:
            hj.compare(task, DATA, MACHINE, grid, seconds=4.0, progress=False)
        assert bool(events) == (i == 0)


def test_parts_are_equal_if_the_same_factory_made_them_from_equal_arguments():
    merge = hj.merge
    assert key_of(merge.easgd(alpha=0.1)) == key_of(merge.easgd(alpha=0.1))
    assert key_of(merge.easgd(alpha=0.1)) != key_of(merge.easgd(alpha=0.2))
    assert key_of(merge.average(reset=1)) == key_of(merge.average(reset=True))
    assert key_of(optax.adam(1.0)) == key_of(optax.adam(1.0))
    assert key_of(optax.adam(1.0)) != key_of(optax.adam(1.0, b1=0.8))
    assert key_of((0.0,)) != key_of((-0.0,))


def test_a_part_of_the_user_is_only_equal_to_itself():
    def own(scale):
        return lambda state: (state.center * scale, ())

    merge, one = hj.merge.sma(), own(2.0)
    assert key_of(merge._replace(model=one)) == key_of(merge._replace(model=one))
    assert key_of(merge._replace(model=one)) != key_of(merge._replace(model=own(2.0)))
    array = own(jnp.ones(2))
    assert key_of(array) == key_of(array) != key_of(own(jnp.ones(2)))


SLOPE, SCALE = 1.0, 1.0


def sloping(params, model_state, batch, key):
    return -SLOPE * jnp.broadcast_to(params["w"], batch.weight.shape), model_state


def scaled(state):
    return {"w": SCALE * state.center["w"]}, ()


@pytest.mark.parametrize("name", ["SLOPE", "SCALE"])
def test_a_global_that_a_function_of_the_user_names_may_change(name, monkeypatch):
    """Two steps of 1; then of 3, or a model that is shown three times as large."""
    task = counting_task()._replace(loss=sloping)
    strategy = averaging(merge=hj.merge.average()._replace(model=scaled))

    def found():
        history = train(machine(1.0), strategy, 2.0, task=task)
        return history.params["w"].tolist()

    assert found() == [2.0]
    monkeypatch.setitem(globals(), name, 3.0)
    assert found() == [6.0]


CONFIG = {"slope": 1.0}
SPACE = types.SimpleNamespace(slope=1.0)
TABLE = np.ones(1, np.float32)


class Slope:
    """A setting of a class, and of an object."""

    slope = 1.0

    def __init__(self):
        self.own = 1.0

    def of_class(self):
        return Slope.slope

    def of_object(self):
        return self.own


def of_attribute():
    return of_attribute.slope


of_attribute.slope = 1.0
ENCLOSED, OBJECT = [1.0], Slope()
# what a function of the user reads, and how it is changed
READ = {
    "a global dictionary": (
        lambda: CONFIG["slope"],
        lambda v: CONFIG.update(slope=v),
    ),
    "a namespace": (lambda: SPACE.slope, lambda v: setattr(SPACE, "slope", v)),
    "an array": (lambda: TABLE[0], lambda v: TABLE.fill(v)),
    "a list": (
        (lambda enclosed: lambda: enclosed[0])(ENCLOSED),
        lambda v: ENCLOSED.__setitem__(0, v),
    ),
    "a class": (OBJECT.of_class, lambda v: setattr(Slope, "slope", v)),
    "an object": (OBJECT.of_object, lambda v: setattr(OBJECT, "own", v)),
    "a function's attribute": (
        of_attribute,
        lambda v: setattr(of_attribute, "slope", v),
    ),
    "a partial function": (
        functools.partial(lambda box: box["slope"], CONFIG),
        lambda v: CONFIG.update(slope=v),
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_a_function_of_the_user_reads_may_change(name):
    read, change = READ[name]

    def loss(params, model_state, batch, key):
        return -read() * jnp.broadcast_to(params["w"], batch.weight.shape), model_state

    task = counting_task()._replace(loss=loss)
    found = []
    for value in (1.0, 1.0, 3.0):
        change(value)
        history = train(machine(1.0), averaging(), 2.0, task=task)
        found.append((history.params["w"].tolist(), history.compilations > 0))
    change(1.0)
    assert found == [([2.0], True), ([2.0], False), ([6.0], True)]


def test_programs_and_data_are_freed_with_their_task():
    def held():
        data, base = counting_data(), counting_task()

        def loss(*arguments):
            assert data is not None
            return base.loss(*arguments)

        task = base._replace(loss=loss)
        options = {"seconds": 2.0, "num_evals": 1, "progress": False}
        hj.train(task, data, machine(1.0), averaging(), **options)
        return [weakref.ref(x) for x in (loss, data, programs_of(task))]

    alive = held()
    gc.collect()
    assert [ref() for ref in alive] == [None, None, None]


def test_a_task_is_pickled_without_its_programs():
    task = counting_task()
    size = len(cloudpickle.dumps(task))
    train(machine(1.0), averaging(), 2.0, task=task)
    assert len(cloudpickle.dumps(task)) < size + 300
    again = pickle.loads(cloudpickle.dumps(task))
    assert programs_of(again) is programs_of(again) is not programs_of(task)


def test_the_programs_of_the_last_tasks_stay_cached(monkeypatch):
    monkeypatch.setattr(sharing, "TASKS", 2)
    monkeypatch.setattr(sharing, "_recent", [])
    tasks = [counting_task() for _ in range(3)]
    first = [programs_of(task) for task in tasks[:2]]
    assert programs_of(tasks[0]) is first[0]
    programs_of(tasks[2])  # the second task was used longest ago
    assert programs_of(tasks[0]) is first[0]
    assert programs_of(tasks[1]) is not first[1]


def test_too_many_programs_of_a_task_are_made_anew(monkeypatch):
    task = counting_task()
    train(machine(1.0), averaging(), 2.0, task=task)
    before = programs_of(task)
    assert before.number > 5
    monkeypatch.setattr(sharing, "PROGRAMS", before.number - 1)
    assert programs_of(task) is not before
