"""What the loop adds around a step: real runs against the same programs by hand.

    python experiments/benchmarks/overhead.py                          (four minutes)

One worker on one device, so that nothing is hidden behind another's work. Rounds: 8
steps of about 0.1, 1 and 10 ms (the width of an MLP is chosen for it), then a merge.
By hand: the same compiled steps and merge, called in a loop on batches that are there.
Asynchronous: seconds per arrival above those of a step and a merge by hand. The two
take turns: medians of the rounds of a turn, but for the first two, and over the turns.

One JSON object on standard output: "ratios" with "rounds/0.1ms" ... (hetjax over bare,
less 1), "arrival_us", and the raw medians. Marks: 0.10, 0.03 and 0.01; 150 us.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import flags

import hetjax as hj
from hetjax.data.batching import make_batch
from hetjax.machine import MergeOrder
from hetjax.run.accounts import Accounts
from hetjax.run.bench import Bench
from hetjax.run.compilations import Compilations
from hetjax.run.holdings import Holdings, Places
from hetjax.run.job import Job
from hetjax.run.local import device_name
from hetjax.run.measuring import StepTimer

sys.path.insert(0, str(Path(__file__).parents[1]))
import scripts

FLAGS = flags.FLAGS
flags.DEFINE_list("step_ms", ["0.1", "1", "10"], "lengths of a step to look for [ms]")
flags.DEFINE_float("seconds", 2.0, "of every run")
flags.DEFINE_integer("turns", 5, "runs of each")
flags.DEFINE_string("device", None, "as cpu:0 or gpu:0; default: JAX's first")
STEPS, BATCH, FEATURES, CLASSES = 8, 32, 64, 10
WIDTHS = [2**k for k in range(4, 17)]


def make_data() -> hj.data.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4096, FEATURES)).astype(np.float32)
    y = rng.integers(CLASSES, size=4096)
    return hj.data.from_arrays((x, y), (x[:32], y[:32]), num_classes=CLASSES)


def job_of(task: hj.Task, data: hj.data.Dataset, strategy: hj.Strategy) -> Job:
    """What a real run of the strategy is given."""
    machine = hj.local_machine(FLAGS.device and [FLAGS.device])
    return Bench(task, data, machine, seconds=1.0, points=1).job(strategy, 0)


def width_for(milliseconds: float, data: hj.data.Dataset, device: Any) -> int:
    """The width whose step comes closest to that."""
    strategy = hj.elastic_sgd(batch_size=BATCH, rate=1e-3, steps=STEPS)
    found = {}
    for width in WIDTHS:
        task = hj.classification(hj.models.mlp(hidden=width), data)
        timer = StepTimer(strategy, job_of(task, data, strategy), Compilations())
        found[width] = 1e3 * median(timer.seconds(device, BATCH, steps=STEPS))
        if found[width] > 2 * milliseconds:
            break
    return min(found, key=lambda w: abs(np.log(found[w] / milliseconds)))


def by_hand(job: Job, strategy: hj.Strategy, device: Any, steps: int) -> Any:
    """A function that does rounds for so many seconds: the median one's seconds."""
    accounts = Accounts(
        hj.local_machine([device]).infos({device_name(device): (0.0, 1.0)})
    )
    holdings = Holdings(
        strategy,
        job.programs,
        Compilations(),
        seed=0,
        on_fetch=accounts.fetched,
        places=Places([device], device),
    )
    merge, order = strategy.merges[0], MergeOrder((0,))
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
    needs = merge.needs
    step = job.programs.step(strategy.local, needs)
    merged = job.programs.merge(merge)
    replica = holdings.take(0)
    state = jax.device_put(merge.init(replica.params, replica.model_state), device)
    replica = jax.device_put(jax.tree.map(lambda x: x.copy(), replica), device)
    facts = accounts.facts(order)
    words, rate = np.zeros(3, np.uint32), np.float32(1e-3)

    def one_round(number: int) -> None:
        nonlocal replica, state
        for i in range(steps):
            batch = batches[(number * steps + i) % len(batches)]
            replica, *_ = step(replica, batch, rate, words)
        jax.block_until_ready(replica)
        state, (replica,) = merged(state, (replica,), facts, "")
        jax.block_until_ready((state, replica))

    def run(seconds: float) -> float:
        ends = [time.perf_counter()]
        while ends[-1] - ends[0] < seconds:
            one_round(len(ends))
            ends.append(time.perf_counter())
        return usual_gap(ends)

    return run


def usual_gap(times: Sequence[float]) -> float:
    """Median seconds between two; the first ones find cold caches and no memory."""
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return median(gaps[2:] or gaps)


def compare(
    task: hj.Task, data: hj.data.Dataset, strategy: hj.Strategy, device: Any, steps: int
) -> tuple[float, float, float]:
    """Seconds per round (or arrival) of hetjax, by hand, and the ratio less 1."""
    machine = hj.local_machine([device], form="dispatch")
    bare = by_hand(job_of(task, data, strategy), strategy, device, steps)
    ours, theirs = [], []
    for _ in range(FLAGS.turns):
        theirs.append(bare(FLAGS.seconds))
        history = hj.train(
            task,
            data,
            machine,
            strategy,
            seconds=FLAGS.seconds,
            points=1,
            progress=False,
        )
        ours.append(usual_gap(history.merge_times))
    added = median(a / b - 1 for a, b in zip(ours, theirs, strict=True))
    return median(ours), median(theirs), added


def main() -> None:
    # both sides: a step runs on the thread that asks for it
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    wanted = scripts.numbers("step_ms", FLAGS.step_ms)
    data = make_data()
    device = hj.local_machine(FLAGS.device and [FLAGS.device]).workers[0].device
    ratios: dict[str, float] = {}
    raw: dict[str, Any] = {}
    for ms in wanted:
        width = width_for(ms, data, device)
        task = hj.classification(hj.models.mlp(hidden=width), data)
        rounds = hj.elastic_sgd(batch_size=BATCH, rate=1e-3, steps=STEPS)
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
        "async_sgd": hj.async_sgd(batch_size=BATCH, rate=1e-3),
        "easgd": hj.easgd(batch_size=BATCH, rate=1e-3),
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
