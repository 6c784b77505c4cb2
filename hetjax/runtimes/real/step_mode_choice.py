"""The step mode of K local steps on a real device: measured once, cached on disk.

The cache key contains the text of the lowered step, so that another model, shape, kind
of device or version of JAX is measured again.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median

import jax

from hetjax.cache import cache_folder
from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.step_runner import LONGEST
from hetjax.runtimes.real.dry_run import DryRun
from hetjax.runtimes.real.real_machine import RealMachine
from hetjax.runtimes.real.step_timer import StepTimer
from hetjax.runtimes.step_modes import step_mode_of_table
from hetjax.tracing.format import Line
from hetjax.tracing.trace import Trace

MIN_GAIN = 0.03  # fraction by which a step mode must beat the first candidate


def choose_step_modes(
    machine: RealMachine,
    found: DryRun,
    before: dict[str, str],
    choose: Callable[[list[int], int, int, int], str],
) -> dict[str, str]:
    """Choose a step mode for each kind of device, by its most common round.

    Modes that were chosen `before` stay. `choose` has the workers of the kind, and
    (local steps, batch size, workers of a device) of the round.
    """
    step_modes = {}
    for kind in {w.kind for w in machine.workers}:
        mine = [k for k, w in enumerate(machine.workers) if w.kind == kind]
        shapes = sum((found.shapes[k] for k in mine), Counter())
        learners = machine.most_per_device(kind)
        # single steps of a single worker have only one step mode
        several = {
            k: n for k, n in shapes.items() if k[0] > 1 or (k[0] and learners > 1)
        }
        if machine.step_mode or not several:
            step_modes[kind] = machine.step_mode or "dispatch"
        elif kind in before:
            step_modes[kind] = before[kind]
        else:
            local_steps, size = max(several, key=lambda shape: several[shape])
            step_modes[kind] = choose(mine, local_steps, size, learners)
    return step_modes


def chosen_before(names: Sequence[str], job: Job, path: str | Path | None) -> Line:
    """Return the trace header of a run that continues with the same workers; else {}.

    Measured choices stay, since they affect the last bits of the results: the trace
    must replay as one run.
    """
    if not job.continues or path is None:
        return {}
    found = Trace.header_of(path)
    before = [w["name"] for w in found.get("workers", [])]
    return found if before == list(names) else {}


def choose_step_mode(
    timer: StepTimer, device: Device, local_steps: int, size: int, learners: int = 1
) -> tuple[str, dict[str, float]]:
    """Choose the mode of `local_steps` steps of `learners` workers on one device.

    Returns (step mode, seconds of a step in each step mode that was tried).
    """
    of_table = step_mode_of_table(timer.job, device.platform)
    tried = candidates(local_steps, learners, of_table)
    if len(tried) < 2:
        return "dispatch", {}

    def measure() -> dict[str, float]:
        return {
            mode: median(
                timer.seconds(
                    device,
                    size,
                    local_steps=local_steps,
                    step_mode=mode,
                    learners=learners,
                )
            )
            for mode in tried
        }

    seconds = measured_once(
        measure,
        timer.lowered(device, size).as_text(),
        f"{local_steps} steps, {learners} learners",
        device,
    )
    return fastest(seconds), seconds


def fastest(seconds: dict[str, float]) -> str:
    """Return the fastest step mode; the first one unless another gains MIN_GAIN."""
    first, best = next(iter(seconds)), min(seconds, key=lambda mode: seconds[mode])
    return best if seconds[best] < (1 - MIN_GAIN) * seconds[first] else first


def measured_once(
    measure: Callable[[], dict[str, float]], lowered: str, about: str, device: Device
) -> dict[str, float]:
    """Return the result of `measure`, or its cached result for the same arguments."""
    version = device.client.platform_version
    key = "\n".join((lowered, about, device.device_kind, jax.__version__, version))
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = cache_folder() / "step_modes" / f"{name}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    seconds = measure()
    partial = path.with_suffix(f".{os.getpid()}")
    with suppress(OSError):  # without the file, the next run measures again
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(seconds), encoding="utf-8")
        partial.replace(path)
    return seconds


def candidates(local_steps: int, learners: int, of_table: str) -> list[str]:
    """Return the step modes that are worth measuring.

    `of_table` is the table's mode for this model. Where it is not "fused", loops are an
    order of magnitude slower, and measuring one takes minutes; where it is not
    "unrolled" either, compiling unrolled steps takes minutes.
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
