"""The machines and tasks of the leaderboard, and how long a run takes on each."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import hetjax as hj
from experiments.common import characters, named_data, small_cnn
from hetjax.data.batching import nonzeros_per_example
from hetjax.data.held_out import FEW, held_out_rows
from hetjax.machine import Machine

# Names of presets, and how many times as many batches a run takes: of 32 workers each
# would otherwise compute a few dozen only.
MACHINES = {
    "v100x4": 1.0,
    "v100x3+k80": 1.0,
    "four-speeds": 1.0,
    "lognormal32": 4.0,
    "rtx4090+epyc7543": 1.0,
    "v100x4-churn": 1.0,
}
FAULT_SECONDS = 6.0  # of a machine whose workers leave: three cycles of v100x4-churn
ALPHA = 0.3  # of the Dirichlet distribution from which unlike shards are drawn
PARTITIONS = ("iid", "unlike")


class Problem(NamedTuple):
    """A task with its data, and the classes by which unlike shards are made."""

    task: hj.Task
    data: hj.data.Dataset
    classes: Any  # of the training split: [N], or [N, C] CSR


class Setting(NamedTuple):
    """How a task is trained."""

    make: Callable[[], Problem]
    batch_size: int  # of each worker
    batches: int  # that all workers together compute in a run, if none ever waits
    rates: tuple[float, ...]  # inner ones, half a decade apart
    what: str  # for the page
    needs: str = ""  # a folder in $HETJAX_DATA, without which it is left out


def _digits() -> Problem:
    data = hj.data.digits(shift=1)
    task = hj.classification(hj.models.mlp(hidden=64), data)
    return Problem(task, data, data.train.y)


def _cifar10() -> Problem:
    data = small_cnn.cut(named_data.load("cifar10"), train=4096, test=512)
    task = hj.classification(small_cnn.small_cnn(), data)
    return Problem(task, data, data.train.y)


def _characters() -> Problem:
    data, languages = characters.text()
    return Problem(characters.task(data), data, languages)


def _xmc(data: hj.data.Dataset, hidden: int) -> Problem:
    task = hj.classification(hj.models.sparse_mlp(hidden=hidden), data)
    return Problem(task, data, data.train.y)


def _synthetic() -> Problem:
    data = hj.data.synthetic_xmc(
        rows=4096,
        test_rows=512,
        features=500,
        labels=50,
        nonzeros=20.0,
        labels_per_row=1.5,
    )
    return _xmc(data, 32)


def _bibtex() -> Problem:
    return _xmc(named_data.load("bibtex"), 16)


TASKS = {
    "digits": Setting(
        *(_digits, 32, 2400, (0.1, 0.3, 1.0, 3.0)),
        "an MLP with 64 hidden units, handwritten digits at nine positions",
    ),
    "cifar10": Setting(
        *(_cifar10, 16, 800, (0.01, 0.03, 0.1, 0.3)),
        "a CNN of two convolutions, 4,096 images of CIFAR-10 at half the resolution",
        needs="cifar10",
    ),
    "characters": Setting(
        *(_characters, 8, 1200, (0.1, 0.3, 1.0, 3.0)),
        "a transformer of one block, characters of eight made-up languages",
    ),
    "xmc": Setting(
        *(_synthetic, 32, 1600, (0.1, 0.3, 1.0, 3.0)),
        "an MLP with 32 hidden units, synthetic sparse rows with sets of 50 labels",
    ),
    "bibtex": Setting(
        *(_bibtex, 32, 1600, (0.1, 0.3, 1.0, 3.0)),
        "an MLP with 16 hidden units, Bibtex: sparse rows with sets of 159 labels",
        needs="bibtex",
    ),
}


@cache
def problem(task: str) -> Problem:
    """The problem of that name, made once: runs of one task share their programs."""
    return TASKS[task].make()


def missing(task: str) -> str:
    """Why a task cannot be run here; "" if it can."""
    folder = TASKS[task].needs
    where = os.environ.get("HETJAX_DATA", "")
    if not folder or (where and os.path.isdir(os.path.join(where, folder))):
        return ""
    return f"{task}: there is no folder {folder} in $HETJAX_DATA"


def machine(name: str, run_seconds: float) -> Machine:
    """The preset of that name, for a run of `run_seconds`.

    Where workers leave and join at fixed times, these are scaled, so that every run
    sees `FAULT_SECONDS` of them.
    """
    found = hj.machine.preset(name)
    scale = run_seconds / FAULT_SECONDS
    faults = tuple(replace(f, seconds=f.seconds * scale) for f in found.faults)
    return replace(found, faults=faults)


def seconds(machine_name: str, task: str, share: float = 1.0) -> float:
    """Virtual seconds of a run: those in which the workers compute its batches.

        T = share n / sum_i 1 / t_i        n batches, t_i seconds of a batch of worker i

    rounded to three digits. All strategies have the same; one whose workers wait, or
    that uses one of them, computes fewer batches.
    """
    setting, data = TASKS[task], problem(task).data
    found = hj.machine.preset(machine_name)
    infos = found.worker_infos(nonzeros_per_example(data.train))
    rate = sum(1 / info.seconds(setting.batch_size) for info in infos)
    batches = share * MACHINES.get(machine_name, 1.0) * setting.batches
    return float(f"{batches / rate:.3g}")


def shards(classes: Any, rows: np.ndarray | None = None) -> hj.sampling.Sampler:
    """A sampler of shards with unlike mixtures of classes, of all or some rows.

    A merge that measures accuracy holds some of them out.
    """
    own = classes if rows is None else classes[rows]
    number = own.shape[0]

    def init(workers: tuple[Any, ...], num_examples: int, seed: int) -> Any:
        left = own
        if num_examples < number:
            left = own[held_out_rows(number, seed, FEW)[0]]
        made = hj.data.dirichlet(left, len(workers), alpha=ALPHA, seed=seed)
        return hj.sampling.sharded(made).init(workers, num_examples, seed)

    return hj.sampling.sharded(())._replace(init=init)
