"""Runs that are killed with SIGKILL at random moments, and started again.

Each run is a process of its own (this module): it trains with a checkpoint folder, and
writes its results when it is complete. The parent kills it a random time after it
began to train, until the number of kills is reached; then it may end.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

STRATEGIES = ("adaptive_sgd", "sma", "hier_sgd", "downpour", "easgd")
MOST = 1.5  # [s] after which a process is killed, at most
EVERY = "0.1s"  # of checkpoints


class Killed(NamedTuple):
    """The outcome of one run."""

    strategy: str
    kills: int
    lost: bool  # whether it never ended, or ended with an error
    equal: bool  # simulated: as the uninterrupted run; real: its replay is equal
    why: str


def killed_runs(
    kind: str,
    seconds: float,
    strategies: Sequence[str],
    kills: int,
    folder: Path,
    seed: int,
) -> list[Killed]:
    """Kill runs of these strategies `kills` times in all; `kind` is clock or threads.

    Two runs at a time, each of `seconds` of its clock.
    """
    each = [kills // len(strategies)] * len(strategies)
    each[0] += kills - sum(each)

    def one(numbered: tuple[int, str]) -> Killed:
        number, name = numbered
        rng = random.Random(f"{seed}/{kind}/{name}")
        place = folder / f"{kind}_{name}"
        return _killed_run(kind, name, seconds, each[number], place, rng)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, enumerate(strategies)))


def _killed_run(
    kind: str, name: str, seconds: float, kills: int, folder: Path, rng: random.Random
) -> Killed:
    folder.mkdir(parents=True)
    done, tries, status = 0, 0, -9
    while status == -9 and tries < 3 * kills + 3:
        tries += 1
        after = rng.uniform(0, MOST) if done < kills else None
        status, err = _child(kind, name, seconds, folder, after)
        done += status == -9
        progress = (
            f"{kind} {name}: try {tries}, {done} of {kills} killed, status {status}"
        )
        print(progress, file=sys.stderr)
        if status == 0 and done < kills:  # it ended before: kill another one
            shutil.rmtree(folder / "run", ignore_errors=True)
            status = -9
    if status != 0:
        return Killed(name, done, True, False, err.strip().splitlines()[-1:][0])
    found = json.loads((folder / "found.json").read_text())
    if kind == "threads":
        return Killed(
            name, done, False, found["replayed"] == "equal", found["replayed"]
        )
    status, err = _child(kind, name, seconds, folder, None, whole=True)
    whole = json.loads((folder / "whole.json").read_text())
    names = [key for key in whole if whole[key] != found[key]]
    return Killed(name, done, False, not names, ", ".join(names))


def _child(
    kind: str,
    name: str,
    seconds: float,
    folder: Path,
    after: float | None,
    whole: bool = False,
) -> tuple[int, str]:
    """Run a process; kill it a time after it began [s]. Returns (status, err)."""
    command = [sys.executable, "-m", __name__, kind, name, str(seconds), str(folder)]
    environment = {**os.environ, "JAX_PLATFORMS": os.environ.get("JAX_PLATFORMS", "")}
    cache = folder.parent / "compiled"
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "HETJAX_CACHE": str(folder.parent / "measured"),
    }
    process = subprocess.Popen(
        [*command, "whole"] if whole else command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert process.stdout is not None
    process.stdout.readline()  # "begins"
    if after is not None:
        time.sleep(after)
        process.kill()
    _, err = process.communicate()
    return process.returncode, err


# -- the process that is killed --------------------------------------------------------


def main(kind: str, name: str, seconds: str, folder: str, whole: str = "") -> None:
    """Train; write whole.json or found.json."""
    import jax

    jax.config.update("jax_num_cpu_devices", 3)
    import hetjax as hj

    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=32), data)
    settings = {"levels": ((2, 2),)} if name == "hier_sgd" else {}
    if kind == "threads":
        machine: Any = hj.local_machine(["cpu:0", "cpu:1", "cpu:2"])
        settings = {"levels": ((2, 1),)} if settings else {}
    else:
        machine = hj.machine.preset("v100x4", noise=0.1)
    strategy = hj.STRATEGIES[name](batch_size=64, learning_rate=0.1, **settings)
    print("begins", flush=True)
    history = hj.train(
        task,
        data,
        machine,
        strategy,
        seconds=float(seconds),
        num_evals=40,
        checkpoint=None if whole else hj.Checkpoint(f"{folder}/run", every=EVERY),
        progress=False,
    )
    found = _found(history)
    if kind == "threads":
        trace = f"{folder}/run/trace.jsonl"
        found["replayed"] = hj.replay(trace, task, data, progress=False).replayed
    file = "whole.json" if whole else "found.json"
    Path(folder, file).write_text(json.dumps(found))


def _found(history: Any) -> dict[str, Any]:
    """Everything that a run measured, and the bits of its parameters."""
    import jax
    import numpy as np

    leaves = jax.tree.leaves((history.params, history.model_state))
    bits = b"".join(np.asarray(x).tobytes() for x in leaves)
    return {
        "evals": history.evals,
        "merges": history.merges,
        "merge_times": list(history.merge_times),
        "timeline": list(history.timeline.numbers),
        "workers": [repr(w) for w in history.workers],
        "events": [list(e) for e in history.events],
        "params": hashlib.sha256(bits).hexdigest(),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
