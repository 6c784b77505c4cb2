"""How many events a second the host world handles: every policy, many workers.

    python experiments/benchmarks/events.py                    (one minute, one core)
    python experiments/benchmarks/events.py --policies=rounds,groups --events=10000

Plays each policy on the virtual clock, `schedule.play`, without a model: unlike workers
with noisy steps and a link that merges queue for. One JSON object on standard output:
{policy: {"events", "seconds", "events_per_s"}}; seconds are the processor's, so that
others on the machine count little. Expected: less than 5 for each policy's 100,000
events with 1,000 workers.
"""

import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path

from absl import flags

import hetjax as hj
from hetjax.machine import Cost, Link, Machine, Profile, SimulatedClock

sys.path.insert(0, str(Path(__file__).parents[1]))
import scripts

FLAGS = flags.FLAGS
flags.DEFINE_integer("workers", 1_000, "how many, at least 16, in nodes of 4")
flags.DEFINE_integer("events", 100_000, "events to play with each policy")
flags.DEFINE_list("policies", [], "which of them; default all")
flags.DEFINE_float("noise", 0.02, "noise of a step's seconds (lognormal sigma)")
flags.DEFINE_integer("seed", 0, "of the noise")
B_MAX = 64


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
    links = {"": Link(1e-6, 1e12)}
    links |= {"/".join(w.place): Link(1e-7, 1e13) for w in workers}
    return Machine("many", workers, links, noise=FLAGS.noise)


def make_policies() -> dict[str, hj.schedule.Policy]:
    """One of every kind."""
    s = hj.schedule
    bounds = {"b_min": B_MAX / 8, "b_max": B_MAX}
    examples = 10 * FLAGS.workers * B_MAX
    mega = partial(s.mega_batch, examples=examples, b_max=B_MAX)
    linear = partial(s.linear_scaling, **bounds, beta=B_MAX / 16)
    free = partial(s.free_running, batch_size=B_MAX)
    rounds = partial(s.rounds, batch_size=B_MAX)
    return {
        "rounds": rounds(),
        "equal_time": rounds(steps=s.equal_time(8, B_MAX)),
        "mega_batch": mega(scaling=linear),
        "mega_batch_hgpu_code": mega(scaling=s.fixed_scaling, rule="hgpu_code"),
        "mega_batch_measured": mega(
            scaling=s.measured_scaling(**bounds, examples=examples)
        ),
        "free_running": free(),
        "free_running_stale": free(max_staleness=4),
        "free_running_gossip": free(partners=s.random_partner()),
        "free_running_scaled": free(scaling=linear, window=examples),
        "mailbox": s.mailbox(batch_size=B_MAX, n_push=2, n_fetch=3),
        "ticking": s.ticking(batch_size=B_MAX),
        "groups": s.groups(rounds(), sizes=4, every=4),
        "groups_by_place": s.groups(s.groups(rounds(), every=2), every=2),
        "groups_mega_batch": s.groups(
            s.mega_batch(examples=40 * B_MAX, b_max=B_MAX, scaling=linear), sizes=4
        ),
        "groups_free_running": s.groups(free(), sizes=4, every=8),
        "tuned_learners": s.tuned_learners(rounds(first=s.one_per_device), window=4),
        "restarting": s.restarting(rounds(), s.on_rate_drop(0.1)),
    }


def measure(policy: hj.schedule.Policy, machine: Machine) -> dict[str, float]:
    """Events, the seconds they took, and how many that is in one."""
    clock = SimulatedClock(machine, seed=FLAGS.seed)
    run = hj.schedule.play(policy, clock, num_examples=1_000_000, num_bytes=1e6)
    next(run)  # the first orders answer no event
    began = time.process_time()
    events = sum(1 for _ in itertools.islice(run, FLAGS.events))
    seconds = time.process_time() - began
    rate = round(events / seconds)
    return {"events": events, "seconds": round(seconds, 3), "events_per_s": rate}


def main() -> None:
    if FLAGS.workers < 16 or FLAGS.workers % 4 or FLAGS.events < 1:
        raise ValueError("--workers: a multiple of 4 from 16 on; --events: at least 1")
    machine, policies = make_machine(), make_policies()
    unknown = set(FLAGS.policies) - set(policies)
    if unknown:
        known = ", ".join(policies)
        raise ValueError(f"--policies: unknown {', '.join(unknown)}; known: {known}")
    chosen = FLAGS.policies or policies
    print(json.dumps({k: measure(policies[k], machine) for k in chosen}, indent=2))


if __name__ == "__main__":
    scripts.run(main)
