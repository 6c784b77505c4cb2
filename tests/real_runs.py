"""Short runs on the test process's four CPU devices, of models that compile fast."""

import threading

import jax.numpy as jnp
import numpy as np

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.api.session import Session
from hetjax.data import from_arrays

FEATURES, CLASSES = 6, 3
OF_BENCH = ("eval_examples", "on_nan", "on_lost_worker", "trace")


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


_PROGRAMS = {}  # per task: compiled for one test, reused by the others


def real(strategy, machine=None, *, seconds=0.3, task=TASK, num_evals=3, **options):
    """A real run, as `hj.train` does it."""
    about = {k: options.pop(k) for k in OF_BENCH if k in options}
    machine = machine or three_workers()
    session = Session(
        task, DATA, machine, seconds=seconds, num_evals=num_evals, **about
    )
    session.programs = _PROGRAMS.setdefault(id(task), session.programs)  # task
    bar = ProgressBar(seconds, shown=False, real=True)
    return session.run(strategy.name, strategy, options.pop("seed", 0), bar, **options)


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
