"""Which form K local steps take on a kind of device: measured once, kept on disk.

The key holds the compiled step's own text, so that another model, shape, kind of device
or version of JAX is measured anew.
"""

import hashlib
import json
import os
from pathlib import Path
from statistics import median

import jax
import pooch

from hetjax.run.executor import Device
from hetjax.run.measuring import StepTimer
from hetjax.run.steps import FORMS, LONGEST

GAIN = 0.03  # by which a form must be faster than single dispatches


def choose_form(
    timer: StepTimer, device: Device, steps: int, size: int
) -> tuple[str, dict[str, float]]:
    """(the form, seconds of a step in each form that was tried) for so many steps."""
    if steps < 2:
        return "dispatch", {}
    key = _key(timer, device, steps, size)
    path = cache_folder() / f"{key}.json"
    if path.exists():
        seconds = json.loads(path.read_text(encoding="utf-8"))
    else:
        seconds = _measured(timer, device, steps, size)
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
    timer: StepTimer, device: Device, steps: int, size: int
) -> dict[str, float]:
    tried = [form for form in FORMS if form != "unrolled" or steps <= LONGEST]
    return {
        form: median(timer.seconds(device, size, steps=steps, form=form))
        for form in tried
    }


def _key(timer: StepTimer, device: Device, steps: int, size: int) -> str:
    about = (
        timer.lowered(device, size),
        str(steps),
        device.device_kind,
        jax.__version__,
        device.client.platform_version,
    )
    return hashlib.sha256("\n".join(about).encode()).hexdigest()[:32]
