"""The law of resumption: a run that goes on from a cut equals one that was never cut.

Whoever adds state to a part of a run, and does not save it, breaks this law, or the one
below it: every attribute of a part is saved, or known to be fixed.
"""

import dataclasses
import itertools
from functools import cache

import flax.nnx as nnx
import jax
import pytest
from checkpointed_runs import Memory, load, outcome, run, session, some
from quick import quick
from small_runs import problem, strategy
from tiers import ALIKE
from tiny_problems import three_workers, two_places
from zoo import FORMS, WAYS

import hetjax as hj
from hetjax.checkpointable import Checkpointable
from hetjax.engine.loop import Loop
from hetjax.machine import Cost, Link, Machine, Profile, ScriptedFault
from hetjax.runtimes.openers import open_runtime

STRATEGIES = {name: strategy(name, 6) for name in hj.STRATEGIES}


@cache
def on_three_workers():
    p = problem()
    return session(p.task, p.data, three_workers(), 0.06)


PLAYERS = pytest.mark.parametrize("compiled", [False, True])


def by_players(reference, compiled, among):
    """Strategies and players: those that are named here are always tested."""
    chosen = [*((n, False) for n in reference), *((n, True) for n in compiled)]
    rows = quick(list(itertools.product(among, (False, True))), *chosen)
    return pytest.mark.parametrize(("name", "compiled"), rows)


def check(session, strategy, number, *, prefers_rest=False, **changes):
    """Continue from so many cuts of a run; return how many cuts there were.

    The reference player is cut after every event, a compiled run where it was seen what
    came of everything.
    """
    saver = Memory(prefers_rest=prefers_rest)
    whole = outcome(run(session, strategy, saver=saver, **changes))
    assert whole == outcome(
        run(session, strategy, **changes)
    )  # cutting changes nothing
    assert len(saver.cuts) > 5
    for cut in some(saver.cuts, number):
        again = run(session, strategy, saved=load(cut), **changes)
        assert outcome(again) == whole
    return len(saver.cuts)


SOME = ("adaptive_sgd", "async_sgd", "easgd", "fed_nova", "hier_sgd", "sma")


# the others from every cut, below; compiled runs also in test_compiled_checkpoints.py
@by_players(SOME, ("adaptive_sgd", "easgd", "hier_sgd"), among=(*SOME, *ALIKE))
def test_every_strategy_continues_from_some_cuts(name, compiled):
    check(on_three_workers(), STRATEGIES[name], 5, compiled=compiled)


BULK = [k for k in FORMS if STRATEGIES[k].policy.bulk_synchronous]


@pytest.mark.parametrize("name", quick(BULK, "local_sgd", "hier_sgd"))
def test_bulk_synchronous_strategies_continue_from_cuts_between_rounds(name):
    p = problem()
    runs = session(p.task, p.data, three_workers(), 0.15)
    check(runs, STRATEGIES[name], 3, prefers_rest=True, compiled=False)


CUT_ANYWHERE = [(n, False) for n in FORMS] + [(n, True) for n in WAYS]


@pytest.mark.full
@pytest.mark.parametrize(("name", "compiled"), CUT_ANYWHERE)
def test_every_strategy_continues_from_every_cut(name, compiled):
    check(on_three_workers(), STRATEGIES[name], 1000, compiled=compiled)


@by_players(("easgd", "adaptive_sgd", "downpour"), compiled=("downpour",), among=WAYS)
def test_after_a_kill_a_join_and_a_slowdown(name, compiled):
    faults = (
        ScriptedFault(0.011, "kill", "w0"),
        ScriptedFault(0.013, "slow", "w1", 3.0),
        ScriptedFault(0.031, "join", "w0"),
        ScriptedFault(0.041, "kill", "w2"),
    )
    machine = dataclasses.replace(three_workers(), faults=faults)
    p = problem()
    runs = session(p.task, p.data, machine, 0.06)
    check(runs, STRATEGIES[name], 12, compiled=compiled)


@PLAYERS
@pytest.mark.parametrize("cuts", quick([5, 20], 5))
def test_in_a_deep_tree_with_merges_on_links(cuts, compiled):
    strategy = hj.hier_sgd(
        levels=((2, 2, 2, 2), (2, 2)),
        local_steps=(2, 4, 8),
        batch_size=6,
        learning_rate=0.1,
    )
    p = problem()
    runs = session(p.task, p.data, two_places(), 0.1)
    check(runs, strategy, cuts, compiled=compiled)


@PLAYERS
def test_in_the_tuner(compiled):
    machine = three_workers().with_workers_per_device(3, (1, 1.5, 1.6))
    strategy = hj.sma(
        batch_size=6, learning_rate=0.1, tuner="stop_at_first_drop", tuner_window=2
    )
    p = problem()
    runs = session(p.task, p.data, machine, 0.12)
    cuts = check(runs, strategy, 12, compiled=compiled)
    assert compiled or cuts > 40


CONTEND = ("async_sgd", "local_sgd")


@by_players(CONTEND, compiled=("async_sgd",), among=CONTEND)
def test_where_workers_contend(name, compiled):
    workers = tuple(
        Profile(
            f"cpu:{k}", "cpu", Cost(1e-3, 1e-4), factor=1 + k, contention=1.8, duty=0.8
        )
        for k in range(3)
    )
    machine = Machine(
        "shared cores", workers, {"": Link(latency=1e-4, bandwidth=1e8)}, noise=0.2
    )
    p = problem()
    runs = session(p.task, p.data, machine, 0.06)
    check(runs, STRATEGIES[name], 8, compiled=compiled)


@PLAYERS
def test_replicas_that_were_reset_after_a_nan(compiled):
    def loss(params, model_state, batch, key):
        losses, state = problem().task.loss(params, model_state, batch, key)
        unlucky = jax.random.uniform(key) < 0.2
        return losses * jax.numpy.where(unlucky, jax.numpy.nan, 1.0), state

    p, strategy = problem(), STRATEGIES["async_sgd"]
    runs = session(p.task._replace(loss=loss), p.data, three_workers(), 0.06)
    check(runs, strategy, 8, on_nan="reset", compiled=compiled)


class Net(nnx.Module):
    """A model with statistics, a random stream and several dtypes."""

    def __init__(self, num_features, num_classes, rngs):
        self.first = nnx.Linear(num_features, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.last = nnx.Linear(
            8, num_classes, param_dtype=jax.numpy.bfloat16, rngs=rngs
        )

    def __call__(self, x):
        return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))


@by_players(("sma", "async_sgd"), compiled=("async_sgd",), among=WAYS)
def test_models_with_statistics_dropout_and_bfloat16(name, compiled):
    data = problem().data
    task = hj.classification(Net, data)
    runs = session(task, data, three_workers(), 0.04)
    check(runs, STRATEGIES[name], 4, compiled=compiled)


SPARSE = ("adaptive_sgd", "easgd")


@by_players(SPARSE, compiled=("adaptive_sgd",), among=SPARSE)
def test_sparse_data(name, compiled):
    data = hj.data.synthetic_xmc(
        rows=120, test_rows=30, features=50, labels=7, nonzeros=9.0
    )
    task = hj.classification(hj.models.sparse_mlp(hidden=4), data)
    runs = session(task, data, three_workers(), 0.06)
    check(runs, STRATEGIES[name], 6, compiled=compiled)


def test_workers_spread_over_several_devices():
    p = problem()
    runs = session(p.task, p.data, three_workers(), 0.05, devices=jax.devices()[:3])
    check(runs, STRATEGIES["easgd"], 4)
    check(runs, STRATEGIES["sma"], 4)


@PLAYERS
def test_schedules_and_own_partners(compiled):
    strategy = hj.local_sgd(
        local_steps=2,
        batch_size=6,
        learning_rate=hj.LearningRate(lambda seconds: 0.1 / (1 + seconds), "seconds"),
    )
    check(on_three_workers(), strategy, 5, compiled=compiled)


@PLAYERS
def test_cuts_of_a_continued_run(compiled):
    """A run may be interrupted again and again."""
    runs, strategy = on_three_workers(), STRATEGIES["adaptive_sgd"]
    every = 2 if compiled else 7
    whole = outcome(run(runs, strategy, compiled=compiled))
    saver, number = Memory(every=every), 0
    run(runs, strategy, saver=saver, compiled=compiled)
    while len(saver.cuts) > 0:
        first, saver, number = saver.cuts[0], Memory(every=every), number + 1
        saved = load(first)
        last = run(runs, strategy, saver=saver, saved=saved, compiled=compiled)
        assert outcome(last) == whole
    assert number > 3


def parts(thing, seen):
    """All parts of a run that are saved, found from one of them."""
    if id(thing) in seen or not isinstance(thing, Checkpointable):
        return
    seen[id(thing)] = thing
    for value in vars(thing).values():
        parts(value, seen)


FIXED = {  # attributes of parts that do not change during a run
    "SimulatedClock": {"workers", "_machine"},
    "EventQueue": {"workers", "_index", "_faults"},
    "MergeQueues": {"_machine", "_workers", "_common_link"},
    "Contention": {"_workers"},
    "Ledger": {"_topology", "_above", "_workers", "_overwrites", "_accrues"},
    "ModelVersions": set(),
    "Losses": set(),
    "Examples": {"_sampler", "_workers", "_nonzeros", "_expected"},
    "TapeWriter": {
        *("_policy", "_clock", "_topology", "_num_examples", "_num_held_out"),
        *("_learning_rate", "_traits", "_stops_if_lost", "_stopped"),
        "_traffic_of",
        "held",  # saved by the loop, since models are a player's
        "launched",  # settled before a snapshot
    },
}
# of the records of a run
SAVED_OF_RECORDS = {"losses", "_best", "_time_map", "history"}
FIXED_OF_RECORDS = {
    *(
        "_job",
        "_on_eval",
        "_ledger",
        "_workers",
        "_player",
        "_share",
        "_nodes_of",
        "_traffic",
    ),
    "_rows",  # they only name rows that are not finite
    "_visible",  # the root's model, when a run goes on
}


def opened_loop():
    """The loop of a run that is over."""
    p, strategy = problem(), STRATEGIES["easgd"]
    workers = tuple(
        Profile(f"w{k}", "cpu", Cost(1e-3, 1e-4), contention=1.5) for k in range(2)
    )
    machine = Machine("m", workers, {"": Link(latency=1e-4, bandwidth=1e8)})
    runs = session(p.task, p.data, machine, 0.01)
    job = runs.job(strategy.name, strategy, 0)
    runtime = open_runtime(machine, strategy, job)
    loop = Loop(strategy, job, runtime, lambda point: "")
    loop.run()
    return loop


def test_every_attribute_of_a_part_is_saved_or_fixed():
    loop, found = opened_loop(), {}
    records = loop._records
    for part in (loop._clock, loop._writer, records.losses):
        parts(part, found)
    assert {type(p).__name__ for p in found.values()} == set(FIXED)
    for part in found.values():
        assert set(vars(part)) == {*part.changes, *FIXED[type(part).__name__]}
    assert {name.removeprefix("_") for name in SAVED_OF_RECORDS} == set(records.save())
    assert set(vars(records)) == SAVED_OF_RECORDS | FIXED_OF_RECORDS
