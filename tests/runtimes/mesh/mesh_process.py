"""One process of a run on a mesh, as a script whose output the tests compare.

Usage: mesh_process.py TASK
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import jax
import numpy as np

from hetjax.processes import exchange, lifecycle

HERE = lifecycle.initialize(timeout=60, heartbeat=5)

from mesh_runs import MeshMachine, run  # noqa: E402  they use JAX
from real_runs import DATA, TASK, poisoned_task  # noqa: E402

import hetjax as hj  # noqa: E402
from hetjax.runtimes.mesh.mesh_layout import MeshLayout  # noqa: E402

COMMON = {"batch_size": 4, "learning_rate": 0.1}
STEPS = (4, 2, 1, 4)
STRATEGIES = {  # strategy, steps of a superstep
    "elastic": (hj.elastic_sgd(**COMMON, local_steps=2), 2),
    "biased": (hj.biased_local_sgd(**COMMON, local_steps=STEPS), 4),
    "fed_acc": (hj.fed_acc(**COMMON, local_steps=2), 2),
    "sma two levels": (hj.sma(**COMMON, two_level=2), 1),
    "hier": (hj.hier_sgd(**COMMON, levels=(2,), local_steps=(1, 2)), 1),
}


def digest(history):
    leaves = [np.asarray(x) for x in jax.tree.leaves(history.params)]
    bits = b"".join(x.tobytes() for x in leaves)
    return {
        "bits": hashlib.sha256(bits).hexdigest()[:16],
        "params": [x.astype(float).ravel().tolist() for x in leaves],
        "losses": [p["loss"] for p in history.evals],
        "updates": [p["updates"] for p in history.evals],
        "stopped": history.stopped,
        "events": [(e.worker, e.what) for e in history.events],
    }


def layout():
    return MeshLayout(tuple(jax.devices()), 1)


def equal():
    """Every strategy, and a NaN."""
    found = {}
    for name, (strategy, steps) in STRATEGIES.items():
        machine = MeshMachine(layout())
        history = run(machine, strategy, 5.5 * steps, num_evals=2)
        found[name] = digest(history)
    poisoned = poisoned_task()
    strategy, steps = STRATEGIES["elastic"]
    options = {"task": poisoned, "on_nan": "reset"}
    found["nan"] = digest(run(MeshMachine(layout()), strategy, 5.5 * steps, **options))
    print(json.dumps(found))


def train(strategy=STRATEGIES["elastic"][0], seconds=1.0, data=DATA, **options):
    machine = hj.local_machine(placement="mesh", step_mode="fused")
    return hj.train(TASK, data, machine, strategy, seconds=seconds, **options)


def disagree():
    """Process 1 is started with another setting."""
    learning_rate = 0.1 + (HERE.index == 1)
    train(hj.elastic_sgd(batch_size=4, learning_rate=learning_rate, local_steps=2))


def real():
    """Wall-clock time, on which process 0 decides."""
    history = train(num_evals=4)
    print(json.dumps(digest(history)))


def interrupt():
    """Ctrl-C reaches the processes at different times; only process 0's counts."""
    calls = []

    def on_eval(point):
        calls.append(point)
        if len(calls) == 2 + HERE.index:
            os.kill(os.getpid(), signal.SIGINT)

    history = train(seconds=60.0, num_evals=240, on_eval=on_eval)
    print(json.dumps(digest(history)))


def callback():
    """An exception in process 0's callback ends the run of all."""

    def on_eval(point):
        if HERE.index == 0 and point["updates"]:
            raise RuntimeError("the disk is full")

    history = train(on_eval=on_eval, on_error="keep", seconds=60.0, num_evals=240)
    print(json.dumps(digest(history)))


def leave():
    """Process 1 leaves during the run, with an exception that nothing reports."""

    def on_eval(point):
        if HERE.index == 1 and point["updates"]:
            sys.exit(3)

    train(on_eval=on_eval, seconds=60.0, num_evals=240)


def die():
    """Process 1 is killed during the run."""

    def on_eval(point):
        if HERE.index == 1 and point["seconds"] >= 0.5:
            os.kill(os.getpid(), signal.SIGKILL)

    train(seconds=60.0, num_evals=240, on_eval=on_eval)


class Slow:
    """Rows that are slow to read, while other processes of the machine compute."""

    def __init__(self, split, seconds=0.0):
        self.split, self.seconds = split, seconds

    def __len__(self):
        return len(self.split)

    def __getitem__(self, row):
        time.sleep(self.seconds)
        return self.split.x[row], int(self.split.y[row])


def checkpointed():
    """A run in the folder $FOLDER; $STOP: a signal, after n evaluations, to a process.

    It is sent when all processes have a checkpoint. The run is long, since
    a busy machine may stall for seconds, which count.
    """
    what, after, where = os.environ.get("STOP", "none 0 0").split()
    calls, sent, folder = [], [], Path(os.environ["FOLDER"])

    def on_eval(point):
        calls.append(point["seconds"])
        if what == "error" and HERE.index == int(where) and len(calls) == int(after):
            raise RuntimeError("mine")
        if len(calls) < int(after) or HERE.index != int(where) or sent:
            return
        parts = [folder / f"process_{k}" for k in range(HERE.count)]
        saved = all(any(part.glob("checkpoint-*")) for part in parts)
        if what.startswith("SIG") and saved:
            sent.append(what)
            os.kill(os.getpid(), getattr(signal, what))

    on_failure = os.environ.get("ON_FAILURE", "continue")
    checkpoint = hj.Checkpoint(folder, every="1 eval", keep=3, on_failure=on_failure)
    slow = hj.data.from_source(Slow(DATA.train, 2e-3), Slow(DATA.test), x=0, y=1)
    history = train(
        data=slow,
        on_error="keep",
        seconds=6.0,
        num_evals=20,
        on_eval=on_eval,
        checkpoint=checkpoint,
    )
    if history.stopped == "":  # the model of a run, and one that process 0 saves
        if exchange.is_first():
            history.save_model(folder / "model", overwrite=True)
        HERE.gather("saved", 0)
        for path in (folder, folder / "model"):
            assert (
                hj.load_model(path, TASK)(DATA.test.x) == history.model(DATA.test.x)
            ).all()
    found = {
        **digest(history),
        "signal": history.signal,
        "seconds": [p["seconds"] for p in history.evals],
        "calls": calls,
        # their seconds differ between the processes
        "cuts": [(cut.checkpoint, cut.why) for cut in history.interruptions],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    tasks = (equal, disagree, real, interrupt, callback, leave, die, checkpointed)
    task = {t.__name__: t for t in tasks}[sys.argv[1]]
    try:
        task()
    except (ValueError, exchange.ProcessDied) as error:
        lifecycle.end(2, error)
