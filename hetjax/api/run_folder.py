"""Folders of checkpointed runs: find, check against the call, resume and finish a run.

A description of the run, as JSON data, is saved with every checkpoint. A call with
another description is an error that names the first difference.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from hetjax import tree
from hetjax.api.run_recipes import recipes
from hetjax.checkpoint.checkpoint_files import (
    FoundCheckpoint,
    find,
    gather_alone,
    holds_run,
)
from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.checkpoint.settings import Checkpoint
from hetjax.checkpoint.values import Encoder
from hetjax.checkpointable import Leaves
from hetjax.engine.interruption import INTERRUPTED
from hetjax.engine.job import Job
from hetjax.engine.records.history import History, Interruption, command_line
from hetjax.made_of import made_of
from hetjax.processes.exchange import current_processes
from hetjax.report.record import plain
from hetjax.report.runs import first_difference
from hetjax.report.versions import installed_versions
from hetjax.runtimes.openers import is_real_machine
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import model_shapes

# a change of versions is noted in the history, since the last bits may differ
_MAY_DIFFER = ("versions", "recipes", "command")
# a signal after the end of the run must not end later comparisons
_NOT_SAVED = ("error", "signal", "trace", "params", "model_state", "model")
_TRACE = "trace.jsonl"
_PART = "process_{}"  # the folder of a process
_LONG = 3600.0  # [s] that processes wait for one that writes, unless it dies
_MODELS = ("params", "model_state", "best_params", "best_model_state")


class OtherRun(ValueError):
    """The folder holds a run other than the requested one; `what` describes it."""

    def __init__(self, what: str, advice: str):
        """`what` the folder holds, and advice on what to do."""
        super().__init__(f"{what}{advice}")
        self.what = what


class RunFolder(NamedTuple):
    """The folder of a checkpointed run, and the checkpoint found in it."""

    manager: CheckpointManager
    found: FoundCheckpoint | None

    @property
    def trace(self) -> Path:
        """The file in which a real run is recorded by default."""
        return self.manager.folder / _TRACE

    @property
    def saved(self) -> dict[str, Any] | None:
        """The snapshot to resume from, with a note about it; None for a new run."""
        if self.found is None:
            return None
        values = self.found.values
        run = values["run"]
        records = run["records"]
        history = records["history"]
        why = Interruption(history["duration"], self.found.number, self._note())
        history = {**history, "interruptions": [*history["interruptions"], why]}
        return {**values, "run": {**run, "records": {**records, "history": history}}}

    def _note(self) -> str:
        """What is unusual about the checkpoint from which the run resumes."""
        assert self.found is not None
        notes = [f"damaged: {why}" for why in self.found.damaged]
        before, now = self.found.about.get("versions", {}), versions()
        notes += [
            f"made with {name} {before.get(name)}, continued with {now[name]}"
            for name in now
            if before.get(name) != now[name]
        ]
        return "; ".join(notes)

    @property
    def evals(self) -> list[dict[str, float]]:
        """The evaluations of the run so far."""
        if self.found is None:
            return []
        return self.found.values["run"]["records"]["history"]["evals"]


@contextmanager
def open_run_folder(
    checkpoint: Checkpoint, resume: str, about: dict[str, Any]
) -> Iterator[RunFolder]:
    """Open the folder of a run for the duration of the block.

    Each of several processes has its own folder inside it; all must call this together.
    Errors: OtherRun if the folder holds a run other than `about` describes; ValueError
    if it holds no run although resume="must", or only damaged checkpoints;
    BlockingIOError if it is in use.
    """
    processes, gather = current_processes(), gather_alone
    files = (_TRACE,) if about["real"] else ()
    folder = process_folder(checkpoint.folder)
    if processes.count > 1:
        gather = partial(processes.gather, timeout=_LONG)
    if resume == "must" and not folder.is_dir():
        raise ValueError(f'resume="must": {folder} is no folder')
    manager = CheckpointManager(replace(checkpoint, path=folder), about, gather)
    try:
        found = None if resume == "never" else find(folder, gather)
        if found is None and resume == "must":
            raise ValueError(f'resume="must": {folder} holds no checkpoint of a run')
        if found is None:
            manager.start_over(*files)
        else:
            check_same(folder, found.about, about)
            evals = 0 if found.finished else len(RunFolder(manager, found).evals)
            manager.resume_from(found.number, evals, *files)
            for why in found.damaged:
                warnings.warn(f"{why}; an older checkpoint is used", stacklevel=2)
        yield RunFolder(manager, found)
    finally:
        manager.close()


def process_folder(folder: Path) -> Path:
    """Return this process's folder; an OtherRun for another number of processes."""
    processes, parts = current_processes(), first_process_folder(folder).exists()
    if processes.count > 1 and holds_run(folder):
        raise OtherRun(
            f"{folder} holds a run of one process, not of {processes.count}",
            ": start one process, or choose another folder",
        )
    if processes.count == 1 and parts:
        raise OtherRun(
            f"{folder} holds a run of several processes",
            ": start the same number, or choose another folder",
        )
    return folder / _PART.format(processes.index) if processes.count > 1 else folder


def first_process_folder(folder: Path) -> Path:
    """Return the folder of process 0 of several: all have the same models."""
    return folder / _PART.format(0)


def describe_run(
    strategy: Strategy,
    job: Job,
    machine: Any,
    data: dict[str, Any],
    *,
    target: float | None,
    epochs: float | None,
) -> dict[str, Any]:
    """Describe a run's settings as JSON data; `data` is the data's fingerprint."""
    task = job.programs.task
    parts = {
        "policy": strategy.policy,
        "local update": strategy.local,
        "merge": strategy.merges,
        "sampler": strategy.sampler,
        "learning rate": strategy.learning_rate,
        "model": task.init,
        "loss": task.loss,
        "metrics": task.metrics,
    }
    about = {
        "name": job.name,
        "strategy": {"name": strategy.name, **plain(strategy.settings)},
        "batch_size": strategy.batch_size,
        "seed": int(job.seed),
        "schedule_seed": int(job.schedule),
        "compiled": job.compiled,
        "data_on": job.data_on,
        "seconds": job.instants[-1],
        "num_evals": len(job.instants) - 1,
        "eval_examples": job.num_test if job.whole_test else None,
        "target": target,
        "epochs": epochs,
        "on_nan": job.on_nan,
        "on_lost_worker": job.on_lost_worker,
        "real": is_real_machine(machine),
        "machine": plain(machine.record()),
        "processes": current_processes().count,
        "metric": task.metric,
        "output": task.output or None,
        "model": model_shapes(task),
        "data": data,
        # last, so that a difference is reported by the setting's name, if it has one
        "parts": {name: made_of(part) for name, part in parts.items()},
        "versions": versions(),
        "command": command_line(),
        "recipes": recipes(strategy, task, job.data, machine),
    }
    # numbers may be NumPy's; the order decides which difference is reported
    return {name: plain(value) for name, value in about.items()}


def versions() -> dict[str, str]:
    """Return the versions on which the last bits of a result depend."""
    return {**installed_versions(), "platform": jax.default_backend()}


def check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an OtherRun that names the first setting that differs.

    Real workers may differ, but a real run does not continue on a simulated machine.
    """
    if now["real"] and before.get("real"):
        before, now = ({**about, "machine": None} for about in (before, now))
    tasks = [about["recipes"]["task"] for about in (before, now)]
    if not any("unknown" in recipe for recipe in tasks):
        before, now = {**before, "task": tasks[0]}, {**now, "task": tasks[1]}
    for name in [*now, *(k for k in before if k not in now)]:
        if name in _MAY_DIFFER:
            continue
        found = first_difference(name, before.get(name), now.get(name))
        if found is None:
            continue
        where, old, new = found
        raise OtherRun(
            f"{folder} holds a run with other settings: {where} is {_short(old)} "
            f"there, and {_short(new)} here",
            '; pass the same settings, another folder, or resume="never" (in scripts '
            "--overwrite), which begins anew",
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- histories -------------------------------------------------------------------------


def is_finished(history: History) -> bool:
    """Whether a run is complete, so that it must not be resumed."""
    return history.error is None and history.stopped != INTERRUPTED


def values_of(history: History) -> dict[str, Any]:
    """Return the history and models of a finished run as values to save."""
    fields = {
        name: value
        for name, value in vars(history).items()
        if name not in (*_NOT_SAVED, *_MODELS)
    }
    fields["evals"] = list(map(dict, history.evals))
    models = {name: Leaves(jax.tree.leaves(getattr(history, name))) for name in _MODELS}
    try:
        Encoder().encode(history.settings, "settings")
    except ValueError:  # there are functions among them, for example
        fields["settings"] = plain(history.settings)
    return {"history": fields, "models": models}


def history_of(values: dict[str, Any], task: Task) -> History:
    """Return the history from the result of `values_of`."""
    history = History(**values["history"])
    like = jax.eval_shape(task.init, jax.random.key(0))
    for name, each in zip(_MODELS, (*like, *like), strict=True):
        leaves = [jax.numpy.asarray(x) for x in values["models"][name]]
        if leaves or not jax.tree.leaves(each):
            setattr(history, name, tree.filled(each, leaves, f"the run's {name}"))
    history.model = task.restore(history.params, history.model_state)
    return history
