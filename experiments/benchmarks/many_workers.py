"""Updates per second of many simulated workers on one device, and of grids of runs.

    python experiments/benchmarks/many_workers.py                     (two minutes)
    python experiments/benchmarks/many_workers.py --workers=8,100,1000 --runs=20

Workers train an MLP 784-128-64-10 on batches of 32. "sync" is `sync_sgd` with equal
workers; "async" is `async_sgd` with speeds drawn from a lognormal distribution of sigma
0.5 (equal ones where there are fewer than 32 workers). The rate is a run's updates by
its `history.host_seconds`, which hold all but compilation: two evaluations of 32
examples, and one of all. With --runs=N, N runs of `async_sgd` that have one schedule
(five seeds by learning rates) are trained as one program.

One JSON object on standard output: "updates_per_second" by number of workers, and
"ratios": synchronous by asynchronous, and the time of N runs by that of one.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import local_sgd_peers
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.runs_at_once import ComparedRun, run_all
from hetjax.api.session import Session
from hetjax.machine import Arrival, Machine, SimulatedClock

BATCH, RATE, SIGMA, FEW = 32, 0.01, 0.5, 32
SEEDS = 5
FLAGS = flags.FLAGS
flags.DEFINE_list("workers", ["8", "100"], "numbers of workers")
flags.DEFINE_integer("runs", 10, "runs that are trained together, with 8 workers")
flags.DEFINE_integer("updates", 4000, "updates of a run, about")
flags.DEFINE_integer("turns", 3, "measured runs of each contender")
bounded("runs", 2, 1000, "every run is trained")
bounded("updates", 1, 10_000_000, "every update is run")
bounded("turns", 1, 1000, "every turn is run")

Measured = Callable[[], float]  # trains, and returns updates per second


def machine_of(workers: int, *, alike: bool) -> Machine:
    """Equal workers, or workers of lognormal speed."""
    equal = hj.machine.preset(f"uniform:{workers}")
    if alike or workers < FEW:
        return equal
    factors = np.exp(SIGMA * np.random.default_rng(0).standard_normal(workers))
    pairs = zip(equal.workers, factors.tolist(), strict=True)
    mixed = tuple(replace(worker, factor=factor) for worker, factor in pairs)
    return replace(equal, workers=mixed)


def seconds_of(machine: Machine, strategy: hj.Strategy, examples: int) -> float:
    """The virtual seconds of about --updates updates."""
    seconds, updates = 0.0, 0
    clock = SimulatedClock(machine, seed=0)
    for event, _ in hj.decisions(strategy.policy, clock, num_examples=examples):
        if isinstance(event, Arrival):
            seconds, updates = event.time, updates + event.local_round.local_steps
            if updates >= FLAGS.updates:
                break
    return seconds


def session_of(machine: Machine, strategy: hj.Strategy) -> Session:
    """A session of runs of a strategy, all with one schedule."""
    data = local_sgd_peers.make_data("mlp", 0)
    task = hj.classification(hj.models.mlp(hidden=(128, 64)), data)
    return Session(
        task,
        data,
        machine,
        RunConfig(
            seconds=seconds_of(machine, strategy, len(data.train)),
            num_evals=1,
            eval_examples=BATCH,
            schedule_seed=0,
        ),
    )


def contender(machine: Machine, strategy: hj.Strategy, runs: int = 1) -> Measured:
    """Updates per second of a run, or of several with one schedule."""
    session = session_of(machine, strategy)
    rates = np.geomspace(RATE / 2, RATE, -(-runs // SEEDS)).tolist()
    every = [
        ComparedRun(f"{rate:g}", strategy._replace(learning_rate=rate), seed, {})
        for rate in rates
        for seed in range(SEEDS)
    ][:runs]

    def measured() -> float:
        bar = ProgressBar(1.0, runs, shown=False)
        found = [h for several in run_all(session, every, bar) for h in several]
        updates = sum(h.evals[-1]["updates"] for h in found)
        return updates / sum(h.host_seconds for h in found)

    measured()  # which compiles
    return measured


def main() -> None:
    settings = {"batch_size": BATCH, "learning_rate": RATE}
    contenders: dict[str, Measured] = {}
    for text in FLAGS.workers:
        n = int(bounds.numbers("workers", [text])[0])
        same, mixed = (machine_of(n, alike=alike) for alike in (True, False))
        contenders[f"sync, {n}"] = contender(same, hj.sync_sgd(**settings))
        contenders[f"async, {n}"] = contender(mixed, hj.async_sgd(**settings))
        print(f"{n} workers are compiled", file=sys.stderr)
    name = f"async, 8, {FLAGS.runs} runs"
    eight = machine_of(8, alike=True)
    contenders[name] = contender(eight, hj.async_sgd(**settings), FLAGS.runs)
    contenders["async, 8, 1 run"] = contender(eight, hj.async_sgd(**settings))
    found: dict[str, list[float]] = {who: [] for who in contenders}
    for _ in range(FLAGS.turns):
        for who, measured in contenders.items():
            found[who].append(measured())
    rates = {who: median(values) for who, values in found.items()}
    ratios = {
        f"sync / async, {n}": rates[f"sync, {n}"] / rates[f"async, {n}"]
        for n in FLAGS.workers
    }
    ratios[f"{FLAGS.runs} runs / one"] = (
        FLAGS.runs * rates["async, 8, 1 run"] / rates[name]
    )
    result = {
        "ratios": {key: round(value, 2) for key, value in ratios.items()},
        "updates_per_second": {who: round(value) for who, value in rates.items()},
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
