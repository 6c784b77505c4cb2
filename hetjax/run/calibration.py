"""Calibration: real devices measured alone and side by side, as a simulated machine."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
from tqdm import tqdm

from hetjax import merge
from hetjax.data.dataset import Dataset
from hetjax.local import LocalRule, sgd
from hetjax.machine import Machine
from hetjax.machine.fit import Fit, fit_machine
from hetjax.machine.profile import Calibration
from hetjax.run.executor import Device
from hetjax.run.local import LocalMachine, local_machine
from hetjax.run.loop import INTERRUPTED
from hetjax.run.recorded import model_text
from hetjax.run.train import train
from hetjax.sampling.by_weight import by_weight
from hetjax.schedule.probing import DONE, probing
from hetjax.schedule.types import Policy
from hetjax.strategies.types import Strategy
from hetjax.task.types import Task

_LONG = 1e6  # [s] the run ends by itself, long before


def calibrate(
    task: Task,
    data: Dataset,
    devices: LocalMachine | Sequence[Device | str] | None = None,
    *,
    batch_sizes: Sequence[int] = (16, 32, 64, 128),
    steps: Sequence[int] = (1, 8),
    repeats: int = 8,
    rule: LocalRule | None = None,
    path: str | Path | None = None,
    progress: bool = True,
) -> Machine:
    """Measure real devices: the simulated machine that is as fast as they are.

    Every device does works of every batch size and number of `steps`, `repeats` times,
    alone and while all others compute, without pause and as in a synchronous round,
    with a merge behind each; where inputs are sparse, of light examples and of heavy
    ones. Fitted to it (`machine.fit`): seconds = per_work + steps fixed + examples
    per_example + nonzeros per_nonzero, each worker's contention, the noise, and the
    link that merges take.
    `devices` are as in `local_machine`, or one, with its slowdowns and learners. `rule`
    is the local rule of the steps (default `local.sgd()`).

    The machine's `calibration` says what was measured and how well it fits; `path`
    saves it as JSON, which `machine.load_machine` reads. Errors: ValueError for devices
    that are not there, or a data set smaller than a batch; KeyboardInterrupt where
    Ctrl-C ended it.
    """
    if isinstance(devices, Machine):
        raise ValueError(
            f"the machine {devices.name!r} is a simulated one: devices to measure are "
            "those of local_machine()"
        )
    if path is not None and not Path(path).parent.is_dir():
        raise ValueError(f"path={str(path)!r}: there is no folder {Path(path).parent}")
    machine = devices if isinstance(devices, LocalMachine) else local_machine(devices)
    b_max = max(batch_sizes)
    policy = probing(batch_sizes=batch_sizes, steps=steps, repeats=repeats)
    rounds = repeats * len(batch_sizes) * len(steps)
    several = len(machine.workers) > 1
    total = rounds * (len(machine.workers) + 2 * several)
    bar = tqdm(total=total, disable=not progress, desc="calibrating", unit="round")
    strategy = Strategy(
        _watched(policy, bar),
        rule or sgd(),
        merge.average(),
        int(b_max),
        1e-6,  # nothing is to be learned
        name="calibration",
    )
    if data.sparse:  # or nothing tells an example's seconds from a non-zero's
        weights = np.diff(data.train.x.indptr)
        strategy = strategy._replace(sampler=by_weight(weights))
    try:
        history = train(
            task,
            data,
            dataclasses.replace(machine, incidents=()),
            strategy,
            seconds=_LONG,
            points=1,
            progress=False,
        )
    finally:
        bar.close()
    if history.stopped == INTERRUPTED:  # half of the measurements are no machine
        raise KeyboardInterrupt
    if history.stopped != DONE:
        raise ValueError(f"the calibration did not end: {history.stopped}")
    found = fit_machine(history.trace.load(), "calibrated")
    about = _about(found, task, data, batch_sizes)
    measured = dataclasses.replace(found.machine, calibration=about)
    if path is not None:
        measured.save(path)
    return measured


def _watched(policy: Policy, bar: tqdm) -> Policy:
    """The policy, whose rounds move a bar; a rehearsal's are taken back."""

    def init(workers, num_examples):
        bar.reset()
        return policy.init(workers, num_examples)

    def react(state, event):
        state, orders = policy.react(state, event)
        bar.update(len(orders.merges))
        return state, orders

    return Policy(init, react)


def _about(
    found: Fit, task: Task, data: Dataset, batch_sizes: Sequence[int]
) -> Calibration:
    return Calibration(
        model=model_text(task),
        data=f"{data.name}: {data.num_features} features, {data.num_classes} classes",
        batch_sizes=tuple(int(b) for b in batch_sizes),
        error=round(found.error, 6),
        worst=round(found.worst, 6),
        works=len(found.errors),
        versions=f"jax {jax.__version__}",
    )
