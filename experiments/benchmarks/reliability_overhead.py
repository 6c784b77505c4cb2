"""The cost of checkpoints for a run with a large model."""

import math
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import hetjax as hj
from hetjax import tree


def overhead(
    millions: float, every: str, minutes: float, turns: int, folder: Path
) -> dict[str, Any]:
    """Wall-clock seconds of the same run with checkpoints / without, in turns.

    An MLP of `millions` of parameters, two simulated workers, local SGD of 4 steps
    with momentum; the virtual seconds are chosen such that a run takes about `minutes`.
    The first checkpoint of a run takes longer, since the memory for copies is new:
    "later" is the ratio from the second evaluation of five on.
    """
    hidden = round(math.sqrt(1e6 * millions))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 64)).astype(np.float32)
    y = rng.integers(10, size=512)
    data = hj.data.from_arrays((x, y), (x[:64], y[:64]), num_classes=10)
    task = hj.classification(hj.models.mlp(hidden=(hidden, hidden)), data)
    machine = hj.machine.preset("uniform:2")
    strategy = hj.local_sgd(local_steps=4, batch_size=32, learning_rate=0.01)

    def run(
        seconds: float, checkpoint: hj.Checkpoint | None
    ) -> tuple[list[float], Any]:
        """Seconds by each evaluation and by the end, and the history."""
        began = time.perf_counter()
        stamps: list[float] = []
        history = hj.train(
            task,
            data,
            machine,
            strategy,
            seconds=seconds,
            num_evals=4,
            checkpoint=checkpoint,
            on_eval=lambda point: stamps.append(time.perf_counter() - began),
            progress=False,
        )
        return [*stamps, time.perf_counter() - began], history

    step = 4 * machine.workers[0].seconds(32, 0, 0)
    run(step, None)  # compiles
    number, first = 5, run(step, None)[0][-1]
    enough = min(10.0, 20 * minutes)  # [s], to measure a round
    while (more := run(number * step, None)[0][-1] - first) < enough:
        number *= 5
    rounds = max(5, round(60 * minutes * number / more))
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    later: dict[str, list[float]] = {"without": [], "with": []}
    params = 0
    for turn in range(turns):
        for name in ("without", "with") if turn % 2 else ("with", "without"):
            shutil.rmtree(folder, ignore_errors=True)
            checkpoint = hj.Checkpoint(folder, every=every) if name == "with" else None
            stamps, history = run(rounds * step, checkpoint)
            params = tree.size(history.params)
            # without the final checkpoint, and without compiling
            seconds[name].append(history.host_seconds)
            later[name].append(stamps[4] - stamps[1])
            print(f"turn {turn + 1}: {name} {seconds[name][-1]:.1f} s", file=sys.stderr)
    return {
        "parameters": params,
        "seconds": seconds,
        "ratio": _ratio(seconds),
        "later": _ratio(later),
    }


def _ratio(seconds: dict[str, list[float]]) -> float:
    """With checkpoints / without: the median of all turns."""
    pairs = zip(seconds["with"], seconds["without"], strict=True)
    return median(a / b for a, b in pairs)
