"""MagmaDNN's claims: synchronous and asynchronous SGD with 2 to 32 workers.

    HETJAX_DATA=DIR python experiments/papers/async_sgd.py          (25 minutes)
    python experiments/papers/async_sgd.py --measure --quick        (seconds, no data)
    python experiments/papers/async_sgd.py --quick                  (two minutes)

MagmaDNN's MLP 784-512-256-10 on MNIST (--quick: an MLP on the digits), batches of
32 for any number of workers, learning rate 0.001, momentum 0.99 as an EMA of gradients.
`magma_threads.py` describes how the machine's times were measured, and its lock.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from statistics import median
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.common import bounds, claims, named_data, scripts
from experiments.common.bounds import bounded
from experiments.common.claims import Claim
from experiments.papers import magma_threads
from hetjax import tree
from hetjax.machine import Machine
from hetjax.report.drawing import curves

FLAGS = flags.FLAGS
flags.DEFINE_string("data", "mnist", f"{named_data.HELP} (--quick: digits)")
flags.DEFINE_string("model", "magma_mlp", "magma_mlp, mlp, magma_cnn, ...")
flags.DEFINE_float("seconds", 2.5, "virtual seconds of every run")
flags.DEFINE_float("learning_rate", 1e-3, "learning rate")
flags.DEFINE_float("server_momentum", 0.99, "momentum of the EMA of gradients")
flags.DEFINE_boolean("measure", False, "measure the machine's times here, and stop")
bounded("seconds", *bounds.SECONDS)
bounded("learning_rate", *bounds.LEARNING_RATE)
bounded("server_momentum", *bounds.MOMENTUM)

WORKERS = (2, 4, 8, 16, 32)


@cache
def problem() -> tuple[hj.Task, hj.data.Dataset, float]:
    """The task, its data, and the size of its model in bytes."""
    data = named_data.load("digits" if FLAGS.quick else FLAGS.data)
    name = "mlp" if FLAGS.quick else FLAGS.model
    task = hj.classification(named_data.model(name, data, 128), data)
    params, _ = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    return task, data, float(tree.num_bytes(params))


def machine(workers: int, name: str) -> Machine:
    """The strategy's threads as a machine, with a lock for this model's messages."""
    return magma_threads.machine(workers, name, problem()[2])


def strategies() -> dict[str, hj.Strategy]:
    """MagmaDNN's synchronous and asynchronous SGD, and other asynchronous ones."""
    common: dict[str, Any] = {"batch_size": 32, "learning_rate": FLAGS.learning_rate}
    magma = {**common, "server_momentum": FLAGS.server_momentum}
    magma |= {"server_step_seconds": 1e-3 * FLAGS.server_step_ms}
    magma |= {"copy_seconds": 1e-3 * FLAGS.copy_ms}
    return {
        "sync": hj.sync_sgd(**common, server_momentum=FLAGS.server_momentum, ema=True),
        "async": hj.magma_async_sgd(**magma),
        "async, swap": hj.magma_async_sgd(**magma, subtract="swap"),
        "parameter server": hj.async_sgd(
            **common, server_momentum=FLAGS.server_momentum, ema=True
        ),
        "hogwild": hj.hogwild(**common),
    }


@cache
def trained(name: str, workers: int) -> tuple[hj.History, ...]:
    """One run per seed."""
    task, data, _ = problem()
    runs = claims.compare(
        task,
        data,
        machine(workers, name),
        {name: strategies()[name]},
        seconds=min(1.0, FLAGS.seconds) if FLAGS.quick else FLAGS.seconds,
        num_evals=100,
        seeds=tuple(claims.seeds()),
        progress=False,
    )
    return tuple(runs.histories)


def final(name: str, workers: int) -> list[float]:
    return [h.evals[-1][h.metric] for h in trained(name, workers)]


def counts() -> tuple[int, ...]:
    return WORKERS[:3] if FLAGS.quick else WORKERS


def sweep(name: str) -> str:
    """The final accuracies, for every number of workers."""
    return "; ".join(f"{n}: {claims.spread(final(name, n))}" for n in counts())


def setting() -> str:
    seconds = trained("sync", 2)[0].duration
    return (
        f"{problem()[1].name}, {seconds:g} s, gradient {FLAGS.gradient_ms} ms, server "
        f"step {FLAGS.server_step_ms} ms, copy {FLAGS.copy_ms} ms, addition "
        f"{FLAGS.add_ms} ms, {len(claims.seeds())} seeds"
    )


def sync_section() -> Iterator[Claim]:
    """Figure 1 (a): the synchronous reduction is a queue."""
    few, many = min(counts()), max(counts())
    slower = claims.ahead(final("sync", few), final("sync", many))
    yield Claim(
        "sync/accuracy",
        f"synchronous SGD is worse with {many} workers than with {few} at equal time",
        "degraded",
        sweep("sync"),
        "accuracy",
        claims.by_fit(
            slower > 0,
            "the seeds overlap" if slower == 0 else "it is better in every seed",
        ),
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
    """Median number of server steps until the accuracy is 0.4."""
    found = []
    for history in trained("sync", workers):
        seconds = history.seconds_to(0.4)
        steps = [p["updates"] for p in history.evals if p["seconds"] == seconds]
        found.append(steps[0] / workers if steps else float("inf"))
    return median(found)


def async_section() -> Iterator[Claim]:
    """Figure 1 (b): more workers are better."""
    few, many = min(counts()), max(counts())
    better = claims.ahead(final("async", many), final("async", few))
    yield Claim(
        "async/workers",
        f"asynchronous SGD is better with {many} workers than with {few}",
        "0.80 against 0.40 after 30 s",
        sweep("async"),
        "accuracy",
        claims.by_fit(
            better > 0,
            "the seeds overlap" if better == 0 else "it is worse in every seed",
        ),
        setting(),
    )
    worse = claims.ahead(final("sync", few), final("async", few))
    yield Claim(
        "async/few",
        f"with {few} workers asynchronous SGD is slower than synchronous SGD",
        "slow",
        f"{claims.spread(final('async', few))} and {claims.spread(final('sync', few))}",
        "accuracy",
        claims.by_fit(worse > 0, "it is not behind in every seed"),
        setting(),
    )
    wins = claims.ahead(final("async", many), final("sync", many))
    yield Claim(
        "async/many",
        f"with {many} workers asynchronous SGD is faster than synchronous SGD",
        "faster",
        f"{claims.spread(final('async', many))} and "
        f"{claims.spread(final('sync', many))}",
        "accuracy",
        claims.by_fit(wins > 0, "it is not ahead in every seed"),
        setting(),
    )


def gradients_section() -> Iterator[Claim]:
    """The number of gradients, and the effect of when a gradient is subtracted."""
    per_worker = {
        n: median(h.evals[-1]["updates"] for h in trained("async", n)) for n in counts()
    }
    most = max(per_worker, key=lambda n: per_worker[n])
    listed = ", ".join(f"{n}: {u:,.0f}" for n, u in per_worker.items())
    yield Claim(
        "gradients/most",
        "the number of workers that computes most gradients",
        8,
        most,
        "workers",
        claims.by_fit(most == 8, "more workers at the lock do not slow it down"),
        f"gradients {listed}; {setting()}",
    )
    few = min(counts())
    swap = claims.ahead(final("async, swap", few), final("async", few))
    yield Claim(
        "gradients/swap",
        f"keeping a gradient until the next one is ready (swap) helps {few} workers",
        "(as in the paper's prose; its algorithm subtracts before)",
        f"{claims.spread(final('async, swap', few))} against "
        f"{claims.spread(final('async', few))}",
        "accuracy",
        f"{claims.OWN}: {'it helps' if swap > 0 else 'it does not help'}",
        setting(),
    )


def rivals_section() -> Iterator[Claim]:
    """All strategies, also those that the paper does not compare with."""
    for workers in (2, 8):
        found = {
            name: claims.spread(final(name, workers))
            for name in ("async", "async, swap", "sync", "parameter server", "hogwild")
        }
        yield Claim(
            f"rivals/{workers}",
            f"accuracy of all strategies with {workers} workers",
            "not tried",
            "; ".join(f"{name} {value}" for name, value in found.items()),
            "accuracy",
            claims.OWN,
            setting(),
        )


def figures_section() -> Iterator[Claim]:
    """Figure 1: accuracy over time, for every number of workers; not a claim."""
    for name in ("sync", "async"):
        histories = [
            replace(history, strategy=f"{n} workers")
            for n in counts()
            for history in trained(name, n)
        ]
        yield claims.picture(
            f"figures/{name}",
            f"async_sgd_{name}.png",
            curves.time_to_accuracy(histories, "accuracy", "seconds", None),
            "accuracy over virtual time",
            "Figure 1",
            setting(),
        )


def main() -> int:
    if FLAGS.measure:
        return magma_threads.measure(*problem())
    return claims.main(
        {
            "sync": sync_section,
            "async": async_section,
            "gradients": gradients_section,
            "rivals": rivals_section,
            "figures": figures_section,
        },
        before_training=problem,
    )


if __name__ == "__main__":
    scripts.run(main)
