"""CROSSBOW's headline: several learners on one GPU, against one with parallel SGD.

    python experiments/benchmarks/learners.py                        (20 minutes, H100)
    python experiments/benchmarks/learners.py --parts=target --data=CIFAR_FOLDER

Two parts, on one device:

speed   images/s of ResNet-32 and LeNet at batches of 16, 32 and 64 with 1, 2, 4 and 8
        learners (`sma`), in the ways in which learners share a device: "dispatch" (a
        thread each), "vmapped" (one program), "mesh" (one program with the merge);
        against one learner with the framework's own parallel SGD (`sync_sgd`).
target  seconds until the test accuracy of --target_model on CIFAR-10 is --target, with
        1, 2, 4 and 8 learners and the fastest way of the part above, against `sync_sgd`
        with one learner; the best of the rates --rates counts.

CIFAR-10 is read from --data, of which --train and --test images are used. Images of the
part "speed" are random, and without --data the part "target" is left out. One JSON
object on standard output: "ratios" (of images/s, and of seconds, to `sync_sgd`), and
"images_per_second" and "seconds_to_target" with the raw medians.
"""

import dataclasses
import json
import sys
from statistics import median
from typing import Any

import jax
import numpy as np
from absl import flags

import hetjax as hj
from experiments.benchmarks import turns
from experiments.common import bounds, named_data, scripts
from experiments.common.bounds import bounded
from experiments.common.pipelines import PIPELINES

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", ["speed", "target"], "parts to run")
flags.DEFINE_list("models", ["resnet32", "lenet"], "some of resnet32, lenet")
flags.DEFINE_list("batch_sizes", ["16", "32", "64"], "examples of a learner's step")
flags.DEFINE_list("learners", ["1", "2", "4", "8"], "learners on the device")
flags.DEFINE_list("ways", ["dispatch", "vmapped", "mesh"], "how learners share it")
flags.DEFINE_float("seconds", 1.0, "seconds of a turn")
flags.DEFINE_integer("turns", 3, "turns of each contender")
flags.DEFINE_string("data", None, "folder of CIFAR-10, for the part target")
flags.DEFINE_integer("train", 50_000, "training images")
flags.DEFINE_integer("test", 2_000, "test images")
flags.DEFINE_float("target", 0.8, "test accuracy to reach")
flags.DEFINE_enum("target_model", "resnet32", ["resnet32", "lenet"], "the model")
flags.DEFINE_integer("target_batch", 64, "batch size of the part target")
flags.DEFINE_list("rates", ["0.05", "0.1"], "learning rates of the part target")
flags.DEFINE_float("longest", 120.0, "seconds of a run of the part target, at most")
flags.DEFINE_integer("seed", 0, "seed of data, parameters, and the order of examples")
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")
bounded("train", 64, 50_000, "CIFAR-10 has so many")
bounded("test", 1, 10_000, "CIFAR-10 has so many")
bounded("seed", *bounds.SEED)

SHAPES = {"resnet32": (32, 32, 3), "lenet": (28, 28, 1)}
WAYS = ("dispatch", "vmapped", "mesh")
IMAGES = 4096  # random ones
EVALS = 200  # of a run of the part target


def random_images(model: str) -> hj.data.Dataset:
    rng = np.random.default_rng(FLAGS.seed)
    x = rng.uniform(size=(IMAGES, *SHAPES[model])).astype(np.float32)
    y = np.arange(IMAGES) % 10
    return hj.data.from_arrays((x, y), (x[:64], y[:64]), num_classes=10)


def cifar10() -> hj.data.Dataset:
    """Images from all over both splits."""

    def few(split: hj.data.Split, number: int) -> hj.data.Split:
        rows = np.linspace(0, len(split) - 1, min(number, len(split)))
        return split.take(rows.astype(np.int64))

    data = named_data.load(FLAGS.data)
    train, test = few(data.train, FLAGS.train), few(data.test, FLAGS.test)
    return dataclasses.replace(data, train=train, test=test)


def task_of(model: str, data: hj.data.Dataset) -> hj.Task:
    """The model; ResNet-32 with CROSSBOW's augmentation."""
    if model == "lenet":
        shape = data.train.x.shape[1:]
        return hj.classification(hj.models.lenet(image=shape), data)
    transforms = PIPELINES["crossbow_cifar"]()._asdict()
    return hj.classification(hj.models.resnet(depth=32), data, **transforms)


def machine_of(learners: int, way: str) -> Any:
    """The first device with so many learners."""
    placed: dict[str, Any] = {"step_mode": way}
    if way == "mesh":
        placed = {"placement": "mesh"}
    device = jax.devices()[0]
    return hj.local_machine([device], workers_per_device=learners, **placed)


def parallel_sgd(size: int, rate: float) -> hj.Strategy:
    return hj.sync_sgd(batch_size=size, learning_rate=rate, server_momentum=0.9)


def averaging(size: int, rate: float) -> hj.Strategy:
    return hj.sma(batch_size=size, learning_rate=rate, momentum=0.9)


def numbers(name: str) -> list[int]:
    """The whole numbers of a flag."""
    found = bounds.numbers(name, FLAGS[name].value or [])
    if not found or any(n != int(n) or n < 1 for n in found):
        raise ValueError(f"--{name}: pass whole numbers from 1 on")
    return [int(n) for n in found]


def ways_of(learners: int) -> list[str]:
    """The ways to run so many learners; one learner is not vmapped."""
    chosen = [way for way in WAYS if way in FLAGS.ways]
    return [w for w in chosen if learners > 1 or w != "vmapped"]


def speeds() -> dict[str, dict[str, float]]:
    """Images/s by "model, batch" and contender."""
    found = {}
    for model in FLAGS.models:
        data = random_images(model)
        task = task_of(model, data)
        for size in numbers("batch_sizes"):
            contenders = {"sync_sgd, 1": (machine_of(1, "dispatch"), parallel_sgd, 1)}
            for k in numbers("learners"):
                for way in ways_of(k):
                    contenders[f"sma, {k}, {way}"] = machine_of(k, way), averaging, k
            running = {
                who: turns.trained(
                    turns.session(task, data, machine), strategy(size, 1e-3)
                )
                for who, (machine, strategy, _) in contenders.items()
            }
            case = f"{model}, {size}"
            took = turns.in_turn(running, FLAGS.seconds, FLAGS.turns, case)
            found[case] = {
                who: round(k * size / median(took[who]), 1)
                for who, (_, _, k) in contenders.items()
            }
    return found


def seconds_to_target(
    speed: dict[str, dict[str, float]],
) -> dict[str, float | None]:
    """Seconds to the target by contender, with the best of the rates."""
    data, model, size = cifar10(), FLAGS.target_model, FLAGS.target_batch
    task, measured = task_of(model, data), speed.get(f"{model}, {size}", {})
    contenders = {"sync_sgd, 1": (machine_of(1, "dispatch"), parallel_sgd)}
    for k in numbers("learners"):
        of_ways = {w: measured.get(f"sma, {k}, {w}", 0.0) for w in ways_of(k)}
        way = max(of_ways, key=lambda w: of_ways[w])
        contenders[f"sma, {k}, {way}"] = machine_of(k, way), averaging
    return {
        who: _fastest(task, data, machine, strategy, size, who)
        for who, (machine, strategy) in contenders.items()
    }


def _fastest(
    task: hj.Task, data: hj.data.Dataset, machine: Any, make: Any, size: int, about: str
) -> float | None:
    """Seconds to the target with the best rate; None if no rate reaches it."""
    reached = []
    for rate in bounds.numbers("rates", FLAGS.rates):
        history = hj.train(
            task,
            data,
            machine,
            make(size, rate),
            seconds=FLAGS.longest,
            num_evals=EVALS,
            target=FLAGS.target,
            seed=FLAGS.seed,
            progress=False,
        )
        seconds = history.seconds_to(FLAGS.target)
        print(f"{about}, rate {rate:g}: {seconds:.4g} s, {history!r}", file=sys.stderr)
        if seconds == seconds:  # not NaN
            reached.append(round(seconds, 2))
    return min(reached, default=None)


def ratios(
    speed: dict[str, dict[str, float]], target: dict[str, float | None]
) -> dict[str, float | None]:
    """Images/s of the fastest way over those of `sync_sgd`; seconds likewise."""
    found: dict[str, float | None] = {}
    for case, of in speed.items():
        base = of["sync_sgd, 1"]
        for k in numbers("learners"):
            best = max(v for who, v in of.items() if who.startswith(f"sma, {k}, "))
            found[f"images/s, {case}, {k} learners"] = round(best / base, 3)
    base = target.get("sync_sgd, 1")
    for who, seconds in target.items():
        found[f"seconds, {who}"] = None
        if base and seconds is not None:
            found[f"seconds, {who}"] = round(seconds / base, 3)
    return found


def main() -> None:
    bounds.check_some_of("parts", FLAGS.parts, ("speed", "target"))
    bounds.check_some_of("models", FLAGS.models, SHAPES)
    bounds.check_some_of("ways", FLAGS.ways, WAYS)
    speed = speeds() if "speed" in FLAGS.parts else {}
    target = {}
    if "target" in FLAGS.parts and FLAGS.data:
        target = seconds_to_target(speed)
    result = {
        "ratios": ratios(speed, target),
        "images_per_second": speed,
        "seconds_to_target": target,
        "target": f"{FLAGS.target:g} on {FLAGS.train} + {FLAGS.test} images",
        "device": jax.devices()[0].device_kind,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    scripts.run(main)
