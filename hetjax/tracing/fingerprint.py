"""The header of a trace, and checks that a task, data and strategy match it.

A trace does not hold the task and the data. Its first line has the shapes of the
model's parameters and a checksum of the data, its last line a checksum of the final
parameters.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hetjax.data.columns import leaf_checksum, leaves_of
from hetjax.data.dataset import Dataset
from hetjax.engine.job import Job
from hetjax.machine import Machine
from hetjax.strategies import STRATEGIES
from hetjax.strategies.types import PARTS, Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.format import shortened
from hetjax.tracing.trace import Recording, Trace


def header(
    strategy: Strategy,
    job: Job,
    step_modes: dict[str, str],
    nodes: int,
    slowdowns: list[float],
) -> dict[str, Any]:
    """Return a trace's header; merges run on the device of worker number `nodes`."""
    return {
        "strategy": strategy.name,
        "name": job.name,
        "settings": strategy.settings,
        "batch_size": strategy.batch_size,
        "seed": int(job.seed),
        "instants": list(job.instants),
        "eval_examples": job.num_test if job.whole_test else None,
        "on_nan": job.on_nan,
        "on_lost_worker": job.on_lost_worker,
        "step_modes": step_modes,
        "nodes": nodes,
        "slowdowns": slowdowns,
        "model": model_shapes(job.programs.task),
        "data": data_fingerprint(job.data),
        "jax": jax.__version__,
    }


def digest(params: Any) -> str:
    """Return a checksum of the bits of the parameters."""
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        found.update(np.ascontiguousarray(jax.device_get(leaf)).tobytes())
    return found.hexdigest()


def as_trace(trace: Trace | Recording | str | Path) -> Trace:
    """Return a trace, the trace of a recording, or the trace in a file."""
    if isinstance(trace, Recording):
        trace = trace.load()
    if not isinstance(trace, Trace | str | Path):
        raise ValueError(
            f"{trace!r} is not a trace: pass the trace of a real run's history, or the "
            "path of a file (a run on a mesh has no trace)"
        )
    found = trace if isinstance(trace, Trace) else Trace.load(trace)
    if "begins" in found.header:
        raise ValueError(
            f"{found.name} cannot be replayed: it begins at "
            f"{found.header['begins']:.6g} s, where the run was continued with other "
            "workers, or without its trace file"
        )
    return found


def recorded_strategy(trace: Trace) -> Strategy:
    """Rebuild the strategy of a trace from its recorded settings."""
    name, given = trace.header["strategy"], trace.header.get("settings", {})
    why = f"the trace's strategy cannot be rebuilt: {name} "
    if name not in STRATEGIES:
        raise ValueError(f"{why}is not one of hetjax's; pass it to `replay`")
    try:
        return STRATEGIES[name](**{k: _tuples(v) for k, v in given.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{why}has settings that are functions, or were not recorded ({error}); "
            "pass it to `replay`"
        ) from error


def _tuples(value: Any) -> Any:
    """Convert JSON's lists back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def check_same(trace: Trace, strategy: Strategy, task: Task, data: Dataset) -> None:
    """Raise a ValueError if these are not the recorded ones.

    Replaced parts of a strategy are not compared: a replay compares the parameters.
    """
    before = trace.header.get("settings", {})
    both = {k: v for k, v in strategy.settings.items() if k in before}
    settings = json.loads(json.dumps(both))
    found = {
        "strategy": (trace.header["strategy"], strategy.name),
        **{k: (before[k], v) for k, v in settings.items() if k not in PARTS},
        "batch_size": (trace.header.get("batch_size"), strategy.batch_size),
        "model": (trace.header.get("model"), model_shapes(task)),
        "data": (trace.header.get("data"), data_fingerprint(data)),
    }
    for name, (recorded, value) in found.items():
        if recorded != value:
            raise ValueError(
                f"the trace was recorded with another {name}: "
                f"{shortened(str(recorded))}, not {shortened(str(value))}"
            )


def model_shapes(task: Task) -> list[list[Any]]:
    """Return the path, shape and dtype of every parameter."""
    params, _ = jax.eval_shape(task.init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [
        [jax.tree_util.keystr(p), list(leaf.shape), str(leaf.dtype)]
        for p, leaf in leaves
    ]


def model_text(task: Task) -> str:
    """Return paths, shapes and dtypes of the parameters as one line of text."""
    return ", ".join(
        f"{path} {dtype}[{','.join(map(str, shape))}]"
        for path, shape, dtype in model_shapes(task)
    )


def check_calibration(machine: Machine, task: Task) -> None:
    """Raise a ValueError if the machine was measured with a model of other shapes."""
    about = machine.calibration
    if about is not None and about.model != model_text(task):
        raise ValueError(
            f"the machine {machine.name!r} was calibrated with another model "
            f"({about.model}), not with {model_text(task)}: calibrate it with this one"
        )


def data_fingerprint(data: Dataset) -> dict[str, Any]:
    """Return the sizes of a data set and a checksum of each of its arrays."""
    return {
        "train_examples": len(data.train),
        "test_examples": len(data.test),
        "features": data.num_features,
        "classes": data.num_classes,
        "checksum": [
            leaf_checksum(part)
            for split in (data.train, data.test)
            for part in leaves_of((split.x, split.y))
        ],
    }
