"""MagmaDNN's threads as a machine: workers around one lock, and their times.

`async_sgd.py --measure` measures the times on arrays of the model's size: a gradient of
32 examples in JAX, and with NumPy in one thread the server's step, a copy of the model,
and the addition of a gradient to the shared gradient. The defaults are from one such
measurement on a 2-core x86-64 machine.

The lock is the machine's link. Only operations that need the lock queue for it: the
additions to the shared gradient, and the parameter server's step after each of them.
Copies of the model run in parallel and are part of a worker's own time; so is the one
server step of synchronous SGD, for which all workers wait. Hogwild! has no lock.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.common.bounds import MILLISECONDS, bounded
from hetjax.data.batching import make_batch, make_buckets
from hetjax.machine import Cost, Link, Machine, Profile
from hetjax.tasks.types import make_grad_fn

FLAGS = flags.FLAGS
flags.DEFINE_float("gradient_ms", 1.33, "time of a worker's gradient of 32 examples")
flags.DEFINE_float("server_step_ms", 0.228, "time of the server's step")
flags.DEFINE_float("copy_ms", 0.055, "time of a copy of the model")
flags.DEFINE_float("add_ms", 0.0637, "time to add a gradient to the shared gradient")
for name in ("gradient_ms", "server_step_ms", "copy_ms", "add_ms"):
    bounded(name, *MILLISECONDS)


def machine(workers: int, strategy: str, num_bytes: float) -> Machine:
    """Equal threads around one lock, with 5 % noise.

    Each strategy has two times [ms]: a worker's own time, and its time under the lock.
    A merge holds the lock for two transfers of the model's bytes; in MagmaDNN's
    asynchronous SGD for one, because the strategy accounts for its copies itself.
    """
    copy, add, step = FLAGS.copy_ms, FLAGS.add_ms, FLAGS.server_step_ms
    own, locked, transfers = {
        "sync": (copy + step, add, 2),
        "async": (0.0, add, 1),
        "async, swap": (0.0, add, 1),
        "parameter server": (copy, add + step, 2),
        "hogwild": (copy + add, add, 2),
    }[strategy]
    cost = Cost(1e-3 * (FLAGS.gradient_ms + own), 0.0)
    profiles = tuple(Profile(f"thread{i}", "cpu", cost) for i in range(workers))
    lock = Link(
        latency=0.0,
        bandwidth=transfers * num_bytes / (1e-3 * locked),
        topology="central",
    )
    return Machine(f"threads:{workers}", profiles, {"": lock}, noise=0.05)


def measure(task: hj.Task, data: hj.data.Dataset, num_bytes: float) -> int:
    """Print the four times, medians of 50 calls on arrays of the model's size."""
    params, state = jax.jit(task.init)(jax.random.key(0))
    rows = np.arange(32)
    batch = make_batch(data.train, rows, make_buckets(data.train, 32))

    @jax.jit
    def gradient(params: Any, state: Any, batch: Any) -> Any:
        return make_grad_fn(task, jax.random.key(0))(params, state, batch)[2]

    w, z, g = (np.zeros(int(num_bytes) // 4, np.float32) for _ in range(3))

    def server_step() -> None:
        np.multiply(z, 0.99, out=z)
        np.add(z, (1 - 0.99) * g, out=z)
        np.subtract(w, 1e-3 * z, out=w)

    times = {
        "gradient_ms": lambda: jax.block_until_ready(gradient(params, state, batch)),
        "server_step_ms": server_step,
        "copy_ms": lambda: np.copyto(w, z),
        "add_ms": lambda: np.add(g, z, out=g),
    }
    for name, action in times.items():
        print(f"--{name}={1e3 * _seconds(action):.3g}")
    return 0


def _seconds(action: Callable[[], object]) -> float:
    """Median seconds of 50 calls, after five to warm up."""
    found = []
    for _ in range(55):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return median(found[5:])
