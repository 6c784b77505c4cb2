"""Overhead of the loop: real runs against the same programs in a plain loop.

    python experiments/benchmarks/overhead.py                          (four minutes)
    python experiments/benchmarks/overhead.py --noasync_dispatch

There is one worker on one device, so that no overhead hides behind another worker's
steps. A round is 8 steps of about 0.1, 1 or 10 ms (the width of an MLP is chosen to
match), then a merge. "Hand-written" means the same compiled steps and merge, called in
a loop on batches that are ready. For asynchronous strategies the overhead is the
seconds per arrival beyond those of a hand-written step and merge. The contenders take
turns; in rounds a third one is hetjax in the step mode that it chooses by measuring,
perhaps all steps as one program. Medians are over a turn without its first two rounds,
and over turns. On a CPU, JAX dispatches programs asynchronously, as is its default, for
all contenders; or with --noasync_dispatch on the thread that calls them.

One JSON object on standard output: "ratios" with "rounds/0.1ms" ... (hetjax over by
hand, minus 1), "chosen/0.1ms" ... (the same, in the chosen step mode), "arrival_us",
and the raw medians. Targets: 0.20, 0.05 and 0.01; 100 us.
"""

import json
import sys
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import step_times, turns
from experiments.benchmarks.step_times import BATCH, STEPS
from experiments.common import scripts
from experiments.common.bounds import bounded
from hetjax.data.batching import make_batch
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.replica_store import ReplicaStore
from hetjax.machine import PUSH_FETCH, MergeAction
from hetjax.runtimes.devices import device_name
from hetjax.runtimes.threads.local_machine import StepMode

FLAGS = flags.FLAGS
flags.DEFINE_list("step_ms", ["0.1", "1", "10"], "step times [ms] to measure with")
flags.DEFINE_float("seconds", 2.0, "seconds of every run")
flags.DEFINE_integer("turns", 5, "runs of each contender")
flags.DEFINE_string("device", None, "a device, as cpu:0; default: JAX's first")
flags.DEFINE_bool("async_dispatch", True, "JAX's asynchronous dispatch on CPUs")
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")


def by_hand(
    job: Job, strategy: hj.Strategy, device: Any, local_steps: int
) -> turns.Contender:
    """Rounds of the same compiled steps and merge, called in a loop."""
    infos = hj.local_machine([device]).infos({device_name(device): (0.0, 1.0)})
    topology = strategy.policy.topology(infos)
    ledger = Ledger(infos, topology)
    store = ReplicaStore(strategy, job, Placement([device], device), topology)
    store.begin(0)
    merge, action = strategy.merges[0], MergeAction((0,))
    rng = np.random.default_rng(0)
    batches = [
        jax.device_put(
            make_batch(
                job.train, rng.integers(len(job.train), size=BATCH), job.buckets
            ),
            device,
        )
        for _ in range(64)
    ]
    requires = merge.requires
    step = job.programs.step(strategy.local, requires)
    merged = job.programs.merge(merge)
    replica = store.check_out(0)
    state = jax.device_put(merge.init(replica.params, replica.model_state), device)
    replica = jax.device_put(jax.tree.map(lambda x: x.copy(), replica), device)
    stats = ledger.take_stats(action)
    key_data, learning_rate = np.zeros(3, np.uint32), np.float32(1e-3)

    def one_round(number: int) -> None:
        nonlocal replica, state
        for i in range(local_steps):
            batch = batches[(number * local_steps + i) % len(batches)]
            replica, *_ = step(replica, batch, learning_rate, key_data)
        jax.block_until_ready(replica)
        state, (replica,), _ = merged(state, (replica,), stats, PUSH_FETCH)
        jax.block_until_ready((state, replica))

    return turns.by_hand(one_round)


def compare(
    task: hj.Task,
    data: hj.data.Dataset,
    strategy: hj.Strategy,
    device: Any,
    local_steps: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """Microseconds per round (or arrival), and what is added to by hand's (a fraction).

    A step mode is only chosen for several steps.
    """
    job = step_times.job_of(task, data, strategy, device)
    contenders = {"bare": by_hand(job, strategy, device, local_steps)}
    modes: dict[str, StepMode] = {"hetjax": "dispatch"}
    if local_steps > 1:
        modes["chosen"] = None
    for name, step_mode in modes.items():
        machine = hj.local_machine([device], step_mode=step_mode)
        session = turns.session(task, data, machine)
        contenders[name] = turns.trained(session, strategy)
    found = turns.in_turn(
        contenders, FLAGS.seconds, FLAGS.turns, strategy.name, window=1
    )
    raw = {f"{who}_us": round(1e6 * median(found[who]), 1) for who in found}
    added = {who: round(turns.ratio(found[who], found["bare"]) - 1, 4) for who in modes}
    return raw, added


def main() -> None:
    jax.config.update("jax_cpu_enable_async_dispatch", FLAGS.async_dispatch)
    wanted = step_times.milliseconds(FLAGS.step_ms)
    data = step_times.make_data()
    device = hj.local_machine(FLAGS.device and [FLAGS.device]).workers[0].device
    ratios: dict[str, float] = {}
    raw: dict[str, Any] = {}
    for ms in wanted:
        width = step_times.width_for(ms, device)
        task = hj.classification(hj.models.mlp(hidden=width), data)
        rounds = step_times.rounds_strategy()
        measured, added = compare(task, data, rounds, device, STEPS)
        ratios[f"rounds/{ms:g}ms"] = added["hetjax"]
        ratios[f"chosen/{ms:g}ms"] = added["chosen"]
        raw[f"rounds/{ms:g}ms"] = {"width": width, **measured}
        print(f"{ms:g} ms: {raw[f'rounds/{ms:g}ms']}", file=sys.stderr)
    task = hj.classification(hj.models.mlp(hidden=128), data)
    for key, strategy in {
        "async_sgd": hj.async_sgd(batch_size=BATCH, learning_rate=1e-3),
        "easgd": hj.easgd(batch_size=BATCH, learning_rate=1e-3),
    }.items():
        raw[key], _ = compare(task, data, strategy, device, 1)
        print(f"{key}: {raw[key]}", file=sys.stderr)
    above = [raw[k]["hetjax_us"] - raw[k]["bare_us"] for k in ("async_sgd", "easgd")]
    ratios["arrival_us"] = round(max(above), 1)
    result = {"ratios": ratios, "medians": raw, "device": device.device_kind}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
