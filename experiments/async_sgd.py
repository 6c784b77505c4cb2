"""MagmaDNN's claims: synchronous against asynchronous SGD with 2 to 32 workers.

    HETJAX_DATA=DIR python experiments/async_sgd.py                 (25 minutes)
    python experiments/async_sgd.py --measure                       (seconds, no data)
    python experiments/async_sgd.py --quick                         (two minutes)

MNIST (--quick: digits), MagmaDNN's MLP 784-512-256-10, batches of 32 whatever the
number of workers, rate 0.001, momentum 0.99 in its EMA form, so many virtual seconds.

How the times were set: `--measure` takes them on arrays of the model's size: a gradient
of 32 examples (JAX), and with NumPy in one thread the master's step (`tick`), a copy of
the model, and an addition to the shared gradient. The defaults are one such measurement
on a 2-core x86-64 machine. Only what needs the lock queues for it (the machine's link):
the additions to the shared gradient, and the parameter server's step with each of
them. Copies of the model run side by side, as part of a worker's own time; so does the
synchronous form's one step, for which everybody waits. Hogwild! has no lock.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import claims
import datasets
import jax
import numpy as np
import scripts
from absl import flags
from claims import Claim

import hetjax as hj
from hetjax import tree
from hetjax.data.batching import make_batch, make_buckets
from hetjax.machine import Cost, Link, Machine, Profile
from hetjax.report import plots
from hetjax.task.types import make_grad_fn

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "mnist", "a named data set (--quick: digits)")
flags.DEFINE_string("model", "magma_mlp", "magma_mlp, mlp, magma_cnn, ...")
flags.DEFINE_float("seconds", 2.5, "virtual budget of every run [s]")
flags.DEFINE_float("rate", 1e-3, "learning rate")
flags.DEFINE_float("momentum", 0.99, "of the EMA")
flags.DEFINE_float("gradient_ms", 1.33, "of a worker, for 32 examples")
flags.DEFINE_float("tick_ms", 0.228, "of the master's step")
flags.DEFINE_float("copy_ms", 0.055, "of the model")
flags.DEFINE_float("add_ms", 0.0637, "of a gradient to the shared one")
flags.DEFINE_boolean("measure", False, "measure the four times here, and stop")

WORKERS = (2, 4, 8, 16, 32)


@cache
def problem() -> tuple[hj.Task, hj.data.Dataset, float]:
    """The task, its data, and the bytes of its model."""
    data = datasets.load("digits" if FLAGS.quick else FLAGS.data)
    name = "mlp" if FLAGS.quick else FLAGS.model
    task = hj.classification(datasets.model(name, data, 128), data)
    params, _ = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    return task, data, float(tree.num_bytes(params))


def machine(workers: int, name: str) -> Machine:
    """Equal threads around one lock; 5 % noise.

    What a worker does by itself, and what it does under the lock, in milliseconds; a
    merge takes the lock for two trips (MagmaDNN's asynchronous form for one).
    """
    own, locked, trips = {
        "sync": (FLAGS.copy_ms + FLAGS.tick_ms, FLAGS.add_ms, 2),
        "async": (0.0, FLAGS.add_ms, 1),  # its copies are timed by the strategy
        "async, swap": (0.0, FLAGS.add_ms, 1),
        "parameter server": (FLAGS.copy_ms, FLAGS.add_ms + FLAGS.tick_ms, 2),
        "hogwild": (FLAGS.copy_ms + FLAGS.add_ms, FLAGS.add_ms, 2),
    }[name]
    cost = Cost(1e-3 * (FLAGS.gradient_ms + own), 0.0)
    profiles = tuple(Profile(f"thread{i}", "cpu", cost) for i in range(workers))
    lock = Link(0.0, trips * problem()[2] / (1e-3 * locked), "central")
    return Machine(f"threads:{workers}", profiles, {"": lock}, noise=0.05)


def strategies() -> dict[str, hj.Strategy]:
    """Both forms of MagmaDNN, and what else is asynchronous."""
    common: dict[str, Any] = {"batch_size": 32, "rate": FLAGS.rate}
    magma = {**common, "momentum": FLAGS.momentum}
    magma |= {"tick_seconds": 1e-3 * FLAGS.tick_ms}
    magma |= {"copy_seconds": 1e-3 * FLAGS.copy_ms}
    return {
        "sync": hj.sync_sgd(**common, momentum=FLAGS.momentum, ema=True),
        "async": hj.magma_async_sgd(**magma),
        "async, swap": hj.magma_async_sgd(**magma, subtract="swap"),
        "parameter server": hj.async_sgd(**common, momentum=FLAGS.momentum, ema=True),
        "hogwild": hj.hogwild(**common),
    }


@cache
def trained(name: str, workers: int) -> tuple[hj.History, ...]:
    """One run per seed."""
    task, data, _ = problem()
    runs = hj.compare(
        task,
        data,
        machine(workers, name),
        {name: strategies()[name]},
        seconds=min(1.0, FLAGS.seconds) if FLAGS.quick else FLAGS.seconds,
        points=100,
        seeds=tuple(claims.seeds()),
        progress=False,
    )
    return tuple(runs.histories)


def final(name: str, workers: int) -> list[float]:
    return [h.points[-1][h.metric] for h in trained(name, workers)]


def counts() -> tuple[int, ...]:
    return WORKERS[:3] if FLAGS.quick else WORKERS


def sweep(name: str) -> str:
    """Accuracy at the end for every number of workers."""
    return "; ".join(f"{n}: {claims.spread(final(name, n))}" for n in counts())


def setting() -> str:
    seconds = trained("sync", 2)[0].span
    return (
        f"{problem()[1].name}, {seconds:g} s, gradient {FLAGS.gradient_ms} ms, tick "
        f"{FLAGS.tick_ms} ms, copy {FLAGS.copy_ms} ms, addition {FLAGS.add_ms} ms, "
        f"{len(claims.seeds())} seeds"
    )


def sync_section() -> Iterator[Claim]:
    """Figure 1 (a): the reduction is a queue."""
    few, many = min(counts()), max(counts())
    slower = claims.ahead(final("sync", few), final("sync", many))
    yield Claim(
        "sync/accuracy",
        f"synchronous SGD is worse with {many} workers than with {few} at equal time",
        "degraded",
        sweep("sync"),
        "accuracy",
        claims.by_fit(slower > 0, "the seeds overlap" if slower == 0 else "better"),
        setting(),
    )
    mid = 16 if 16 in counts() else many
    iterations = {n: _iterations(n) for n in (few, mid)}
    ratio = iterations[few] / iterations[mid]
    yield Claim(
        "sync/iterations",
        f"iterations to 40 % hardly fall from {few} to {mid} workers",
        round(1071 / 990, 3),
        round(ratio, 3),
        "x",
        claims.within(ratio, 1071 / 990, 0.15),
        f"{iterations[few]:.0f} and {iterations[mid]:.0f}; {setting()}",
    )


def _iterations(workers: int) -> float:
    """Median central steps until the accuracy is 0.4."""
    found = []
    for history in trained("sync", workers):
        reached = [p for p in history.points if p[history.metric] >= 0.4]
        found.append(reached[0]["updates"] / workers if reached else float("inf"))
    return median(found)


def async_section() -> Iterator[Claim]:
    """Figure 1 (b): the more slaves, the better."""
    few, many = min(counts()), max(counts())
    better = claims.ahead(final("async", many), final("async", few))
    yield Claim(
        "async/workers",
        f"asynchronous SGD is better with {many} workers than with {few}",
        "0.80 against 0.40 after 30 s",
        sweep("async"),
        "accuracy",
        claims.by_fit(better > 0, "the seeds overlap" if better == 0 else "worse"),
        setting(),
    )
    worse = claims.ahead(final("sync", few), final("async", few))
    yield Claim(
        "async/few",
        f"with {few} workers the asynchronous form is slower than the synchronous one",
        "slow",
        f"{claims.spread(final('async', few))} and {claims.spread(final('sync', few))}",
        "accuracy",
        claims.by_fit(worse > 0, "it is not behind in every seed"),
        setting(),
    )
    wins = claims.ahead(final("async", many), final("sync", many))
    yield Claim(
        "async/many",
        f"with {many} workers the asynchronous form beats the synchronous one",
        "faster",
        f"{claims.spread(final('async', many))} and "
        f"{claims.spread(final('sync', many))}",
        "accuracy",
        claims.by_fit(wins > 0, "it is not ahead in every seed"),
        setting(),
    )


def gradients_section() -> Iterator[Claim]:
    """How many gradients there are, and the effect of the subtraction."""
    per_worker = {
        n: median(h.points[-1]["updates"] for h in trained("async", n))
        for n in counts()
    }
    most = max(per_worker, key=lambda n: per_worker[n])
    listed = ", ".join(f"{n}: {u:,.0f}" for n, u in per_worker.items())
    yield Claim(
        "gradients/most",
        "the number of workers that gives most gradients",
        8,
        most,
        "workers",
        claims.by_fit(most == 8, "the lock lets no fewer through when more wait"),
        f"gradients {listed}; {setting()}",
    )
    few = min(counts())
    swap = claims.ahead(final("async, swap", few), final("async", few))
    yield Claim(
        "gradients/swap",
        f"to leave a gradient until the next is there (swap) helps {few} workers",
        "(the prose's reading; the algorithm subtracts before)",
        f"{claims.spread(final('async, swap', few))} against "
        f"{claims.spread(final('async', few))}",
        "accuracy",
        "ours: yes" if swap > 0 else "ours: no",
        setting(),
    )


def rivals_section() -> Iterator[Claim]:
    """What MagmaDNN does not compare with."""
    for workers in (2, 8):
        found = {
            name: claims.spread(final(name, workers))
            for name in ("async", "async, swap", "sync", "parameter server", "hogwild")
        }
        yield Claim(
            f"rivals/{workers}",
            f"accuracy of all forms with {workers} workers",
            "not tried",
            "; ".join(f"{name} {value}" for name, value in found.items()),
            "accuracy",
            "ours",
            setting(),
        )


def figures_section() -> Iterator[Claim]:
    """Figure 1: accuracy over time with every number of workers; no claim."""
    for name in ("sync", "async"):
        histories = [
            replace(history, strategy=f"{n} workers")
            for n in counts()
            for history in trained(name, n)
        ]
        yield claims.picture(
            f"figures/{name}",
            f"async_sgd_{name}.png",
            plots.time_to_accuracy(histories, "accuracy", "seconds", None),
            "accuracy over virtual time",
            "Figure 1",
            setting(),
        )


def measure() -> int:
    """The four times on arrays of this model's size, medians of 50."""
    task, data, num_bytes = problem()
    params, state = jax.jit(task.init)(jax.random.key(0))
    rows = np.arange(32)
    batch = make_batch(data.train, rows, make_buckets(data.train, 32))

    @jax.jit
    def gradient(params: Any, state: Any, batch: Any) -> Any:
        return make_grad_fn(task, jax.random.key(0))(params, state, batch)[2]

    w, z, g = (np.zeros(int(num_bytes) // 4, np.float32) for _ in range(3))

    def tick() -> None:
        np.multiply(z, FLAGS.momentum, out=z)
        np.add(z, (1 - FLAGS.momentum) * g, out=z)
        np.subtract(w, FLAGS.rate * z, out=w)

    times = {
        "gradient_ms": lambda: jax.block_until_ready(gradient(params, state, batch)),
        "tick_ms": tick,
        "copy_ms": lambda: np.copyto(w, z),
        "add_ms": lambda: np.add(g, z, out=g),
    }
    for name, action in times.items():
        print(f"--{name}={1e3 * _seconds(action):.3g}")
    return 0


def _seconds(action: Callable[[], object]) -> float:
    found = []
    for _ in range(55):
        began = time.perf_counter()
        action()
        found.append(time.perf_counter() - began)
    return median(found[5:])


def main() -> int:
    if FLAGS.measure:
        return measure()
    return claims.main(
        {
            "sync": sync_section,
            "async": async_section,
            "gradients": gradients_section,
            "rivals": rivals_section,
            "figures": figures_section,
        }
    )


if __name__ == "__main__":
    scripts.run(main)
