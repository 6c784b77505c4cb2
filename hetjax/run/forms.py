"""Which form K local steps take: from a fixed table, or measured once and kept on disk.

On the virtual clock it is the table's, so that results are the same bit for bit
everywhere. Real devices are measured; the key holds the compiled step's own text, so
that another model, shape, kind of device or version of JAX is measured anew.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
import pooch

from hetjax.data.batching import make_batch
from hetjax.run.executor import Device
from hetjax.run.job import Job
from hetjax.run.measuring import StepTimer
from hetjax.run.steps import ALONE, LONGEST

SMALL = 150  # primitives of a loss that is worth unrolling
GAIN = 0.03  # by which a form must be faster than single dispatches


def form_of_table(job: Job, platform: str) -> str:
    """The form for K steps of this task on a platform.

    Accelerators want one program for all. So do models without convolutions on a CPU;
    there a convolution inside a loop is an order of magnitude slower, so that small
    convolutional models are unrolled, and large ones, whose unrolled program would
    compile for minutes, dispatched.
    """
    if platform != "cpu":
        return "fused"
    names = list(_primitives(_loss_of(job).jaxpr))
    if not any(name.startswith("conv_general") for name in names):
        return "fused"
    return "unrolled" if len(names) <= SMALL else "dispatch"


def _loss_of(job: Job) -> Any:
    """The jaxpr of the task's loss on a batch."""
    task, key = job.programs.task, jax.random.key(0)
    model = jax.eval_shape(task.init, key)
    batch = make_batch(job.train, np.zeros(1, np.int64), job.buckets)
    return jax.make_jaxpr(task.loss)(*model, batch, key)


def _primitives(jaxpr: Any) -> Iterator[str]:
    """Names of all primitives, those of inner jaxprs too."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", None)
            if inner is not None:
                yield from _primitives(getattr(inner, "jaxpr", inner))


def choose_form(
    timer: StepTimer, device: Device, steps: int, size: int, learners: int = 1
) -> tuple[str, dict[str, float]]:
    """(the form, seconds of a step in each form that was tried) for so many steps.

    Of `learners` that share the device, where there are several.
    """
    if steps < 2 and learners < 2:
        return "dispatch", {}
    key = _key(timer, device, steps, size, learners)
    path = cache_folder() / f"{key}.json"
    if path.exists():
        seconds = json.loads(path.read_text(encoding="utf-8"))
    else:
        seconds = _measured(timer, device, steps, size, learners)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(seconds), encoding="utf-8")
        partial.replace(path)
    best = min(seconds, key=lambda form: seconds[form])
    worth = seconds[best] < (1 - GAIN) * seconds["dispatch"]
    return best if worth else "dispatch", seconds


def cache_folder() -> Path:
    """Where measurements are kept: $HETJAX_CACHE, or the user's cache folder."""
    chosen = os.environ.get("HETJAX_CACHE")
    return (Path(chosen) if chosen else Path(pooch.os_cache("hetjax"))) / "forms"


def _measured(
    timer: StepTimer, device: Device, steps: int, size: int, learners: int
) -> dict[str, float]:
    if learners < 2:
        return {
            form: median(timer.seconds(device, size, steps=steps, form=form))
            for form in _forms(steps)
        }
    tried = [*_forms(steps), "vmapped"] if steps > 1 else ["dispatch", "vmapped"]
    return {
        form: median(
            timer.seconds_of_several(device, learners, size, steps=steps, form=form)
        )
        for form in tried
    }


def _forms(steps: int) -> list[str]:
    """Those of a learner by itself."""
    return [f for f in ALONE if f != "unrolled" or steps <= LONGEST]


def _key(timer: StepTimer, device: Device, steps: int, size: int, learners: int) -> str:
    about = (
        timer.lowered(device, size),
        f"{steps} steps, {learners} learners",
        device.device_kind,
        jax.__version__,
        device.client.platform_version,
    )
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:32]
