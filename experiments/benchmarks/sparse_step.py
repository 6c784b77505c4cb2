"""One SGD step of the sparse 3-layer MLP, for few and for very many labels.

    python experiments/benchmarks/sparse_step.py      (ten minutes, idle machine, 16 GB)

Amazon-670k's input layer: 135,909 features x 128 hidden, batches of 256 rows with 76
non-zeros, feature ids by Zipf's law; 10,000 to 670,091 labels. hetjax with each output
layer, straightforward JAX (BCOO @ W, dense gradients), and PyTorch with sparse and with
dense gradients of the input layer. One JSON object on standard output: median seconds
per step and their ratios from one run, in which the contenders take turns; what a step
needs beside parameters, state and input, each contender in a process of its own; and
the seconds in which SLIDE's tables are rebuilt, which its steps leave out, and one of
its first thousand steps with its share of their rebuilds. PyTorch's figures are null
where it is not installed.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import flags

from experiments.benchmarks import sparse_step_contenders as contenders
from experiments.common import scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "labels", ["10000", "40943", "205443", "670091"], "numbers of labels to measure"
)
flags.DEFINE_list("ids", ["zipf"], 'feature ids: "zipf", "uniform" or both')
flags.DEFINE_list(
    "contenders", list(contenders.CONTENDERS), "chunked, and others to measure with it"
)
flags.DEFINE_integer("repeats", 7, "timings to take the median of")
flags.DEFINE_bool("memory", True, "measure memory, too")
bounded("repeats", 1, 10_000, "every repetition is run")
FIRST_STEPS = 1000  # in which SLIDE's rebuilds are counted
TURN = 0.5  # [s] of steps that a timing needs, if it has not all batches

flags.register_validator(
    "labels",
    lambda texts: all(t.isdigit() and 0 < int(t) < 2**31 for t in texts),
    "pass whole numbers of at least 1",
)
flags.register_validator(
    "contenders",
    lambda names: {"chunked"} <= set(names) <= set(contenders.CONTENDERS),
    f"pass chunked, and some of {', '.join(contenders.CONTENDERS)}",
)
flags.register_validator(
    "ids", lambda names: set(names) <= {"zipf", "uniform"}, "pass zipf, uniform or both"
)


def seconds_of(run: Callable[[int], Any], steps: int) -> float:
    began = time.perf_counter()
    for i in range(steps):
        result = run(i)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / steps


def median_seconds(steps: dict[str, Callable | None]) -> dict[str, float | None]:
    """Median seconds per step.

    The contenders take turns, so that disturbances affect all of them alike.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    numbers = {}
    for name, run in steps.items():
        if run is not None:
            seconds_of(run, 1)  # compiles
            once = max(1e-9, seconds_of(run, 1))
            numbers[name] = max(1, min(FLAGS.batches, round(TURN / once)))
    for _ in range(FLAGS.repeats):
        for name, number in numbers.items():
            found[name].append(seconds_of(steps[name], number))  # pyright: ignore
    return {n: float(np.median(s)) if s else None for n, s in found.items()}


def memory_of(name: str, ids: str, labels: int) -> dict[str, float] | None:
    """The memory that one contender needs, measured in its own process."""
    given = ["features", "batch", "nonzeros", "batches", "seed"]
    own = [f"--{flag}={FLAGS[flag].value}" for flag in given]
    done = subprocess.run(
        [sys.executable, contenders.__file__, name, ids, str(labels), *own],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{name}, {labels} labels: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def measure(ids: str, labels: int) -> dict[str, Any]:
    data = contenders.make_data(ids, labels)
    size = FLAGS.batch * FLAGS.nonzeros
    unique = [
        len(np.unique(data.train.x.indices[i : i + size]))
        for i in range(0, data.train.x.nnz, size)
    ]
    steps = {name: contenders.CONTENDERS[name](data) for name in FLAGS.contenders}
    measured = {
        "unique_rows": int(np.median(unique)),
        "nonzeros": size,
        "seconds": median_seconds(steps),
    }
    if "slide" in steps:
        measured["slide_rebuild_s"] = contenders.rebuild_seconds(data)
        rebuilds = contenders.rebuilds(FIRST_STEPS) * measured["slide_rebuild_s"]
        of_slide = measured["seconds"]["slide"]
        measured["seconds"]["slide_with_rebuilds"] = of_slide + rebuilds / FIRST_STEPS
    del steps
    gc.collect()  # the memory for the processes that follow
    if FLAGS.memory:
        measured["memory"] = {
            name: memory_of(name, ids, labels) for name in FLAGS.contenders
        }
    return measured


def ratios(seconds: dict[str, float | None]) -> dict[str, float | None]:
    """Seconds of each contender over those of the exact chunked step."""
    own = seconds["chunked"]
    assert own is not None
    return {
        f"{other}_over_chunked": None if value is None else round(value / own, 4)
        for other, value in seconds.items()
        if other != "chunked"
    }


def main() -> None:
    result: dict[str, Any] = {"ratios": {}, "cases": {}}
    for labels in map(int, FLAGS.labels):
        for ids in FLAGS.ids:
            print(f"{labels} labels, {ids} ids ...", file=sys.stderr)
            measured = measure(ids, labels)
            name = f"{labels}/{ids}"
            result["cases"][name] = measured
            for other, ratio in ratios(measured["seconds"]).items():
                result["ratios"][f"{name}/{other}"] = ratio
    result["jax"], result["platform"] = jax.__version__, jax.default_backend()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    scripts.run(main)
