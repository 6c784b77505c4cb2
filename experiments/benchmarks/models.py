"""Images/s (sequences/s) of a training step of the large models, and of PyTorch's.

    python experiments/benchmarks/models.py                          (15 minutes)
    python experiments/benchmarks/models.py --models=resnet50 --dtype=bfloat16
    python experiments/benchmarks/models.py --models=vit_b --memory

A step is forward pass, loss, backward pass, and SGD with momentum 0.9, on a batch that
is on the device. hetjax runs the compiled step that a worker runs. Contenders take
turns on the same device; ratios are medians over the turns. PyTorch's models are those
of `models_peers.py`; where its packages are not installed, its figures are null.
With --memory the bytes that XLA reserves for a step are compared with those of the same
step with remat=True, which is compiled and not run. Operations are those of the step
before XLA changes it; with --peak_tflops, the share of that peak is reported.
"""

import json
import math
import sys
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import models_peers
from experiments.benchmarks.turns import by_hand, in_turn, ratio, session
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from hetjax.engine.step_runner import StepSettings
from hetjax.runtimes.real.step_timer import StepTimer

FLAGS = flags.FLAGS


class Case(NamedTuple):
    """A model, and a batch of which a step takes a few seconds on two cores."""

    make: Callable[..., Any]  # (dtype=, remat=) -> a builder
    batch: int
    x: tuple[int, ...]  # of an example; () of a token
    classes: int


def _wide(**options: Any) -> Any:
    return hj.models.wide_resnet(depth=28, widen=10, **options)


CASES = {
    "resnet32": Case(lambda **o: hj.models.resnet(depth=32, **o), 64, (32, 32, 3), 10),
    "wrn28_10": Case(_wide, 4, (32, 32, 3), 100),
    "resnet50": Case(hj.models.resnet50, 8, (224, 224, 3), 1000),
    "vit_ti": Case(
        lambda **o: hj.models.vit(size="tiny", **o), 16, (224, 224, 3), 1000
    ),
    "vit_b": Case(hj.models.vit, 2, (224, 224, 3), 1000),
    "distilbert": Case(hj.models.distilbert, 4, (128,), 4),
}

flags.DEFINE_list("models", list(CASES), "models to measure")
flags.DEFINE_integer("batch_size", None, "examples of a step; default: by model")
flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "of the layers")
flags.DEFINE_integer("turns", 3, "turns of every contender")
flags.DEFINE_float("seconds", 1.0, "seconds of a turn, which has 5 steps at least")
flags.DEFINE_float("peak_tflops", None, "Tflop/s of the device, at most")
bounded("peak_tflops", 1e-3, 1e6, "it is a speed")
flags.DEFINE_boolean("memory", False, "also compile the step with remat, for its bytes")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("turns", 1, 1000, "every turn takes its time")
bounded("seconds", 0.01, 3600, "it is the time of a turn")


def example(case: Case, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random inputs [size, ...] and classes [size]."""
    rng = np.random.default_rng(0)
    y = rng.integers(case.classes, size=size).astype(np.int32)
    if len(case.x) == 1:
        return rng.integers(1, 30_000, size=(size, *case.x)).astype(np.int32), y
    return rng.normal(size=(size, *case.x)).astype(np.float32), y


def compiled(
    case: Case, size: int, dtype: str, remat: bool
) -> tuple[jax.stages.Compiled, tuple[Any, ...], float]:
    """A worker's program of one step, its arguments, and its operations [flop]."""
    x, y = example(case, size)
    data = hj.data.from_arrays((x, y), (x, y), num_classes=case.classes)
    task = hj.classification(case.make(dtype=dtype, remat=remat), data)
    strategy = hj.local_sgd(
        batch_size=size, learning_rate=1e-3, local_steps=1, momentum=0.9
    )
    job = session(task, data, hj.local_machine([jax.devices()[0]])).job("", strategy, 0)
    timer = StepTimer(StepSettings.of(strategy), job)
    arguments = jax.device_put(timer.arguments(jax.devices()[0], size))
    lowered = timer.steps.lowered(arguments)
    costs: Any = lowered.cost_analysis() or {}
    return lowered.compile(), arguments, costs.get("flops", math.nan)


def ours(
    program: jax.stages.Compiled, arguments: tuple[Any, ...]
) -> Callable[[int], Any]:
    """Steps of hetjax, one after another, each from the replica before."""
    replica, *others = arguments

    def step(number: int) -> Any:
        nonlocal replica
        del number
        replica, *_, loss = program(replica, *others)
        return jax.block_until_ready(loss)

    return step


def measured(name: str) -> dict[str, Any]:
    """Examples/s of all contenders of a model, and other figures of its step."""
    case = CASES[name]
    size = FLAGS.batch_size or case.batch
    program, arguments, flops = compiled(case, size, FLAGS.dtype, remat=False)
    memory: Any = program.memory_analysis()
    contenders = {"hetjax": by_hand(ours(program, arguments))}
    peer = models_peers.step(name, *example(case, size), case.classes, FLAGS.dtype)
    if peer is not None:
        contenders["torch"] = by_hand(peer)
    found = in_turn(contenders, FLAGS.seconds, FLAGS.turns, name, window=1)
    per_s = flops / median(found["hetjax"])
    result: dict[str, Any] = {
        "batch_size": size,
        "hetjax_per_s": round(size / median(found["hetjax"]), 3),
        "torch_per_s": None,
        "step_gflops": round(flops / 1e9, 1),
        "gflops_per_s": round(per_s / 1e9, 1),
        "step_bytes": int(memory.temp_size_in_bytes),
    }
    if FLAGS.peak_tflops is not None:
        result["share_of_peak"] = round(per_s / 1e12 / FLAGS.peak_tflops, 3)
    if peer is not None:
        result["torch_per_s"] = round(size / median(found["torch"]), 3)
        result["ratio"] = round(ratio(found["torch"], found["hetjax"]), 3)
    if FLAGS.memory:
        less: Any = compiled(case, size, FLAGS.dtype, remat=True)[0].memory_analysis()
        result["step_bytes_with_remat"] = int(less.temp_size_in_bytes)
    return result


def main() -> None:
    bounds.check_some_of("models", FLAGS.models, CASES)
    device = jax.devices()[0]
    found = {}
    for number, name in enumerate(FLAGS.models, 1):
        print(f"{name} ({number} of {len(FLAGS.models)})", file=sys.stderr)
        found[name] = measured(name)
    ratios = {name: row.get("ratio") for name, row in found.items()}
    about = {"device": device.device_kind, "dtype": FLAGS.dtype, "jax": jax.__version__}
    about["torch"] = models_peers.version()
    print(json.dumps({"ratios": ratios, "models": found, **about}, indent=1))


if __name__ == "__main__":
    scripts.run(main)
