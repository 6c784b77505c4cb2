"""Runs that are kept in a folder: found, checked against the call, continued, ended.

What a run is made from is described as JSON data and saved with every checkpoint. A
call that describes something else is an error that names the first difference.
"""

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jaxlib.version
import numpy as np

from hetjax import tree
from hetjax.api.run_recipes import recipes
from hetjax.checkpoint.checkpoint_folder import (
    FoundCheckpoint,
    find,
    gather_alone,
    holds_run,
)
from hetjax.checkpoint.checkpoint_manager import CheckpointManager
from hetjax.checkpoint.description import checksum
from hetjax.checkpoint.settings import Checkpoint
from hetjax.checkpoint.values import Encoder
from hetjax.checkpointable import Leaves
from hetjax.engine.interruption import INTERRUPTED
from hetjax.engine.job import Job
from hetjax.engine.records.history import History, Interruption
from hetjax.processes.agreement import current_processes
from hetjax.report.record import plain
from hetjax.report.runs import first_difference
from hetjax.report.versions import installed_version
from hetjax.runtimes.openers import is_real_machine
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import model_shapes

RESUME = ("auto", "never", "must")
# versions are said in the history, since the last bits may differ
_MAY_DIFFER = ("versions", "recipes")
# a signal that came when the run was over must not end later comparisons, too
_NOT_SAVED = ("error", "signal", "trace", "params", "model_state", "model")
_TRACE = "trace.jsonl"
_PART = "process_{}"  # of a folder: what a process keeps
_LONG = 3600.0  # [s] that others wait for one that writes; a death is noticed sooner
_MODELS = ("params", "model_state", "best_params", "best_model_state")


class OtherRun(ValueError):
    """A folder holds another run than the one that is asked for; `what` says which."""

    def __init__(self, what: str, advice: str):
        """What the folder holds, and what to do about it."""
        super().__init__(f"{what}{advice}")
        self.what = what


class RunFolder(NamedTuple):
    """A folder in which a run is kept, and what it held before."""

    manager: CheckpointManager
    found: FoundCheckpoint | None

    @property
    def trace(self) -> Path:
        """Where a real run is recorded, unless the call says another file."""
        return self.manager.folder / _TRACE

    @property
    def saved(self) -> dict[str, Any] | None:
        """The cut from which the run goes on, with a note of that; None: it begins."""
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
        """What is unusual about the checkpoint from which the run goes on."""
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
        """The evaluations that the run has made before."""
        if self.found is None:
            return []
        return self.found.values["run"]["records"]["history"]["evals"]


@contextmanager
def open_run_folder(
    checkpoint: Checkpoint, resume: str, about: dict[str, Any]
) -> Iterator[RunFolder]:
    """Open the folder of a run for as long as the block takes.

    Of several processes each keeps a part, in a folder inside it; all have to call this
    together. Errors: OtherRun if the folder holds another run than `about` describes,
    ValueError if it holds nothing although resume="must", or only damaged checkpoints;
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
                warnings.warn(f"{why}; an older checkpoint is taken", stacklevel=2)
        yield RunFolder(manager, found)
    finally:
        manager.close()


def process_folder(folder: Path) -> Path:
    """Where this process keeps its part of a run; an OtherRun if others began it."""
    processes, parts = current_processes(), first_process_folder(folder).exists()
    if processes.count > 1 and holds_run(folder):
        raise OtherRun(
            f"{folder} holds a run of one process, not of {processes.count}",
            ": start one, or choose another folder",
        )
    if processes.count == 1 and parts:
        raise OtherRun(
            f"{folder} holds a run of several processes",
            ": start as many, or choose another folder",
        )
    return folder / _PART.format(processes.index) if processes.count > 1 else folder


def first_process_folder(folder: Path) -> Path:
    """Where process 0 of several keeps its part of a run: all have the same models."""
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
    """What a run is made from, as JSON data; `data` is the data's fingerprint."""
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
        # last: where a setting has a name, the difference is named above
        "code": {name: checksum(part) for name, part in parts.items()},
        "versions": versions(),
        "recipes": recipes(strategy, task, job.data, machine),
    }
    # numbers may be NumPy's; the order decides which difference is named
    return {name: plain(value) for name, value in about.items()}


def versions() -> dict[str, str]:
    """The versions on which the last bits of a result depend."""
    return {
        "hetjax": installed_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.version.__version__,
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "platform": jax.default_backend(),
    }


def check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an OtherRun that names the first setting that differs.

    Real workers may differ, but a real run does not go on simulated. Another Python
    compiles the same code to something else, so that code is not compared then.
    """
    before = with_defaults(before)
    python = [about.get("versions", {}).get("python") for about in (before, now)]
    if python[0] != python[1]:
        before, now = ({**about, "code": None} for about in (before, now))
    if now["real"] and before.get("real"):
        before, now = ({**about, "machine": None} for about in (before, now))
    for name in [*now, *(k for k in before if k not in now)]:
        if name in _MAY_DIFFER:
            continue
        found = first_difference(name, before.get(name), now.get(name))
        if found is None:
            continue
        where, old, new = found
        differs = f"with other settings: {where} is {_short(old)} there, and "
        differs += f"{_short(new)} here"
        if name == "code":  # checksums say nothing
            differs = f"whose {where.removeprefix('code.')} has other settings or code"
        raise OtherRun(
            f"{folder} holds a run {differs}",
            '; take the same, another folder, or resume="never" (in scripts '
            "--overwrite), which begins anew",
        )


def with_defaults(about: dict[str, Any]) -> dict[str, Any]:
    """What a run is made from, with settings that earlier runs did not have."""
    since = {"schedule_seed": about["seed"], "compiled": "auto", "data_on": "auto"}
    return {**since, **about}


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# -- histories -------------------------------------------------------------------------


def is_finished(history: History) -> bool:
    """Is a run over for good, so that it must not be continued?"""
    return history.error is None and history.stopped != INTERRUPTED


def values_of(history: History) -> dict[str, Any]:
    """A finished run's history and models, as values to be kept."""
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
    """The history that `values_of` took apart."""
    history = History(**values["history"])
    like = jax.eval_shape(task.init, jax.random.key(0))
    for name, each in zip(_MODELS, (*like, *like), strict=True):
        leaves = [jax.numpy.asarray(x) for x in values["models"][name]]
        if leaves or not jax.tree.leaves(each):
            setattr(history, name, tree.filled(each, leaves, f"the run's {name}"))
    history.model = task.restore(history.params, history.model_state)
    return history
