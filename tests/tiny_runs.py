"""Runs that can be worked out by hand: a model that counts, a clock of whole seconds.

The model is one number w, which starts at 0; every step at learning rate 1 adds exactly
1. Its metric "w" is the model itself, so an evaluation tells how many steps are in it.
"""

from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np
from compile_events import compile_events

import hetjax as hj
from hetjax import local, merge, schedule
from hetjax.api.progress import ProgressBar
from hetjax.data import from_arrays
from hetjax.machine import Cost, Link, Machine, Profile
from hetjax.strategies import Strategy

EXAMPLES = 24
ENDLESS = 1e30  # [bytes/s]: the time of a model's bytes vanishes in rounding
SGD, AVERAGE = local.sgd(), merge.average()  # runs on one task share their programs


def counting_data(examples=EXAMPLES):
    """The input of row i is i."""
    x, y = np.arange(examples, dtype=np.float32)[:, None], np.zeros(examples, int)
    return from_arrays((x, y), (x[:3], y[:3]), num_classes=2)


def counting_task(nan_above=None, test_nan_above=None):
    """A task whose loss (of a batch, or of the test) is NaN once w exceeds a bound."""

    def loss(params, model_state, batch, key):
        w = jnp.broadcast_to(params["w"], batch.weight.shape)
        bad = False if nan_above is None else w > nan_above
        # NaN in the loss alone: with a gradient of NaN, w could not be read off
        return jnp.where(bad, jnp.nan, 0.0) - w, model_state

    def metrics(params, model_state, batch):
        w = jnp.broadcast_to(params["w"], batch.weight.shape)
        bad = False if test_nan_above is None else w > test_nan_above
        return {"loss": jnp.where(bad, jnp.nan, jnp.ones_like(w)), "w": w}

    return hj.Task(lambda key: ({"w": jnp.zeros(1)}, ()), loss, metrics, "w")


def machine(*seconds, link=0.0, topology="central"):
    """Workers a, b, ... with these seconds per step; a merge takes `link` seconds."""
    workers = tuple(
        Profile(name, "kind", Cost(fixed=s, per_example=0.0))
        for name, s in zip("abcdef", seconds, strict=False)
    )
    # two messages of a central server; a ring of n members sends 2 (n - 1)
    links = {"": Link(latency=link / 2, bandwidth=ENDLESS, topology=topology)}
    return Machine("hand-made", workers, links)


def averaging(*, local_steps=1, batch_size=2, blocking=True, **fields):
    """Plain rounds: after n of them the common model is w = n steps."""
    policy = schedule.rounds(
        local_steps=local_steps, batch_size=batch_size, blocking=blocking
    )
    sizes = batch_size if isinstance(batch_size, tuple) else (batch_size,)
    whole = {"policy": policy, "local": SGD, "merge": AVERAGE}
    whole |= {"batch_size": max(sizes), "learning_rate": 1.0, "name": "averaging"}
    return Strategy(**{**whole, **fields})


def one_by_one(learning_rates):
    """Every worker does one step at its own learning rate and merges alone."""

    def init(workers, num_examples):
        local_rounds = [
            hj.machine.LocalRound(1, 1, learning_rate)
            for learning_rate in learning_rates
        ]
        return (), schedule.Actions(dispatch=tuple(enumerate(local_rounds)))

    def react(state, event):
        if not isinstance(event, hj.machine.Arrival):
            return state, schedule.Actions()
        action = schedule.MergeAction((event.worker,), blocking=False)
        return state, schedule.Actions(merges=(action,))

    return schedule.Policy(init, react)


def train(machine, strategy, seconds, num_evals=1, task=None, **options):
    """A run on the counting data."""
    task = counting_task() if task is None else task
    options = {"num_evals": num_evals, "progress": False, **options}
    return hj.train(
        task, counting_data(), machine, strategy, seconds=seconds, **options
    )


@contextmanager
def nothing_compiled():
    """Fail if JAX compiles or traces anything within the context."""
    with compile_events("/jax/core/compile") as events:
        yield
    assert events == []


def silent():
    """A progress bar that is not shown."""
    return ProgressBar(1.0, shown=False)


def column(history, name):
    return [point[name] for point in history.evals]


def seconds_of(history):
    """(busy, waiting, merging, idle) of every worker."""
    return [(w.busy, w.waiting, w.merging, w.idle) for w in history.workers]
