"""One mega-batch of Adaptive SGD at the full size of Amazon-670k, on one device.

    python experiments/benchmarks/mega_batch.py                    (over an hour)
    python experiments/benchmarks/mega_batch.py --labels=1000 --features=2000

The four simulated GPUs of `v100x4-amazon670k`, batches of up to 1,024 examples and
mega-batches of 100 of these, on synthetic rows: 103 million parameters and four
replicas. A first run compiles; the second one is measured.

One JSON object on standard output: wall-clock seconds of the run with its evaluation on
1,000 examples, without compiling, seconds of compiling, updates, examples and P@1, and
as "ratios" the measured seconds over those that the paper's four GPUs take by the
simulated machine.
"""

import json
import sys
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

FLAGS = flags.FLAGS
SHAPE = hj.data.SHAPES["amazon-670k"]
flags.DEFINE_integer("rows", SHAPE["rows"], "training rows")
flags.DEFINE_integer("features", SHAPE["features"], "input features")
flags.DEFINE_integer("labels", SHAPE["labels"], "labels")
flags.DEFINE_integer("batch_size", 1024, "examples of the largest batch")
flags.DEFINE_float("seconds", 2.7, "virtual seconds; the first mega-batch takes 2.4")
flags.DEFINE_integer("seed", 0, "seed of data and parameters")
for _size in ("rows", "features", "labels"):
    bounded(_size, 200, 10_000_000, "rows have 76 features and 5 labels on average")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("seed", *bounds.SEED)
TEST_ROWS = 1000


def main() -> None:
    sizes = {name: FLAGS[name].value for name in ("rows", "features", "labels")}
    print(f"drawing {sizes} ...", file=sys.stderr)
    shape = {**SHAPE, **sizes, "test_rows": TEST_ROWS}
    data = hj.data.synthetic_xmc(**shape, seed=FLAGS.seed)
    task = hj.classification(hj.models.sparse_mlp(hidden=128), data)
    strategy = hj.adaptive_sgd(
        batch_size=FLAGS.batch_size, learning_rate=1.0, preset="recommended"
    )
    machine = hj.machine.preset("v100x4-amazon670k")
    session = Session(
        task, data, machine, RunConfig(seconds=FLAGS.seconds, num_evals=1)
    )
    bar = ProgressBar(2 * FLAGS.seconds, runs=2)
    first, second = (
        session.run("adaptive_sgd", strategy, FLAGS.seed, bar) for _ in range(2)
    )
    if second.stopped:
        raise ValueError(f"the run {second.stopped}")
    found: dict[str, Any] = {
        "ratios": {"wall_over_virtual": round(second.host_seconds / FLAGS.seconds, 3)},
        "seconds": round(second.host_seconds, 3),
        "compile_seconds": round(first.compile_seconds, 3),
        "updates": sum(worker.updates for worker in second.workers),
        "examples": sum(worker.examples for worker in second.workers),
        "merges": second.merges,
        second.metric: round(second.evals[-1][second.metric], 4),
        **sizes,
        "device": jax.devices()[0].device_kind,
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    scripts.run(main)
