"""Short runs on the test process's four CPU devices, of models that compile fast.

They end when something has happened, rather than after a time: see `until`.
"""

import threading
from functools import cache

import chex
import jax.numpy as jnp
import numpy as np

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data import from_arrays
from hetjax.machine import Arrival, Evaluated, Join, Leave, Merged, RunEnded

FEATURES, CLASSES = 6, 3
AT_MOST = 60.0  # [s] of a run that ends when something has happened
BETWEEN = 0.1  # [s] between its evaluations
ENOUGH = "enough has happened"
OF_CONFIG = ("eval_examples", "on_nan", "on_lost_worker", "epochs", "target")


def small_data(examples=60):
    """Three noisy groups of points."""
    rng = np.random.default_rng(2)
    y = rng.integers(CLASSES, size=examples)
    x = rng.normal(size=(CLASSES, FEATURES))[y] + rng.normal(size=(examples, FEATURES))
    x = x.astype(np.float32)
    return from_arrays((x, y), (x[:20], y[:20]), num_classes=CLASSES)


DATA = small_data()
TASK = hj.classification(hj.models.mlp(hidden=5), DATA)


def poisoned_task(bad_row=7):
    """The loss of one example is NaN, and so is every gradient that includes it."""
    x = DATA.train.x[bad_row]

    def loss(params, model_state, batch, key):
        losses, state = TASK.loss(params, model_state, batch, key)
        bad = jnp.all(batch.x == x[None], axis=-1)
        return jnp.where(bad, jnp.nan, 1.0) * losses, state

    return TASK._replace(loss=loss)


def three_workers(**settings):
    """A machine of three devices, the last of which is slowed down."""
    settings = {"slowdown": (1, 1, 2), "step_mode": "dispatch", **settings}
    return hj.local_machine(["cpu:0", "cpu:1", "cpu:2"], **settings)


def real(
    strategy,
    machine=None,
    *,
    seconds=0.3,
    until=(),
    task=TASK,
    data=DATA,
    num_evals=3,
    **options,
):
    """A real run, as `hj.train` does it.

    Where it ends when something has happened (see `until`), it is evaluated every
    tenth of a second, and so many seconds are never reached but by a fault.
    """
    if until:
        strategy = ending(strategy, until)
        seconds, num_evals = AT_MOST, round(AT_MOST / BETWEEN)
    about = {k: options.pop(k) for k in OF_CONFIG if k in options}
    machine = machine or three_workers()
    session = Session(
        task, data, machine, RunConfig(seconds=seconds, num_evals=num_evals, **about)
    )
    bar = ProgressBar(seconds, shown=False, real=True)
    name, seed = strategy.name, options.pop("seed", 0)
    history = session.run(name, strategy, seed, bar, **options)
    if until:
        assert history.stopped == ENOUGH, (history.stopped, history.events)
    return history


def ending(strategy, until):
    """The strategy, whose runs end when these have happened, one after the other.

    Each is a function of an event. The policy counts, so that a replay ends there too.
    """
    policy = strategy.policy

    def init(workers, num_examples):
        state, actions = policy.init(workers, num_examples)
        return (0, state), actions

    def react(state, event):
        done, inner = state
        done += bool(until[done](event))
        if done == len(until):
            raise RunEnded(ENOUGH)
        inner, actions = policy.react(inner, event)
        return (done, inner), actions

    return strategy._replace(policy=policy._replace(init=init, react=react))


def merged(event):
    """Whether it is a merge."""
    return isinstance(event, Merged)


def merged_root(event):
    """Whether it is a merge of the root."""
    return isinstance(event, Merged) and event.node == "root"


def evaluated(event):
    """Whether it is an evaluation."""
    return isinstance(event, Evaluated)


def arrived(worker):
    """Whether it is the end of a round of this worker."""
    return lambda event: isinstance(event, Arrival) and event.worker == worker


def lost(worker):
    """Whether this worker was lost."""
    return lambda event: (
        isinstance(event, Leave) and event.lost and event.worker == worker
    )


def joined(worker):
    """Whether this worker joined."""
    return lambda event: isinstance(event, Join) and event.worker == worker


def telling(awaited, tell):
    """As `awaited`; if it was so, `tell()` is called."""
    return lambda event: awaited(event) and (tell(), True)[1]


@cache  # so that runs share what they compile
def rounds(**settings):
    """Local SGD: two steps each, then all workers merge."""
    return hj.local_sgd(
        **{"batch_size": 4, "learning_rate": 0.1, "local_steps": 2, **settings}
    )


def what_happened(history):
    """(worker, what) of every worker event."""
    return [(i.worker, i.what) for i in history.events]


def own_threads():
    """Threads of hetjax that are alive."""
    return [t for t in threading.enumerate() if t.name.startswith("hetjax worker")]


def undecided(strategy):
    """The strategy, whose policy must not be asked: a trace says what it decided."""

    def never(*given):
        raise AssertionError("a replay asked the policy")

    policy = strategy.policy._replace(init=never, react=never)
    return strategy._replace(policy=policy)


def assert_same_run(again, history):
    """A replay has the parameters of the run, bit for bit, and its records."""
    chex.assert_trees_all_equal(again.params, history.params)
    assert list(again.timeline.numbers) == list(history.timeline.numbers)
    for name in ("evals", "events", "workers", "merges", "merge_times", "duration"):
        assert getattr(again, name) == getattr(history, name), name


def assert_replays(history, strategy, trace=None):
    """A run is replayed from its trace, and the policy is not asked."""
    trace = trace or history.trace
    again = hj.replay(trace, TASK, DATA, undecided(strategy), progress=False)
    assert again.replayed == "equal"
    assert_same_run(again, history)
