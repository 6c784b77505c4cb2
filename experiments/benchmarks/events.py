"""Events per second of the host code: every policy, with many workers.

    python experiments/benchmarks/events.py                    (one minute, one core)
    python experiments/benchmarks/events.py --policies=rounds,downpour --events=10000

Runs each policy on the virtual clock (`hj.decisions`) without a model, with
heterogeneous workers, noisy step times, and a link that merges queue for. One JSON
object on standard output: {policy: {"events", "seconds", "events_per_s"}}. Seconds are
processor time, so that other programs on the machine matter little. Expected: less than
10 seconds for each policy's 100,000 events with 1,000 workers.
"""

import itertools
import json
import time
from functools import partial

from absl import flags

import hetjax as hj
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.machine import Cost, Link, Machine, Profile, SimulatedClock

FLAGS = flags.FLAGS
flags.DEFINE_integer("workers", 1_000, "workers: a multiple of 4, at least 16")
flags.DEFINE_integer("events", 100_000, "events to simulate with each policy")
flags.DEFINE_list("policies", [], "names of policies; default: all")
flags.DEFINE_float("noise", 0.02, "noise of step times (lognormal sigma)")
flags.DEFINE_integer("seed", 0, "seed of the noise")
bounded("workers", 16, 100_000, "nodes have 4 workers, and some groups have 4 nodes")
bounded("events", 1, 100_000_000, "every event is simulated")
bounded("seed", *bounds.SEED)
BATCH_SIZE = 64


def make_machine() -> Machine:
    """Workers of speeds 1 to 2, four to a node, two to a device."""
    workers = tuple(
        Profile(
            f"worker{k}",
            "gpu",
            Cost(1e-3, 1e-5),
            factor=1 + k / FLAGS.workers,
            place=(f"rack{k // 64}", f"node{k // 4}"),
            device=f"device{k // 2}",
            curve=(1.0, 1.3),
        )
        for k in range(FLAGS.workers)
    )
    links = {"": Link(latency=1e-6, bandwidth=1e12)}
    links |= {"/".join(w.place): Link(latency=1e-7, bandwidth=1e13) for w in workers}
    return Machine("many", workers, links, noise=FLAGS.noise)


def make_policies() -> dict[str, hj.schedule.Policy]:
    """Policies of every kind."""
    s = hj.schedule
    limits = {"min_batch_size": BATCH_SIZE / 8, "batch_size": BATCH_SIZE}
    examples = 10 * FLAGS.workers * BATCH_SIZE
    mega = partial(s.mega_batch, examples=examples, batch_size=BATCH_SIZE)
    linear = partial(s.linear_scaling, **limits, beta=BATCH_SIZE / 16)
    free = partial(s.asynchronous, batch_size=BATCH_SIZE)
    rounds = partial(s.rounds, batch_size=BATCH_SIZE)
    return {
        "rounds": rounds(),
        "equal_time": rounds(local_steps=s.equal_time(8, BATCH_SIZE)),
        "mega_batch": mega(scaling=linear),
        "mega_batch_hgpu_code": mega(scaling=s.fixed_scaling, rule="hgpu_code"),
        "mega_batch_measured": mega(
            scaling=s.measured_scaling(**limits, examples=examples)
        ),
        "asynchronous": free(),
        "asynchronous_stale": free(max_staleness=4),
        "asynchronous_gossip": free(partners=s.random_partner()),
        "asynchronous_scaled": free(scaling=linear, window=examples),
        "downpour": s.downpour(batch_size=BATCH_SIZE, push_every=2, fetch_every=3),
        "magma_async": s.magma_async(batch_size=BATCH_SIZE),
        "hierarchical": s.hierarchical(rounds(), sizes=4, every=4),
        "hierarchical_by_place": s.hierarchical(
            s.hierarchical(rounds(), every=2), every=2
        ),
        "hierarchical_mega_batch": s.hierarchical(
            s.mega_batch(
                examples=40 * BATCH_SIZE, batch_size=BATCH_SIZE, scaling=linear
            ),
            sizes=4,
        ),
        "hierarchical_asynchronous": s.hierarchical(free(), sizes=4, every=8),
        "tuned_workers": s.tuned_workers(rounds(first=s.one_per_device), window=4),
        "sma_restarts": s.sma_restarts(rounds(), s.on_rate_drop(0.1)),
    }


def measure(policy: hj.schedule.Policy, machine: Machine) -> dict[str, float]:
    """Return the number of events, the seconds they took, and events per second."""
    clock = SimulatedClock(machine, seed=FLAGS.seed)
    run = hj.decisions(policy, clock, num_examples=1_000_000, num_bytes=1e6)
    next(run)  # the initial actions come without an event
    began = time.process_time()
    events = sum(1 for _ in itertools.islice(run, FLAGS.events))
    seconds = time.process_time() - began
    return {
        "events": events,
        "seconds": round(seconds, 3),
        "events_per_s": round(events / seconds),
    }


def main() -> None:
    if FLAGS.workers % 4:
        raise ValueError(f"--workers={FLAGS.workers}: pass a multiple of 4")
    machine, policies = make_machine(), make_policies()
    unknown = set(FLAGS.policies) - set(policies)
    if unknown:
        known = ", ".join(policies)
        raise ValueError(f"--policies: unknown {', '.join(unknown)}; known: {known}")
    chosen = FLAGS.policies or policies
    print(json.dumps({k: measure(policies[k], machine) for k in chosen}, indent=2))


if __name__ == "__main__":
    scripts.run(main)
