"""Host time of an update on the virtual clock: hetjax, and the same written by hand.

    python experiments/benchmarks/virtual.py                            (one minute)
    python experiments/benchmarks/virtual.py --strategies=async_sgd --turns=5

There are two jobs: the default one of experiments/compare.py (four workers on
v100x3+k80, an MLP 64-128-10), and 64 equal workers with an MLP 64-32-10. Both train on
shifted digits, with batches of 32. An update is a local step of one worker; local SGD's
local rounds have 32 steps on four workers, and 8 on 64.

hetjax's figure is a run's `history.host_seconds` by its updates. It holds all that such
a run does on the host and its devices, but compilation: events and policies, sampling
and gathering batches, steps, merges, records, the run's set-up, and evaluations (two on
32 test examples, one on all of them). By hand, "dispatch" is a compiled program per
arrival (`async_sgd`) or step (`local_sgd`) on batches that are ready, "scan" a single
program that gathers them on the device. Neither simulates, records, checks for NaN, or
evaluates; arrivals are in the order of hetjax's run. They must end with the same
parameters as each other, which is checked first. The contenders take turns.

One JSON object on standard output: "ratios" (hetjax over the scan, medians over the
turns), and "us_per_update" (medians of all contenders).
"""

import json
import math
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import turns, virtual_by_hand
from experiments.benchmarks.local_sgd_peers import mlp_init
from experiments.common import scripts
from experiments.common.bounds import bounded, check_some_of
from hetjax import tree
from hetjax.api.planning import virtual_times

STRATEGIES = (
    *("async_sgd", "easgd", "adaptive_sgd", "local_sgd"),
    *("sync_sgd", "ad_psgd", "hier_sgd"),
)
BY_HAND = ("async_sgd", "local_sgd")
BATCH, LEARNING_RATE = 32, 0.3  # those of compare.py
REPEATS = 5  # of a run by hand within a turn, since it takes a few hundredths of 1 s
FLAGS = flags.FLAGS
flags.DEFINE_integer("turns", 3, "measured runs of each contender")
flags.DEFINE_integer("updates", 2000, "about as many updates as a run has")
flags.DEFINE_list("strategies", list(STRATEGIES), "some of the strategies")
bounded("turns", 1, 1000, "every turn is run")
bounded("updates", 1, 10_000_000, "every update is run")

Run = Callable[[], float]  # trains, and returns the seconds of an update


class Job(NamedTuple):
    """A machine, and the settings that fit it."""

    machine: str  # a preset
    hidden: int
    local_steps: int  # of local_sgd
    levels: tuple[int, ...]  # of hier_sgd

    def strategy(self, name: str) -> hj.Strategy:
        """The strategy of that name, with its defaults where the job has no setting."""
        own: dict[str, Any] = {
            "local_sgd": {"local_steps": self.local_steps},
            "hier_sgd": {"levels": self.levels, "local_steps": (4, 16)},
        }.get(name, {})
        make = hj.STRATEGIES[name]
        return make(batch_size=BATCH, learning_rate=LEARNING_RATE, **own)


JOBS = (  # on 64 workers, 2,000 updates would be a single round of 32 steps
    Job("v100x3+k80", 128, local_steps=32, levels=(2,)),
    Job("uniform:64", 32, local_steps=8, levels=(8,)),
)


def trained(
    job: Job, name: str, task: hj.Task, data: hj.data.Dataset
) -> tuple[Run, hj.History]:
    """hetjax's contender, and the history of its first run, which compiles."""
    machine, strategy = hj.machine.preset(job.machine), job.strategy(name)
    num_bytes = tree.num_bytes(jax.eval_shape(task.init, jax.random.key(0)))
    epochs = FLAGS.updates * BATCH / len(data.train)
    times = virtual_times(data, machine, {name: strategy}, epochs, num_bytes)
    (seconds, _) = times[name]

    def train() -> hj.History:
        return hj.train(
            task,
            data,
            machine,
            strategy,
            seconds=seconds,
            num_evals=1,
            eval_examples=BATCH,
            progress=False,
        )

    def run() -> float:
        history = train()
        return history.host_seconds / history.evals[-1]["updates"]

    return run, train()


def by_hand(
    job: Job, name: str, data: hj.data.Dataset, history: hj.History
) -> dict[str, Run]:
    """Both contenders by hand, with the arrivals or the rounds of hetjax's run."""
    workers = [worker.name for worker in hj.machine.preset(job.machine).workers]
    sizes = (data.num_features, job.hidden, data.num_classes)
    start = virtual_by_hand.Start(
        mlp_init(jax.random.key(0), sizes), data.train, len(workers), LEARNING_RATE
    )
    arrived = [workers.index(e.worker) for e in history.log if e.what == "arrival"]
    if name == "async_sgd":
        shape = (len(arrived),)
    else:
        rounds = max(1, len(arrived) // len(workers))
        shape = (rounds, len(workers), job.local_steps)
    rng = np.random.default_rng(0)
    rows = rng.integers(len(data.train), size=(*shape, BATCH), dtype=np.int32)
    if name == "async_sgd":
        order = np.array(arrived, np.int32)
        contenders = virtual_by_hand.async_sgd(start, order, rows)
    else:
        contenders = virtual_by_hand.local_sgd(start, rows)
    virtual_by_hand.check_equal(contenders)

    def timed(train: Callable[[], Any]) -> Run:
        def once() -> float:
            began = time.perf_counter()
            jax.block_until_ready(train())
            return (time.perf_counter() - began) / math.prod(shape)

        return lambda: median(once() for _ in range(REPEATS))

    return {way: timed(train) for way, train in contenders.items()}


def measure(
    job: Job, names: list[str], data: hj.data.Dataset
) -> dict[str, dict[str, list[float]]]:
    """Seconds of an update, by strategy and contender, turn by turn."""
    task = hj.classification(hj.models.mlp(hidden=job.hidden), data)
    contenders: dict[str, dict[str, Run]] = {}
    for name in names:
        run, history = trained(job, name, task, data)
        others = by_hand(job, name, data, history) if name in BY_HAND else {}
        contenders[name] = {"hetjax": run, **others}
        print(f"{job.machine}: {name} is compiled", file=sys.stderr)
    found = {name: {who: [] for who in of} for name, of in contenders.items()}
    for number in range(FLAGS.turns):
        for name, of in contenders.items():
            for who, run in of.items():
                found[name][who].append(run())
        print(
            f"{job.machine}: turn {number + 1} of {FLAGS.turns}: "
            f"{ {name: microseconds(of) for name, of in found.items()} }",
            file=sys.stderr,
        )
    return found


def microseconds(found: dict[str, list[float]]) -> dict[str, float]:
    """The medians over the turns so far [us]."""
    return {who: round(1e6 * median(seconds), 1) for who, seconds in found.items()}


def main() -> None:
    check_some_of("strategies", FLAGS.strategies, STRATEGIES)
    data = hj.data.digits(shift=1)
    found = {job.machine: measure(job, FLAGS.strategies, data) for job in JOBS}
    ratios = {
        f"{machine}/{name}": round(turns.ratio(of["hetjax"], of["scan"]), 2)
        for machine, names in found.items()
        for name, of in names.items()
        if name in BY_HAND
    }
    result = {
        "ratios": ratios,
        "us_per_update": {
            machine: {name: microseconds(of) for name, of in names.items()}
            for machine, names in found.items()
        },
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
