"""The fault matrix: every strategy with every fault, on every kind of machine.

killed   a worker is lost at a third of the run, as scripted
hung     its thread does not answer for seconds (real workers), and then does
slowed   its steps take five times as long from a third of the run on
NaN      one step in fifty of any worker gives a gradient of NaN (on_nan="reset")
joins    it takes part from a third of the run on: scripted; on a mesh the run
         resumes from a checkpoint with one worker more
leaves   the run resumes from a checkpoint with one worker less (real workers)

A run "continues" if it reaches its end with finite parameters and later merges.
"""

import dataclasses
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hetjax as hj
from hetjax.machine import ScriptedFault
from hetjax.runtimes.threads import thread_executor

FAULTS = ("killed", "hung", "slowed", "NaN", "joins", "leaves")
MACHINES = ("clock", "threads", "mesh")
SECONDS = {"clock": 0.6, "threads": 1.5, "mesh": 1.0}  # of a run
HUNG = 4.5  # [s] of a run in which a thread hangs
CONTINUES, NOT_THERE = "continues", "-"


def matrix(
    strategies: Sequence[str], machines: Sequence[str], folder: Path
) -> dict[str, dict[str, str]]:
    """{"machine/strategy": {fault: outcome}}."""
    found: dict[str, dict[str, str]] = {}
    for machine in machines:
        for name in strategies:
            row = {f: _cell(machine, name, f, folder) for f in FAULTS}
            found[f"{machine}/{name}"] = row
            print(f"{machine}, {name}: {row}", file=sys.stderr)
    return found


ABOUT = """# Every strategy and every fault

The outcome of every fault for every strategy, on every kind of machine. This file is
written by `python experiments/benchmarks/reliability.py --parts=faults --table=FILE`.

A run "continues" if it reaches its end, with finite parameters, with merges after the
fault, and with the fault in its history. "-": there is no such thing. Three workers; on
threads and on a mesh these are CPU devices of one process.

- killed: a worker is lost at a third of the run
- hung: its thread does not answer for 3 s, and then does
- slowed: its steps take five times as long from a third of the run on
- NaN: one step in fifty of any worker has gradients of NaN (`on_nan="reset"`)
- joins: it takes part from a third of the run on (on a mesh, the run resumes from a
  checkpoint with one worker more)
- leaves: the run resumes from a checkpoint with one worker less (`hier_sgd` with a root
  alone, since its levels name the numbers of workers)

"""


def table(found: dict[str, dict[str, str]]) -> str:
    """The matrix in Markdown, with its legend."""
    lines = [
        "| machine | strategy | " + " | ".join(FAULTS) + " |",
        "|" + "---|" * (2 + len(FAULTS)),
    ]
    for key, row in found.items():
        machine, name = key.split("/")
        cells = [row[fault] for fault in FAULTS]
        lines.append(f"| {machine} | `{name}` | " + " | ".join(cells) + " |")
    return ABOUT + "\n".join(lines) + "\n"


def _cell(kind: str, name: str, fault: str, folder: Path) -> str:
    try:
        run = _RUNS[kind]
        return run(name, fault, folder)
    except ValueError as error:
        return f"refused: {str(error).splitlines()[0]}"


def strategy_of(name: str, others: bool = False) -> hj.Strategy:
    """The strategy, for three workers; `others`: for any number of them.

    A tree names its numbers of workers: with others it has a root alone.
    """
    settings: dict[str, Any] = {}
    if name == "hier_sgd":
        settings = {"levels": () if others else ((2, 1),)}
        settings |= {"local_steps": (2,)} if others else {}
    if name == "adaptive_sgd":
        settings = {"mega_batch": 40}
    return hj.STRATEGIES[name](batch_size=16, learning_rate=0.05, **settings)


def problem(fault: str) -> tuple[hj.Task, hj.data.Dataset]:
    """Digits; with the fault "NaN", one step in fifty has gradients of NaN."""
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=16), data)
    if fault != "NaN":
        return task, data

    def loss(params: Any, model_state: Any, batch: Any, key: jax.Array) -> Any:
        losses, state = task.loss(params, model_state, batch, key)
        unlucky = jax.random.uniform(jax.random.fold_in(key, 7)) < 0.02
        return losses * jnp.where(unlucky, jnp.nan, 1.0), state

    return task._replace(loss=loss), data


def _verdict(history: hj.History, after: float, wanted: str = "") -> str:
    """Whether the run continued after the fault, and the fault was noticed."""
    leaves = jax.tree.leaves(history.params)
    finite = all(np.isfinite(np.asarray(x)).all() for x in leaves)
    if history.stopped:
        return f"ends: {history.stopped}"
    if not finite:
        return "has parameters that are not finite"
    if not history.merge_times or history.merge_times[-1] <= after:
        return "stands still"
    what = {e.what for e in history.events} | {"nan" for w in history.workers if w.nans}
    idle = any(w.idle for w in history.workers)  # unnoticed, since it had no work
    if wanted and wanted not in what and not idle:
        return f"continues, but no worker {wanted}"
    return CONTINUES


_WANTED = {"killed": "lost", "hung": "lost", "slowed": "slow", "joins": "joined"}
_WANTED |= {"NaN": "nan", "leaves": "left"}


def _faults(fault: str, worker: str, when: float) -> tuple[ScriptedFault, ...]:
    if fault == "slowed":
        return (ScriptedFault(when, "slow", worker, 5.0),)
    if fault == "killed":
        return (ScriptedFault(when, "kill", worker),)
    if fault == "joins":
        return (ScriptedFault(when, "join", worker),)
    return ()


def _on_clock(name: str, fault: str, folder: Path) -> str:
    if fault in ("hung", "leaves"):
        return NOT_THERE  # nothing hangs on the virtual clock; to leave is to be killed
    seconds = SECONDS["clock"]
    machine = hj.machine.preset("uniform:3")
    worker = machine.workers[1].name
    faults = _faults(fault, worker, seconds / 3)
    machine = dataclasses.replace(machine, faults=faults)
    history = _train(name, fault, machine, seconds)
    return _verdict(history, seconds / 3, _WANTED[fault])


def _train(
    name: str, fault: str, machine: Any, seconds: float, **more: Any
) -> hj.History:
    task, data = problem(fault)
    strategy = strategy_of(name, others="checkpoint" in more)
    given = {"num_evals": 6, "on_nan": "reset", "progress": False, **more}
    return hj.train(task, data, machine, strategy, seconds=seconds, **given)


def _on_threads(name: str, fault: str, folder: Path) -> str:
    if fault == "leaves":
        return _with_others(name, folder, placement="threads", before=3, after=2)
    seconds = HUNG if fault == "hung" else SECONDS["threads"]
    machine = hj.local_machine(
        ["cpu:0", "cpu:1", "cpu:2"], faults=_faults(fault, "cpu:1", seconds / 3)
    )
    if fault != "hung":
        history = _train(name, fault, machine, seconds)
        return _verdict(history, seconds / 3, _WANTED[fault])
    with _Hangs("cpu:1", after=0.5, seconds=3.0):
        history = _train(name, fault, machine, seconds)
    return _verdict(history, 2.0, _WANTED[fault])


class _Hangs:
    """Within the block, a worker's thread hangs once, some time after its first round.

    It sleeps where its device would compute.
    """

    def __init__(self, worker: str, after: float, seconds: float):
        """Times in seconds."""
        self._name, self._after = f"hetjax worker {worker}", after
        self._seconds, self._first, self._done = seconds, None, False

    def __enter__(self) -> None:
        self._before: Callable[..., Any] = thread_executor._WorkerThread._launch

        def work(thread: threading.Thread, group: Any) -> Any:
            if thread.name == self._name and not self._done:
                self._first = self._first or time.monotonic()
                if time.monotonic() - self._first > self._after:
                    self._done = True
                    time.sleep(self._seconds)
            return self._before(thread, group)

        thread_executor._WorkerThread._launch = work  # pyright: ignore[reportAttributeAccessIssue]

    def __exit__(self, *error: object) -> None:
        thread_executor._WorkerThread._launch = self._before  # pyright: ignore


def _on_mesh(name: str, fault: str, folder: Path) -> str:
    if fault in ("killed", "hung", "slowed"):
        return NOT_THERE  # one program: a death ends it, and all wait for the slowest
    if not strategy_of(name).policy.bulk_synchronous:
        return NOT_THERE
    if fault == "NaN":
        machine = hj.local_machine(["cpu:0", "cpu:1", "cpu:2"], placement="mesh")
        history = _train(name, fault, machine, SECONDS["mesh"])
        return _verdict(history, SECONDS["mesh"] / 3, _WANTED[fault])
    before, after = (2, 3) if fault == "joins" else (3, 2)
    return _with_others(name, folder, placement="mesh", before=before, after=after)


def _with_others(
    name: str, folder: Path, *, placement: Any, before: int, after: int
) -> str:
    """A run that is interrupted, and resumes with another number of workers."""
    seconds, path = SECONDS[placement], folder / "others"
    shutil.rmtree(path, ignore_errors=True)

    class Stop(Exception):
        pass

    def on_eval(point: dict[str, float]) -> None:
        if point["seconds"] >= seconds / 2:
            raise Stop

    for number, callback in ((before, on_eval), (after, None)):
        names = [f"cpu:{k}" for k in range(number)]
        machine = hj.local_machine(names, placement=placement)
        history = _train(
            name,
            "",
            machine,
            seconds,
            checkpoint=path,
            every="1 eval",
            on_eval=callback,
            on_error="keep",
        )
    return _verdict(history, seconds / 2, "joined" if after > before else "left")


_RUNS = {"clock": _on_clock, "threads": _on_threads, "mesh": _on_mesh}
