"""Chooses the player of a simulated run, and where its data live.

The choice depends on the request and the platform, never on timing, as players differ
in the last bits of a result.
"""

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from hetjax import tree
from hetjax.data.device_rows import device_bytes
from hetjax.engine import device_data
from hetjax.engine.device_data import device_memory, fits
from hetjax.engine.job import Job
from hetjax.engine.placement import Device
from hetjax.engine.records.history import BY_REQUEST, REFERENCE
from hetjax.engine.rollback import frozen
from hetjax.engine.tape import StartRound
from hetjax.machine import WorkerInfo
from hetjax.runtimes.compiled.batch_sources import MAX_SENT_BYTES
from hetjax.runtimes.step_modes import flops_per_example, loops_are_fast, step_bytes
from hetjax.strategies.types import Strategy

STATE_SHARE = 0.5  # ... for replicas and states, in `COPIES` copies
COPIES = 3  # of the run state: before a launch, after it, and at a mark
STEPS_SHARE = 0.2  # ... for intermediates of steps that run side by side
ROWS_ONLY = 2**25  # bytes of a replica whose steps touch few rows (see below)
FLOPS = {"cpu": 2e10}  # ahead of the results, at most: a few seconds
FLOPS_ELSEWHERE = 2e13
MAX_STEPS_AHEAD = 16384  # of the results
SMALL_MODEL = 2**17  # bytes up to which rounds of several steps are compiled on a CPU
EXACT_SIZES = 4  # of batches that must not be padded: each compiles its own step
MAX_RUNS = 64  # that are played at once
MAX_EVAL_BATCHES = 16  # of an evaluation in one program
# the kinds of machine in checkpoints, by whether the run is compiled
CHECKPOINT_KINDS = {True: "simulated, compiled", False: "simulated"}


class PlayerChoice(NamedTuple):
    """The player of a run, and the reason."""

    compiled: bool
    on_device: bool  # whether the training data are on the device
    why: str  # the reason for the reference player, or ""

    @property
    def description(self) -> str:
        """The choice as text, for the history."""
        return "compiled" if self.compiled else f"{REFERENCE}{self.why}"


def choose(
    strategy: Strategy, job: Job, workers: int, devices: Sequence[Device]
) -> PlayerChoice:
    """Choose the player of a simulated run.

    Errors: a ValueError if `compiled=True` or `data_on="device"` is impossible.
    """
    it_fits = fits(job.train, devices[0])
    if job.data_on == "device" and not it_fits:
        raise ValueError(
            'data_on="device": the training split is not in memory, or is larger than '
            f"{device_data.DATA_SHARE:.0%} of the device's memory; omit data_on"
        )
    on_device = it_fits and job.data_on != "host"
    if job.compiled is False:
        return PlayerChoice(False, False, BY_REQUEST)
    why = _obstacle(strategy, job, workers, devices)
    if why and job.compiled is True:
        raise _refusal(job, why)
    if why and job.data_on == "device":
        raise ValueError(
            f'{job.name}: data_on="device" needs a compiled run, but {why}, so that '
            "the reference player is used; omit data_on"
        )
    return PlayerChoice(not why, on_device and not why, why)


def _refusal(job: Job, impossible: str) -> ValueError:
    """Return the error for a run that must be compiled but cannot be."""
    if job.continues:
        return ValueError(
            f"{job.name}: the checkpointed run was compiled, but now {impossible}; "
            "resume it with the original settings, such as on one device"
        )
    return ValueError(f"{job.name}: compiled=True: {impossible}; omit compiled")


def with_same_player(job: Job, kind: str) -> Job:
    """Return the job with the player of a checkpoint of this kind, to the bit."""
    before = [compiled for compiled, name in CHECKPOINT_KINDS.items() if name == kind]
    return job._replace(compiled=before[0]) if before else job


def _obstacle(
    strategy: Strategy, job: Job, workers: int, devices: Sequence[Device]
) -> str:
    """Return why a run cannot be compiled, or would be slower, unless asked for."""
    if len(devices) > 1:
        return "its workers are spread over several devices"
    held = state_bytes(strategy, job, workers)
    if held > STATE_SHARE * device_memory(devices[0]):
        return f"its replicas need {held / 2**30:.1f} GiB, which do not fit"
    if job.compiled is True:
        return ""
    platform = devices[0].platform
    if not loops_are_fast(job, platform):
        return "a convolution in a loop is slow on a CPU"
    observes = strategy.sampler.observe is not None
    if observes and not strategy.policy.bulk_synchronous:
        return "its sampler observes the losses of every round"
    # a compiled round copies its replica, although its steps touch few rows
    sparse = platform == "cpu" and job.train.sparse
    if sparse and _replica_bytes(strategy, job) > ROWS_ONLY:
        return "its steps touch few rows of a large model"
    return ""


def state_bytes(strategy: Strategy, job: Job, workers: int) -> int:
    """Return the bytes of all copies of replicas and states in a compiled run."""
    stacks = 3 if strategy.merges[0].updates_busy_workers else 1
    states = 2 * _model_bytes(job) * len(strategy.merges)  # a center and its momentum
    return (_replica_bytes(strategy, job) * workers * stacks + states) * COPIES


def compiled_bytes(
    strategy: Strategy, job: Job, workers: int, device: Device
) -> int | None:
    """Return the bytes of a compiled run on a device, without its steps' intermediates.

    None if the run is not compiled.
    """
    choice = choose(strategy, job, workers, [device])
    if not choice.compiled:
        return None
    data = device_bytes(job.train) if choice.on_device else MAX_SENT_BYTES
    return state_bytes(strategy, job, workers) + (data or 0)


def _model_bytes(job: Job) -> int:
    return tree.num_bytes(job.programs.model_like)


def _replica_bytes(strategy: Strategy, job: Job) -> int:
    merge = job.programs.merges_of(strategy)[0]
    requires = (*merge.requires, *strategy.local.requires)
    return tree.num_bytes(job.programs.replica_like(strategy.local, requires))


def reconsider(
    choice: PlayerChoice,
    strategy: Strategy,
    job: Job,
    workers: tuple[WorkerInfo, ...],
    begins: Sequence[Any],
    platform: str,
) -> PlayerChoice:
    """Return the choice, revised now that the first entries of the tape are known.

    Errors: a ValueError if the run must be compiled but cannot be.
    """
    if not choice.compiled:
        return choice
    rounds = [e for e in begins if isinstance(e, StartRound)]
    sizes = {len(e.rows[0]) for e in rounds if len(e.rows)}
    why = ""
    several = any(len(e.rows) > 1 for e in rounds) and platform == "cpu"
    if several and job.compiled is not True and _model_bytes(job) > SMALL_MODEL:
        why = "rounds of several steps of such a model are faster on threads"
    if job.programs.exact and len(sizes) > EXACT_SIZES and job.compiled is not True:
        why = f"its batches of {len(sizes)} sizes cannot be padded to few"
    try:
        frozen(strategy.policy.init(workers, len(job.train))[0])
    except (TypeError, pickle.PicklingError) as error:
        why = f"the state of its policy cannot be copied ({error})"
    except Exception:  # the run itself raises it
        return choice
    if why and job.compiled is True:
        raise _refusal(job, why)
    return PlayerChoice(False, False, why) if why else choice


def max_runs_at_once(strategy: Strategy, job: Job, workers: int, device: Device) -> int:
    """Return the maximum number of runs with one schedule that are played at once.

    It is 1 with the reference player, and if the schedule depends on results.
    """
    choice = choose(strategy, job, workers, [device])
    observes = strategy.sampler.observe is not None
    observes = observes or any(merge.required_metrics for merge in strategy.merges)
    if not choice.compiled or observes or job.on_nan != "stop":
        return 1
    # evaluation batches are streamed, or too many
    if not isinstance(job.test, list) or len(job.test) > MAX_EVAL_BATCHES:
        return 1
    memory = device_memory(device)
    held = max(1, state_bytes(strategy, job, workers))
    step = max(1, step_bytes(job) * strategy.batch_size)
    fit = min(STATE_SHARE * memory / held, STEPS_SHARE * memory / step)
    return max(1, min(MAX_RUNS, int(fit)))


def num_lanes(job: Job, strategy: Strategy, workers: int, device: Device) -> int:
    """Return the maximum number of rounds that run side by side.

    On a CPU, rounds run in turn: on two cores, MLPs of 16 to 512 hidden units took as
    long or longer side by side (experiments/benchmarks/README.md, "The virtual clock").
    """
    if device.platform == "cpu":
        return 1
    each = max(1, step_bytes(job) * strategy.batch_size * _runs(job))
    return max(1, min(workers, int(STEPS_SHARE * device_memory(device) / each)))


def _runs(job: Job) -> int:
    """Return the number of runs that are played at once."""
    return 1 if job.variants is None else job.variants.num_runs


def max_steps_ahead(strategy: Strategy, job: Job, platform: str) -> float:
    """Return the maximum steps ahead of the results, so that Ctrl-C acts soon."""
    # forward and backward
    step = flops_per_example(job) * 3 * strategy.batch_size * _runs(job)
    flops = FLOPS.get(platform, FLOPS_ELSEWHERE)
    return min(MAX_STEPS_AHEAD / _runs(job), flops / max(1, step))
