"""Workers on a Ray cluster: the cost of calls, heterogeneous nodes, many nodes.

    python experiments/benchmarks/cluster.py                        (fifteen minutes)
    python experiments/benchmarks/cluster.py --parts=overhead --megabytes=0.1,1

overhead   three workers on one machine, as actors and as threads, in turn: milliseconds
           of a round of one step (local_sgd) and of an arrival (async_sgd), for models
           of 0.1 to 100 MB; the bytes that moved, over one model up and one down for
           each worker and merge, also of sma and easgd
steps      the share of a round in which its step does not run, for steps of 1 ms to 1 s
           (a worker that is slowed on purpose sleeps, and leaves the cores free)
heterogeneous
           three workers, one slowed 4 times: equal rounds, biased_local_sgd and
           adaptive_sgd on the cluster, and on the simulated machine that `calibrate`
           measures there
many       up to 64 workers with tiny work: arrivals per second, and the seconds of the
           driver's processor for each

It starts clusters on this machine alone. It prints one JSON object: raw
"medians", and "ratios":

overhead/1MB/round         milliseconds of a round on the cluster / with threads
overhead/1MB/arrival       milliseconds between arrivals / with threads
overhead/1MB/bytes         bytes that moved / the least that the algorithm needs
steps/0.1MB/10ms           share of a round of one step of 10 ms that is overhead
heterogeneous/NAME/round   seconds of a round, predicted / measured
heterogeneous/NAME/target  seconds to the target / those of equal rounds
many/64                    arrivals per second of 64 workers / of 4
"""

import json
from collections.abc import Callable
from typing import Any

import jax
from absl import flags

from experiments.benchmarks import cluster_heterogeneous, cluster_many, cluster_overhead
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", [], "overhead, steps, heterogeneous, many; default: all")
flags.DEFINE_list("megabytes", ["0.1", "1", "10", "100"], "sizes of models")
flags.DEFINE_list("step_ms", ["1", "10", "100", "1000"], "of steps: their times [ms]")
flags.DEFINE_list("workers", ["4", "16", "64"], "of many: their numbers")
flags.DEFINE_float("seconds", 5.0, "seconds of every turn, at least")
flags.DEFINE_float(
    "heterogeneous_seconds", 8.0, "of heterogeneous: seconds of every run"
)
flags.DEFINE_integer("turns", 3, "turns of each contender; of heterogeneous, seeds")
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("heterogeneous_seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")
Found = tuple[dict[str, Any], dict[str, Any]]  # ratios, medians


def overhead() -> Found:
    """Rounds and arrivals of every size."""
    ratios, raw = {}, {}
    for megabytes in bounds.numbers("megabytes", FLAGS.megabytes):
        found, medians = cluster_overhead.measure(megabytes, FLAGS.seconds, FLAGS.turns)
        ratios |= found
        raw |= medians
    return ratios, raw


def steps() -> Found:
    """Shares of overhead for the smallest and the second largest of the models."""
    milliseconds = bounds.numbers("step_ms", FLAGS.step_ms)
    sizes = sorted(bounds.numbers("megabytes", FLAGS.megabytes))
    ratios, raw = {}, {}
    for megabytes in dict.fromkeys((sizes[0], sizes[-2:][0])):
        found, medians = cluster_overhead.measure_steps(
            megabytes, milliseconds, FLAGS.seconds
        )
        ratios |= found
        raw |= medians
    return ratios, raw


def heterogeneous() -> Found:
    """One slowed worker."""
    return cluster_heterogeneous.measure(FLAGS.heterogeneous_seconds, FLAGS.turns)


def many() -> Found:
    """Arrivals of tiny rounds."""
    numbers = bounds.whole_numbers("workers", FLAGS.workers)
    return cluster_many.measure(numbers, FLAGS.seconds)


PARTS: dict[str, Callable[[], Found]] = {
    "overhead": overhead,
    "steps": steps,
    "heterogeneous": heterogeneous,
    "many": many,
}


def main() -> None:
    bounds.check_some_of("parts", FLAGS.parts, PARTS)
    jax.config.update("jax_num_cpu_devices", 3)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    ratios, medians = {}, {}
    for part in FLAGS.parts or PARTS:
        found, raw = PARTS[part]()
        ratios |= found
        medians[part] = raw
    print(json.dumps({"ratios": ratios, "medians": medians}))


if __name__ == "__main__":
    scripts.run(main)
