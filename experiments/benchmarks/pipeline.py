"""Images/s from files to a device, and of the augmentations in a step.

    python experiments/benchmarks/pipeline.py                        (three minutes)
    python experiments/benchmarks/pipeline.py --images=4000 --parts=decode,feed,run

- decode: the first pass over JPEGs of 500 x 375 pixels, which decodes and resizes them
  to 256 pixels, and the second start, which maps its result.
- feed: batches of 64 drawn at random from the mapped images, sent to the device.
- run: a real run whose step sleeps for a millisecond per image, as long as a device of
  1,000 images/s would compute, and crops the center. The same steps alone, one by one,
  show how many images/s the device can take.
- source: single steps, and the same steps of rows of another library's data set that
  take as long to read as the step takes.
- augment: each pipeline of experiments/common/pipelines.py, compiled, on this device.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from PIL import Image

import hetjax as hj
from experiments.benchmarks import step_times, turns
from experiments.common import bounds, pipelines, scripts
from experiments.common.bounds import bounded
from hetjax.data.batching import make_batch, make_buckets
from hetjax.engine.step_runner import StepSettings
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.tasks import augment

FLAGS = flags.FLAGS
PARTS = ("decode", "feed", "run", "source", "augment")
RATE, BATCH = 1000, 64  # images/s of the device in question; images of a step
HIDDEN = 16384  # of the MLP of the part "source", whose steps take some milliseconds
SHAPES = {"uint8": (256, 256, 3), "float32": (32, 32, 3)}  # as the readers give them

flags.DEFINE_list("parts", list(PARTS), "parts to measure")
flags.DEFINE_integer("images", 1000, "images in the training split, one tenth beside")
flags.DEFINE_float("seconds", 5.0, "seconds of a measurement")
bounded("images", 2 * BATCH, 10_000_000, "they are written first")
bounded("seconds", 0.01, 3600, "it is the time of a measurement")


def write_images(root: Path) -> None:
    """JPEGs of 500 x 375 pixels in ten classes, about as rough as photographs."""
    rng = np.random.default_rng(0)

    def one(path: Path, seed: int) -> None:
        rng = np.random.default_rng(seed)
        coarse = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        smooth = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        noisy = np.asarray(smooth) + rng.normal(0, 8, (375, 500, 3))
        Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(path, quality=90)

    jobs = []
    for split, number in (("train", FLAGS.images), ("val", FLAGS.images // 10)):
        for k in range(10):
            (root / split / f"class{k}").mkdir(parents=True)
        jobs += [
            root / split / f"class{i % 10}" / f"{i:06d}.jpg" for i in range(number)
        ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(one, jobs, rng.integers(2**31, size=len(jobs)).tolist()))


def decode(root: Path) -> tuple[hj.data.Dataset, dict[str, float]]:
    """The data set, images/s of its first pass, and seconds of a second start."""
    began = time.perf_counter()
    data = hj.data.read_image_folder(root / "images", cache=root / "cache")
    first = time.perf_counter() - began
    began = time.perf_counter()
    hj.data.read_image_folder(root / "images", cache=root / "cache")
    number = len(data.train) + len(data.test)
    return data, {
        "decode_images_per_s": number / first,
        "second_start_s": time.perf_counter() - began,
    }


def _per_second(one: Callable[[], Any]) -> float:
    """How often `one` can be called per second: the median, without the first call."""
    one()
    times = [time.perf_counter()]
    while len(times) < 4 or times[-1] - times[0] < FLAGS.seconds:
        one()
        times.append(time.perf_counter())
    return 1 / median(np.diff(times))


def feed(data: hj.data.Dataset) -> dict[str, float]:
    """Images/s of random batches, gathered from the mapped file and sent."""
    rng, buckets = np.random.default_rng(0), make_buckets(data.train, BATCH)

    def one() -> None:
        rows = rng.integers(len(data.train), size=BATCH)
        jax.block_until_ready(jax.device_put(make_batch(data.train, rows, buckets)))

    return {"feed_images_per_s": BATCH * _per_second(one)}


def run(data: hj.data.Dataset) -> dict[str, float]:
    """Images/s of a run on a device that needs a millisecond for an image."""

    def wait(first: np.ndarray) -> np.ndarray:
        time.sleep(len(first) / RATE)
        return np.zeros((), np.float32)

    def apply(w: jax.Array, x: jax.Array) -> jax.Array:
        none = jax.ShapeDtypeStruct((), jnp.float32)
        slept = jax.pure_callback(wait, none, jax.lax.stop_gradient(x[:, 0, 0, 0]))
        return jnp.mean(x, (1, 2)) @ w + slept

    model = hj.from_functions(lambda key: jnp.zeros((3, data.num_classes)), apply)
    task = hj.classification(model, data, normalize=augment.center_crop(224))
    machine = hj.local_machine([jax.devices()[0]], step_mode="dispatch")
    strategy = hj.local_sgd(batch_size=BATCH, learning_rate=1e-6, local_steps=4)
    history = hj.train(
        task,
        data,
        machine,
        strategy,
        seconds=max(2.0, FLAGS.seconds),
        num_evals=1,
        eval_examples=BATCH,
        progress=False,
    )
    (worker,) = history.workers
    job = turns.session(task, data, machine).job("", strategy, 0)
    timer = StepTimer(StepSettings.of(strategy), job)
    alone = median(timer.seconds(jax.devices()[0], BATCH, shortest=FLAGS.seconds))
    return {
        "run_images_per_s": worker.examples / history.duration,
        "step_images_per_s": BATCH / alone,
    }


class SlowRows:
    """A data set of another library, whose batches take some seconds to read."""

    def __init__(self, columns: tuple[np.ndarray, np.ndarray], seconds: float):
        self.columns, self.seconds = columns, seconds

    def __len__(self) -> int:
        return len(self.columns[1])

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return self.columns[0][row], int(self.columns[1][row])

    def __getitems__(self, rows: list[int]) -> list[tuple[np.ndarray, int]]:
        time.sleep(self.seconds)
        return [self[row] for row in rows]


def source() -> dict[str, float]:
    """Seconds of an arrival where reading takes as long as a step, and without."""
    arrays = step_times.make_data()
    strategy = hj.async_sgd(batch_size=step_times.BATCH, learning_rate=1e-6)
    machine = hj.local_machine([jax.devices()[0]], step_mode="dispatch")

    def contender(data: hj.data.Dataset) -> turns.Contender:
        task = hj.classification(hj.models.mlp(hidden=HIDDEN), data)
        return turns.trained(turns.session(task, data, machine), strategy)

    in_memory = contender(arrays)
    seconds = turns.usual_gap(in_memory(FLAGS.seconds), 1)
    splits = [SlowRows((s.x, s.y), seconds) for s in (arrays.train, arrays.test)]
    read = hj.data.from_source(*splits, num_classes=arrays.num_classes)
    contenders = {"read": contender(read), "in_memory": in_memory}
    found = turns.in_turn(contenders, FLAGS.seconds, 3, "source", window=1)
    return {f"source_{name}_s": median(times) for name, times in found.items()}


def augmented() -> dict[str, float]:
    """Images/s of each pipeline's training transforms, compiled alone."""
    found = {}
    for name, build in pipelines.PIPELINES.items():
        if name == "none":
            continue
        steps = build()
        kind = "float32" if name in pipelines.FLOATS else "uint8"
        scale = 1 if kind == "float32" else 255
        x = scale * np.random.default_rng(0).random((BATCH, *SHAPES[kind]), np.float32)
        if name == "tiny_imagenet":
            x = x[:, :64, :64]

        @jax.jit
        def run(key: jax.Array, x: jax.Array, steps: Any = steps) -> jax.Array:
            return steps.normalize(key, steps.augment(key, x))

        x = jax.device_put(x)
        key = jax.random.key(0)
        given = key, x
        rate = BATCH * _per_second(
            lambda run=run, given=given: jax.block_until_ready(run(*given))
        )
        found[name] = rate
        print(f"{name}: {rate:.0f} images/s", file=sys.stderr)
    return found


def main() -> None:
    bounds.check_some_of("parts", FLAGS.parts, PARTS)
    result: dict[str, Any] = {"cores": os.cpu_count(), "images": FLAGS.images}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if not set(FLAGS.parts) <= {"source", "augment"}:
            print("writing images", file=sys.stderr)
            write_images(root / "images")
            data, times = decode(root)
            result |= times if "decode" in FLAGS.parts else {}
            result |= feed(data) if "feed" in FLAGS.parts else {}
            result |= run(data) if "run" in FLAGS.parts else {}
    if "source" in FLAGS.parts:
        result |= source()
    if "augment" in FLAGS.parts:
        result["augment_images_per_s"] = augmented()
    measured = result.get("run_images_per_s")
    busy = None if measured is None else measured / result["step_images_per_s"]
    ratios = {"device_busy": busy}
    if "source" in FLAGS.parts:
        ratios["source"] = result["source_read_s"] / result["source_in_memory_s"]
    result["device"] = jax.devices()[0].device_kind
    print(json.dumps({"ratios": ratios, **result}, indent=1))


if __name__ == "__main__":
    scripts.run(main)
