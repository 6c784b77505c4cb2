"""Where the time of one arrival, and of one round, of a real run goes.

    python experiments/benchmarks/arrivals.py                             (one minute)
    python experiments/benchmarks/arrivals.py --cases=round --seconds=5

One worker on one device: an arrival of `async_sgd` (a step of an MLP 64-128-10, and a
merge), and a round of 8 single steps of an MLP 64-16-10. Time stamps are taken at the
begin and the end of the parts of the loop, from the end of one round to the end of the
next; only passes with the most frequent order of parts count. A stamp takes some tenths
of a microsecond.

One JSON object on standard output: for each case the microseconds of a pass, and
"parts", in order: {name: microseconds until the next stamp}, medians.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.benchmarks import step_times, turns
from experiments.benchmarks.step_times import BATCH
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.engine import tape_writer
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.launched_merge import LaunchedMerge
from hetjax.engine.loop import Loop
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.replica_store import ReplicaStore
from hetjax.engine.step_runner import RoundOutcome, StepRunner
from hetjax.runtimes.real.wall_clock import WallClock
from hetjax.runtimes.threads.thread_executor import ThreadExecutor, _WorkerThread

FLAGS = flags.FLAGS
flags.DEFINE_list("cases", ["arrival", "round"], "arrival, round, or both")
flags.DEFINE_float("seconds", 3.0, "seconds of each run")
bounded("seconds", 1e-2, 10**6, "it is a time that passes")

# the parts, by the owner of the function; the first one ends a pass
PARTS: dict[str, tuple[Any, str]] = {
    "report the round": (ThreadExecutor, "completed"),
    "take a turn": (ThreadExecutor, "run_turns_on"),
    "next event": (WallClock, "next"),
    "arrival: check in": (Loop, "_arrived"),
    "policy": (tape_writer, "react"),
    "statistics": (Ledger, "take_stats"),
    "merge": (ReplicaStore, "merge"),
    "launch the merge": (ReplicaStore, "_launch"),
    "draw examples": (Examples, "draw"),
    "dispatch: deadline": (WallClock, "dispatch"),
    "assign": (Loop, "_start"),
    "round: batches, numbers": (_WorkerThread, "_launch"),
    "launch a step": (StepRunner, "_call"),
    "gather ahead": (ThreadExecutor, "gather_ahead"),
    "take turns meanwhile": (ThreadExecutor, "run_turns_during"),
    "record what happened": (Loop, "_record_played"),
    "record the merge": (Loop, "_settle"),
    "wait for the merge": (LaunchedMerge, "wait"),
    "wait for the round": (RoundOutcome, "wait"),
}
WARM_UP = 8  # one of so many passes, at the begin, does not count

Stamp = tuple[str, float]


@contextmanager
def stamped(stamps: list[Stamp]) -> Iterator[None]:
    """Add a stamp at the begin and the end of every part, within the block."""
    before = {name: getattr(*place) for name, place in PARTS.items()}

    def wrapped(name: str) -> Any:
        inner, end = before[name], f"after: {name}"

        def part(*args: Any, **kwargs: Any) -> Any:
            stamps.append((name, time.perf_counter()))
            try:
                return inner(*args, **kwargs)
            finally:
                stamps.append((end, time.perf_counter()))

        return part

    try:
        for name, (owner, function) in PARTS.items():
            setattr(owner, function, wrapped(name))
        yield
    finally:
        for name, (owner, function) in PARTS.items():
            setattr(owner, function, before[name])


def passes(stamps: list[Stamp]) -> list[list[Stamp]]:
    """The passes with the most frequent order of parts."""
    first = next(iter(PARTS))
    begins = [i for i, (name, _) in enumerate(stamps) if name == first]
    begins = begins[len(begins) // WARM_UP :]
    if len(begins) < 2:
        raise ValueError(f"--seconds={FLAGS.seconds:g}: too few rounds; pass more")
    found = [stamps[a : b + 1] for a, b in zip(begins, begins[1:], strict=False)]
    orders = Counter(tuple(name for name, _ in one) for one in found)
    ((usual, _),) = orders.most_common(1)
    return [one for one in found if tuple(name for name, _ in one) == usual]


def profile(strategy: hj.Strategy, hidden: int) -> dict[str, Any]:
    """The parts of the passes of a run."""
    data, device = step_times.make_data(), jax.devices()[0]
    task = hj.classification(hj.models.mlp(hidden=hidden), data)
    machine = hj.local_machine([device], step_mode="dispatch")
    run = turns.trained(turns.session(task, data, machine), strategy)
    run(0.2)  # compiles
    stamps: list[Stamp] = []
    with stamped(stamps):
        run(FLAGS.seconds)
    chosen = passes(stamps)
    parts: dict[str, float] = {}
    for i, (name, _) in enumerate(chosen[0][:-1]):
        spent = median(one[i + 1][1] - one[i][1] for one in chosen)
        parts[name] = round(parts.get(name, 0.0) + 1e6 * spent, 1)
    whole = median(one[-1][1] - one[0][1] for one in chosen)
    return {"us": round(1e6 * whole, 1), "passes": len(chosen), "parts": parts}


def main() -> None:
    cases = {
        "arrival": (hj.async_sgd(batch_size=BATCH, learning_rate=1e-3), 128),
        "round": (step_times.rounds_strategy(), 16),
    }
    bounds.check_some_of("cases", FLAGS.cases, cases)
    found = {name: profile(*cases[name]) for name in FLAGS.cases}
    for name, row in found.items():
        print(f"{name}: {row['us']} us, {row['passes']} passes", file=sys.stderr)
    print(json.dumps({**found, "device": jax.devices()[0].device_kind}, indent=1))


if __name__ == "__main__":
    scripts.run(main)
