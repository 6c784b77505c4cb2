"""What a user's own parts get wrong is said in one line, before any compilation."""

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compile_events import compile_events
from tiny_runs import averaging, counting_data, counting_task, machine, train

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.machine import Arrival, MergeAction
from hetjax.schedule import Actions, LocalRound, Policy

TASK = counting_task()
jax.random.key(0)  # JAX compiles its own programs for keys once in a process
AVERAGE, ROUNDS = merge.average(), schedule.rounds(batch_size=8)


@contextmanager
def refused(message):
    """A ValueError, before any program is compiled."""
    with compile_events() as programs, pytest.raises(ValueError, match=message):
        yield
    assert programs == []


def run(**parts):
    usual = {"policy": ROUNDS, "local": local.sgd(), "merge": AVERAGE}
    own = hj.Strategy(**{**usual, **parts}, batch_size=8, learning_rate=0.1)
    return hj.train(TASK, counting_data(), machine(1.0), own, seconds=2.0)


def applying(rule):
    """The average, but for what `apply` returns: a function of what it should be."""

    def apply(state, replicas, stats, op):
        return rule(*AVERAGE.apply(state, replicas, stats, op), stats)

    return AVERAGE._replace(apply=apply)


def branching(state, replicas, stats):
    if stats.local_steps[0] > 1:
        return state, replicas
    return state, replicas[::-1]


def as_numpy(state, replicas, stats):
    return state, replicas[: int(np.asarray(stats.local_steps).max())]


PAIR = r"return a pair \(state, replicas\) with all 2 replicas"
BRANCH = r"apply branches on a value.*test_custom_parts.py, line \d+\).*use jnp.where"
MERGES = {
    "state alone": (applying(lambda state, replicas, stats: state), PAIR),
    "replicas alone": (applying(lambda state, replicas, stats: replicas), PAIR),
    "nothing": (applying(lambda *_: None), f"apply returned None.*{PAIR}"),
    "one replica": (applying(lambda state, all_, stats: (state, all_[:1])), PAIR),
    "a branch": (applying(branching), BRANCH),
    "NumPy": (applying(as_numpy), BRANCH),
    "params alone": (
        AVERAGE._replace(model=lambda state: AVERAGE.model(state)[0]),
        r"model\(state\) returned .*: return a pair \(params, model_state\)",
    ),
    "a group's rule": (
        merge.group_merge(
            AVERAGE.init, lambda state, group, stats, op: state, AVERAGE.model
        ),
        r"the rule returned a .*: return a pair \(state, group\)",
    ),
}


def acting(dispatch):
    """Rounds whose first actions are these local rounds."""
    return ROUNDS._replace(
        init=lambda *given: (ROUNDS.init(*given)[0], Actions(dispatch=dispatch))
    )


ROUND = r"use pairs \(worker, LocalRound\(local_steps, batch_size\)\)"
ACTIONS = r"return a pair \(state, Actions\(...\)\)"
POLICIES = {
    "init, nothing": (
        ROUNDS._replace(init=lambda *_: None),
        f"init returned None: {ACTIONS}",
    ),
    "react, nothing": (
        ROUNDS._replace(react=lambda *_: None),
        f"react returned None: {ACTIONS}",
    ),
    "react, no state": (ROUNDS._replace(react=lambda *_: Actions()), ACTIONS),
    "a number of steps": (acting(((0, 4),)), rf"dispatches \(0, 4\): {ROUND}"),
    "a worker": (acting((0,)), f"dispatches 0: {ROUND}"),
    "half a step": (acting(((0, LocalRound(0.5, 8)),)), ROUND),
    "steps of several workers": (acting(((0, LocalRound((1, 2), 8)),)), ROUND),
    "no tuple": (acting(LocalRound(1, 8)[0]), r"Actions\(dispatch=1\): use a tuple"),
    "merges of numbers": (
        ROUNDS._replace(
            init=lambda *given: (ROUNDS.init(*given)[0], Actions(merges=((0, 1),)))
        ),
        r"init merges \(0, 1\): use MergeAction\(members\)",
    ),
}


@pytest.mark.parametrize(("own", "message"), MERGES.values(), ids=MERGES)
def test_a_merge(own, message):
    with refused(message):
        run(merge=own)


@pytest.mark.parametrize(("own", "message"), POLICIES.values(), ids=POLICIES)
def test_a_policy(own, message):
    if own.init is ROUNDS.init:  # the run has begun when `react` is called
        with pytest.raises(ValueError, match=message):
            run(policy=own)
        return
    with refused(message):
        run(policy=own)


def test_steps_for_other_workers():
    with refused("local_steps has 2 entries for 1 workers: pass one number for all"):
        run(policy=schedule.rounds(batch_size=8, local_steps=(1, 2)))


def test_a_local_update():
    alone = local.sgd()._replace(step=lambda replica, *_: replica)
    message = r"step returned a Replica for 2 examples: return a pair \(replica, losses"
    with refused(message):
        run(local=alone)


def test_a_tasks_init():
    own = TASK._replace(init=lambda key: TASK.init(key)[0])
    message = r"the task's init returns .*: return a pair \(params, model_state\)"
    with refused(message):
        hj.train(
            own,
            counting_data(),
            machine(1.0),
            hj.local_sgd(batch_size=8, learning_rate=0.1),
            seconds=1.0,
        )


def test_a_samplers_rows():
    one_short = hj.sampling.uniform()
    short = one_short._replace(
        draw=lambda state, worker, n: one_short.draw(state, worker, n - 1)
    )
    message = r"draw returned 7 rows: return a pair \(state, rows\) with 8 rows"
    with pytest.raises(ValueError, match=message):
        run(sampler=short)


def test_an_exception_of_an_own_part_is_its_own():
    """One that comes up for two members, but not for the run's, does not end it."""

    def alone(state, replicas, stats):
        if len(replicas) == 2:
            raise RuntimeError("for one worker alone")
        return state, replicas

    assert run(merge=applying(alone)).evals


def test_lists_and_generators_of_actions():
    """A generator is read once; pairs may be lists, and numbers NumPy's or JAX's."""

    def policy(kind):
        one = LocalRound(np.int64(1), jnp.float32(2))

        def init(workers, num_examples):
            dispatch = kind([[k, one] for k, _ in enumerate(workers)])
            return [0, Actions(dispatch=dispatch)]

        def react(state, event):
            if not isinstance(event, Arrival):
                return [state, Actions()]
            merges = kind([MergeAction((event.worker,))])
            return [state, Actions(merges=merges, dispatch=kind([(event.worker, one)]))]

        return Policy(init, react)

    for kind in (list, iter, lambda given: (x for x in given)):
        history = train(machine(1.0), averaging(policy=policy(kind)), 3.0)
        assert history.workers[0].updates == 3
