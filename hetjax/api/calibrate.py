"""`calibrate`: measure real devices, alone and together, to simulate them."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
from tqdm import tqdm

from hetjax import merge
from hetjax.api.progress import step_bar
from hetjax.api.train import train
from hetjax.arguments import Count, checked
from hetjax.data.columns import stored_per_row
from hetjax.data.dataset import Dataset
from hetjax.data.dataset_checks import check_dataset
from hetjax.engine.placement import Device
from hetjax.local import LocalUpdate, sgd
from hetjax.machine import Machine
from hetjax.machine.simulated_machine import Calibration
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.threads.local_machine import LocalMachine, local_machine
from hetjax.sampling.by_weight import by_weight
from hetjax.schedule.policies.calibration_rounds import DONE, calibration_rounds
from hetjax.schedule.types import Policy
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import model_text
from hetjax.tracing.fit import Fit, disturbances, fit_machine

MOST_STEPS = 1000  # of a round; enough to see that costs are proportional to steps
MOST_ROUNDS = 100_000  # of each worker; they take a day, and all stay in memory
_LONG = 1e6  # [s] the run ends by itself long before


@checked
def calibrate(
    task: Task,
    data: Dataset,
    devices: LocalMachine | ClusterMachine | Sequence[Device | str] | None = None,
    *,
    batch_sizes: Sequence[Count] = (16, 32, 64, 128),
    local_steps: Sequence[Count] = (1, 8),
    repeats: Count = 8,
    local_update: LocalUpdate | None = None,
    path: str | Path | None = None,
    progress: bool = True,
) -> Machine:
    """Measure real devices and return a simulated machine of the same speed.

    Every device runs local rounds of every batch size and number of `local_steps`,
    `repeats` times each: alone, then while all other devices compute, both without a
    pause and as in a synchronous round. A merge follows each round. With sparse inputs,
    light and heavy examples are measured. The fit (`tracing.fit`) finds

        seconds = per_round + steps fixed + examples per_example + nonzeros per_nonzero

    each worker's contention, the noise, and the link that merges use.

    `devices` are those of `local_machine`, or a `local_machine` with its slowdowns and
    workers per device, or a `cluster_machine`, whose present workers are measured.
    `local_update` makes the steps (default `local.sgd()`).

    The machine's `calibration` describes the measurements and the quality of the fit. A
    warning reports signs that other programs disturbed it: a poor fit, steps that vary
    by more than a fifth, or devices of one kind that differ by a factor of more than
    1.5. `path` saves the machine as JSON, which `machine.load_machine` reads; if the
    file cannot be written, a warning says so, and the machine is still returned.
    Errors: ValueError for devices that do not exist, a data set smaller than a batch,
    or more than MOST_STEPS steps or MOST_ROUNDS rounds; KeyboardInterrupt after Ctrl-C,
    without a result.
    """
    if isinstance(devices, Machine):
        raise ValueError(
            f"the machine {devices.name!r} is a simulated one: pass real devices, or "
            "local_machine()"
        )
    if path is not None and not Path(path).parent.is_dir():
        raise ValueError(f"path={str(path)!r}: there is no folder {Path(path).parent}")
    check_dataset(data)
    _check_rounds(data, batch_sizes, local_steps, repeats)
    machine = _to_measure(devices)
    batch_size = max(batch_sizes)
    policy = calibration_rounds(
        batch_sizes=batch_sizes, local_steps=local_steps, repeats=repeats
    )
    rounds = repeats * len(batch_sizes) * len(local_steps)
    several = len(machine.workers) > 1
    total = rounds * (len(machine.workers) + 2 * several)
    bar = step_bar(total, "round", shown=progress)
    bar.set_description_str("calibrating", refresh=False)
    strategy = Strategy(
        _with_progress(policy, bar),
        local_update or sgd(),
        merge.average(),
        int(batch_size),
        1e-6,  # the learning rate: small, so that the model hardly changes
        name="calibration",
    )
    weights = stored_per_row(data.train.x)
    if weights is not None:  # else the fit cannot tell per_example from per_nonzero
        strategy = strategy._replace(sampler=by_weight(weights))
    with bar:
        history = train(
            task,
            data,
            machine,
            strategy,
            seconds=_LONG,
            num_evals=1,
            progress=False,
        )
    if history.interrupted:  # half of the measurements are not enough
        raise KeyboardInterrupt
    if history.stopped != DONE:
        raise ValueError(f"the calibration did not end: {history.stopped}")
    found = fit_machine(history.trace.load(), "calibrated")
    if disturbed := disturbances(found.machine, found.error):
        warnings.warn(
            f"a noisy calibration: {'; '.join(disturbed)}; stop other programs, or "
            "raise repeats, and calibrate again",
            stacklevel=2,
        )
    about = _about(found, task, data, batch_sizes)
    measured = dataclasses.replace(found.machine, calibration=about)
    if path is not None:
        try:
            measured.save(path)
        except OSError as error:  # a full disk: the measurements are not lost
            warnings.warn(f"{error}; the machine is returned unsaved", stacklevel=2)
    return measured


def _to_measure(
    devices: LocalMachine | ClusterMachine | Sequence[Device | str] | None,
) -> LocalMachine | ClusterMachine:
    """Return the machine to measure: without faults, with its workers in threads."""
    if isinstance(devices, ClusterMachine):
        return dataclasses.replace(devices.present, faults=())
    machine = devices if isinstance(devices, LocalMachine) else local_machine(devices)
    return dataclasses.replace(machine, faults=(), placement="threads")


def _check_rounds(
    data: Dataset,
    batch_sizes: Sequence[int],
    local_steps: Sequence[int],
    repeats: int,
) -> None:
    """Raise a ValueError for rounds that cannot be measured or would take too long."""
    for name, values, most, why in (
        ("batch_sizes", batch_sizes, len(data.train), "the training data has no more"),
        ("local_steps", local_steps, MOST_STEPS, "their batches are prepared together"),
        ("repeats", (repeats,), MOST_ROUNDS, "each runs all batch sizes and steps"),
    ):
        if not 1 <= max(values, default=0) <= most:
            raise ValueError(
                f"{name}={values!r}: pass numbers from 1 to {most:,}; {why}"
            )
    rounds = repeats * len(batch_sizes) * len(local_steps)
    if rounds > MOST_ROUNDS:
        raise ValueError(
            f"repeats={repeats}: these are {rounds} rounds for each worker, pass at "
            f"most {MOST_ROUNDS:,} rounds (repeats x batch sizes x local steps)"
        )


def _with_progress(policy: Policy, bar: tqdm) -> Policy:
    """Return a policy whose merges advance a bar; `init` resets it after a dry run."""

    def init(workers, num_examples):
        bar.reset()
        return policy.init(workers, num_examples)

    def react(state, event):
        state, actions = policy.react(state, event)
        bar.update(len(actions.merges))
        return state, actions

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
        local_rounds=len(found.errors),
        versions=f"jax {jax.__version__}",
    )
