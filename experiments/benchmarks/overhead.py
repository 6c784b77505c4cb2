"""Overhead of the loop: real runs against the same programs called by hand.

    python experiments/benchmarks/overhead.py                          (four minutes)

There is one worker on one device, so that no overhead hides behind another worker's
steps. A round is 8 steps of about 0.1, 1 or 10 ms (the width of an MLP is chosen to
match), then a merge. "By hand" means the same compiled steps and merge, called in a
loop on batches that are ready. For asynchronous strategies the overhead is the seconds
per arrival beyond those of a step and a merge by hand. The two contenders take turns;
medians are over a turn without its first two rounds, and over turns.

One JSON object on standard output: "ratios" with "rounds/0.1ms" ... (hetjax over by
hand, minus 1), "arrival_us", and the raw medians. Targets: 0.10, 0.03 and 0.01; 150 us.
"""

import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.api.session import Session
from hetjax.data.batching import make_batch
from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.replicas import ReplicaStore
from hetjax.machine import PUSH_FETCH, MergeAction
from hetjax.runtimes.devices import device_name
from hetjax.runtimes.threads.step_timer import StepTimer

FLAGS = flags.FLAGS
flags.DEFINE_list("step_ms", ["0.1", "1", "10"], "step times [ms] to measure with")
flags.DEFINE_float("seconds", 2.0, "seconds of every run")
flags.DEFINE_integer("turns", 5, "runs of each contender")
flags.DEFINE_string("device", None, "a device, as cpu:0; default: JAX's first")
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")
STEPS, BATCH, FEATURES, CLASSES = 8, 32, 64, 10
WIDTHS = [2**k for k in range(4, 17)]


def make_data() -> hj.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=4096)
    return hj.data.from_arrays((x, y), (x[:32], y[:32]), num_classes=CLASSES)


def job_of(task: hj.Task, data: hj.data.Dataset, strategy: hj.Strategy) -> Job:
    """Return the job of a real run of the strategy."""
    machine = hj.local_machine(FLAGS.device and [FLAGS.device])
    return Session(task, data, machine, seconds=1.0, num_evals=1).job(
        "job", strategy, 0
    )


def width_for(milliseconds: float, data: hj.data.Dataset, device: Any) -> int:
    """The MLP width whose step time is closest to the one given."""
    strategy = hj.elastic_sgd(batch_size=BATCH, learning_rate=1e-3, local_steps=STEPS)
    found = {}
    for width in WIDTHS:
        task = hj.classification(hj.models.mlp(hidden=width), data)
        timer = StepTimer(strategy, job_of(task, data, strategy))
        found[width] = 1e3 * median(timer.seconds(device, BATCH, local_steps=STEPS))
        if found[width] > 2 * milliseconds:
            break
    return min(found, key=lambda w: abs(np.log(found[w] / milliseconds)))


def by_hand(job: Job, strategy: hj.Strategy, device: Any, local_steps: int) -> Any:
    """A function that runs rounds for some seconds and returns their median time."""
    infos = hj.local_machine([device]).infos({device_name(device): (0.0, 1.0)})
    topology = strategy.policy.topology(infos)
    ledger = Ledger(infos, topology)
    store = ReplicaStore(
        strategy,
        job,
        Placement([device], device),
        topology,
        on_fetch=ledger.record_fetch,
    )
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
        state, (replica,) = merged(state, (replica,), stats, PUSH_FETCH)
        jax.block_until_ready((state, replica))

    def run(seconds: float) -> float:
        ends = [time.perf_counter()]
        while ends[-1] - ends[0] < seconds:
            one_round(len(ends))
            ends.append(time.perf_counter())
        return usual_gap(ends)

    return run


def usual_gap(times: Sequence[float]) -> float:
    """Median seconds between successive times, without the first two (cold caches)."""
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return median(gaps[2:] or gaps)


def compare(
    task: hj.Task,
    data: hj.data.Dataset,
    strategy: hj.Strategy,
    device: Any,
    local_steps: int,
) -> tuple[float, float, float]:
    """Seconds per round (or arrival) of hetjax and by hand, and their ratio minus 1."""
    machine = hj.local_machine([device], step_mode="dispatch")
    bare = by_hand(job_of(task, data, strategy), strategy, device, local_steps)
    ours, theirs = [], []
    for _ in range(FLAGS.turns):
        theirs.append(bare(FLAGS.seconds))
        history = hj.train(
            task,
            data,
            machine,
            strategy,
            seconds=FLAGS.seconds,
            num_evals=1,
            progress=False,
        )
        ours.append(usual_gap(history.merge_times))
    added = median(a / b - 1 for a, b in zip(ours, theirs, strict=True))
    return median(ours), median(theirs), added


def main() -> None:
    # for both contenders: a step runs on the thread that dispatches it
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    wanted = bounds.numbers("step_ms", FLAGS.step_ms)
    if not all(1e-3 <= ms <= 1e4 for ms in wanted):  # NaN is refused
        raise ValueError(f"--step_ms={','.join(FLAGS.step_ms)}: give 0.001 to 10,000")
    data = make_data()
    device = hj.local_machine(FLAGS.device and [FLAGS.device]).workers[0].device
    ratios: dict[str, float] = {}
    raw: dict[str, Any] = {}
    for ms in wanted:
        width = width_for(ms, data, device)
        task = hj.classification(hj.models.mlp(hidden=width), data)
        rounds = hj.elastic_sgd(batch_size=BATCH, learning_rate=1e-3, local_steps=STEPS)
        ours, bare, added = compare(task, data, rounds, device, STEPS)
        ratios[f"rounds/{ms:g}ms"] = round(added, 4)
        raw[f"rounds/{ms:g}ms"] = {
            "width": width,
            "hetjax_us": round(1e6 * ours, 1),
            "bare_us": round(1e6 * bare, 1),
        }
        print(f"{ms:g} ms: {raw[f'rounds/{ms:g}ms']}", file=sys.stderr)
    task = hj.classification(hj.models.mlp(hidden=128), data)
    for key, strategy in {
        "async_sgd": hj.async_sgd(batch_size=BATCH, learning_rate=1e-3),
        "easgd": hj.easgd(batch_size=BATCH, learning_rate=1e-3),
    }.items():
        ours, bare, _ = compare(task, data, strategy, device, 1)
        raw[key] = {"hetjax_us": round(1e6 * ours, 1), "bare_us": round(1e6 * bare, 1)}
        print(f"{key}: {raw[key]}", file=sys.stderr)
    above = [raw[k]["hetjax_us"] - raw[k]["bare_us"] for k in ("async_sgd", "easgd")]
    ratios["arrival_us"] = round(max(above), 1)
    result = {"ratios": ratios, "medians": raw, "device": device.device_kind}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    scripts.run(main)
