"""The step mode of K local steps on a real device: measured once, kept on disk.

The key contains the text of the lowered step, so that another model, shape, kind of
device or version of JAX is measured again.
"""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import jax

from hetjax.cache import cache_folder
from hetjax.engine.local_steps import LONGEST
from hetjax.engine.placement import Device
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.step_modes import step_mode_of_table

GAIN = 0.03  # by which a step mode must be faster than single dispatches


def choose_step_mode(
    timer: StepTimer, device: Device, local_steps: int, size: int, learners: int = 1
) -> tuple[str, dict[str, float]]:
    """Choose the step mode for so many steps of `learners` workers on one device.

    Returns (step mode, seconds of a step in each step mode that was tried).
    """
    of_table = step_mode_of_table(timer.job, device.platform)
    tried = candidates(local_steps, learners, of_table)
    if len(tried) < 2:
        return "dispatch", {}
    seconds = measured_once(
        lambda: _measured(timer, device, local_steps, size, learners, tried),
        timer.lowered(device, size).as_text(),
        f"{local_steps} steps, {learners} learners",
        device,
    )
    best = min(seconds, key=lambda step_mode: seconds[step_mode])
    worth = seconds[best] < (1 - GAIN) * seconds["dispatch"]
    return best if worth else "dispatch", seconds


def measured_once(
    measure: Callable[[], dict[str, float]], lowered: str, about: str, device: Device
) -> dict[str, float]:
    """What `measure` returns, or what it returned before for all of these."""
    version = device.client.platform_version
    key = "\n".join((lowered, about, device.device_kind, jax.__version__, version))
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = cache_folder() / "step_modes" / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    seconds = measure()
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # without the file it is measured again, the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(seconds), encoding="utf-8")
        partial.replace(path)
    return seconds


def candidates(local_steps: int, learners: int, of_table: str) -> list[str]:
    """The step modes that are worth a measurement.

    `of_table` is the mode that the table has for this model. Where it fuses no steps,
    loops are an order of magnitude slower, and measuring one takes minutes; where it
    does not unroll them either, compiling does.
    """
    if of_table == "dispatch":
        return ["dispatch"]
    short = 1 < local_steps <= LONGEST
    if of_table == "unrolled":
        return ["dispatch", *(["unrolled"] if short else [])]
    return [
        "dispatch",
        *(["fused"] if local_steps > 1 else []),
        *(["unrolled"] if short else []),
        *(["vmapped"] if learners > 1 else []),
    ]


def _measured(
    timer: StepTimer,
    device: Device,
    local_steps: int,
    size: int,
    learners: int,
    tried: list[str],
) -> dict[str, float]:
    if learners < 2:
        return {
            step_mode: median(
                timer.seconds(
                    device, size, local_steps=local_steps, step_mode=step_mode
                )
            )
            for step_mode in tried
        }
    return {
        step_mode: median(
            timer.seconds_of_several(
                device, learners, size, local_steps=local_steps, step_mode=step_mode
            )
        )
        for step_mode in tried
    }
