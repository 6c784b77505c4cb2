"""Reading XMC text like Amazon-670k's: hetjax with and without a copy, scikit-learn.

    python experiments/benchmarks/reading.py            (two minutes, idle machine)

Rows of 76 features with six decimals and 5 labels, of 135,909 and 670,091. One JSON
object on standard output: megabytes of text per second of processor time (of all
threads) and of the clock, and peak memory over that of the arrays; the seconds of a
first start, which caches a parsed copy, and of a second one. Every reading is a process
of its own, after its imports, of files that are in the system's cache.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from absl import flags

from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_float("megabytes", 250, "of text, nine tenths of it for training")
flags.DEFINE_integer("repeats", 5, "timings to take the median of")
flags.DEFINE_integer("seed", 0, "seed of the data")
bounded("megabytes", 0.01, 100_000, "the text is written to the temporary folder")
bounded("repeats", 1, 1000, "every repetition is run")
bounded("seed", *bounds.SEED)

FEATURES, LABELS, NONZEROS, LABELS_PER_ROW = 135_909, 670_091, 76, 5
BYTES_PER_ROW = 1155
PROCESS = Path(__file__).with_name("reading_process.py")
CONTENDERS = ("hetjax", "sklearn", "first_start", "second_start")


def write(path: Path, rows: int, seed: int) -> None:
    """Write rows without a header, which scikit-learn does not know."""
    rng = np.random.default_rng(seed)
    with path.open("w") as file:
        # the largest indices, so that both files have the same sizes
        file.write(f"{LABELS - 1} {FEATURES - 1}:1\n")
        for _ in range(rows):
            drawn = FEATURES * rng.random(max(1, rng.poisson(NONZEROS))) ** 2
            features = np.unique(drawn.astype(int)).tolist()
            values = rng.lognormal(-2.5, 0.7, len(features)).clip(1e-6, 1).tolist()
            labels = rng.integers(LABELS, size=max(1, rng.poisson(LABELS_PER_ROW)))
            words = [f"{i}:{v:.6f}" for i, v in zip(features, values, strict=True)]
            file.write(f"{','.join(map(str, labels.tolist()))} {' '.join(words)}\n")


def measured(contender: str, folder: Path, cache: Path) -> dict[str, float]:
    """One reading in a process of its own."""
    command = [sys.executable, str(PROCESS), contender, str(folder), str(cache)]
    process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(process.stdout)


def medians(found: list[dict[str, float]], megabytes: float) -> dict[str, Any]:
    result: dict[str, Any] = {
        key: None if value is None else median(f[key] for f in found)
        for key, value in found[0].items()
    }
    result["mb_per_core_s"] = round(megabytes / result["cpu_s"], 1)
    result["mb_per_s"] = round(megabytes / result["wall_s"], 1)
    return result


def main() -> None:
    readings: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "data"
        folder.mkdir()
        rows = max(10, round(1e6 * FLAGS.megabytes / BYTES_PER_ROW))
        print(f"writing {rows:,} rows ...", file=sys.stderr)
        write(folder / "train.txt", rows - rows // 10, FLAGS.seed)
        write(folder / "test.txt", rows // 10, FLAGS.seed + 1)
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        for repeat in range(FLAGS.repeats):
            for name in CONTENDERS:
                cache = Path(temporary) / f"cache{repeat}"
                readings[name].append(measured(name, folder, cache))
                print(f"{name}: {readings[name][-1]['wall_s']} s", file=sys.stderr)
    found = {name: medians(readings[name], size) for name in CONTENDERS}
    own, peer = found["hetjax"], found["sklearn"]
    ratios = {
        "hetjax_over_sklearn": own["mb_per_core_s"] / peer["mb_per_core_s"],
        "first_over_reading": found["first_start"]["wall_s"] / own["wall_s"],
        "second_over_first": found["second_start"]["wall_s"]
        / found["first_start"]["wall_s"],
    }
    result = {
        "ratios": {name: round(ratio, 3) for name, ratio in ratios.items()},
        "medians": found,
        "megabytes": size,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    scripts.run(main)
