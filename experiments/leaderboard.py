"""One table for all: every strategy, at its own rates, on machines and tasks.

    python experiments/leaderboard.py --quick                       (a minute)
    python experiments/leaderboard.py --reduced --processes=2     (two hours)
    HETJAX_DATA=DIR python experiments/leaderboard.py --processes=2         (a night)
    python experiments/leaderboard.py --machines=v100x4 --tasks=digits,xmc
    python experiments/leaderboard.py --strategies=sync_sgd,async_sgd --partitions=iid

Each strategy gets the same number of settings of its learning rates (and a few more
where the best is at an edge), three seeds and the same virtual seconds in each place: a
machine, a task, and a partition of the data among the workers. Targets come from
sequential and synchronous SGD, which are always run. The results are one page,
leaderboard.html (also .md and .json), in the folder --out, and one file for each cell
in its folder cells. The same command again runs only the cells that are missing, such
as those of a new strategy; Ctrl-C leaves the page of those that are done. With
--processes=2 two of them divide the cells. cifar10 and bibtex need the data in
$HETJAX_DATA, and are left out without them.
"""

import itertools
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from absl import flags

import hetjax as hj
from experiments import leaderboard_cells as cells
from experiments import leaderboard_page as pages
from experiments import leaderboard_problems as problems
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded, bounded_list
from experiments.common.memory_maps import free_programs
from experiments.leaderboard_cells import Cell, Effort
from experiments.leaderboard_ranking import REFERENCES
from experiments.leaderboard_rates import GROW, OUTER

FLAGS = flags.FLAGS
flags.DEFINE_list("machines", list(problems.MACHINES), "presets")
flags.DEFINE_list("tasks", list(problems.TASKS), "names of tasks")
flags.DEFINE_list("partitions", list(problems.PARTITIONS), "iid, unlike")
flags.DEFINE_list("strategies", [], "names; default: all of the package")
flags.DEFINE_integer("seeds", 3, "runs per cell, with seeds 0, 1, ...")
flags.DEFINE_integer("num_evals", 20, "evaluations of a run, after the initial one")
flags.DEFINE_float("share", 1.0, "of the batches of each task's runs")
flags.DEFINE_list("inner", [], "workers' learning rates, instead of each task's")
flags.DEFINE_list("outer", [str(rate) for rate in OUTER], "servers' rates")
flags.DEFINE_integer("grow", GROW, "times that a grid grows where its best is an edge")
flags.DEFINE_string("out", "leaderboard", "folder of the page and the cells")
flags.DEFINE_string("part", "1/1", "K/N: only each N-th cell, from the K-th on")
flags.DEFINE_integer("processes", 1, "that divide the cells")
flags.DEFINE_boolean("quick", False, "a smoke run: one place, few batches and rates")
flags.DEFINE_boolean("reduced", False, "the places of the README, in two hours")
bounded("seeds", *bounds.SEEDS)
bounded_list("inner", *bounds.LEARNING_RATE)
bounded_list("outer", *bounds.LEARNING_RATE)
bounded("grow", 0, 8, "each time, about four more runs")
bounded("num_evals", *bounds.EVALS)
bounded("share", 1e-3, 1000, "runs need batches")
bounded("processes", 1, 64, "each has a copy of JAX, about 1 GB")

ERROR = ".error"  # of the file in place of a failed cell's results
QUICK = {
    "machines": ["v100x3+k80"],
    "tasks": ["digits"],
    "partitions": ["iid"],
    "strategies": ["local_sgd", "downpour"],
    "seeds": 1,
    "num_evals": 4,
    "share": 0.05,
    "inner": ["0.1", "0.3"],
    "outer": ["1"],
    "grow": 0,
}
REDUCED = {
    # v100x4-churn: merges of ever other members are ever other programs
    "machines": ["v100x3+k80", "four-speeds", "lognormal32"],
    "tasks": ["digits", "characters"],
    "share": 0.5,
}


def apply_presets() -> None:
    """Let --quick or --reduced set all flags that were not passed."""
    chosen = {**(REDUCED if FLAGS.reduced else {}), **(QUICK if FLAGS.quick else {})}
    for flag, value in chosen.items():
        if not FLAGS[flag].present:
            FLAGS[flag].value = value


def effort() -> Effort:
    """What every cell gets, from the flags."""
    inner = bounds.numbers("inner", FLAGS.inner)
    outer = bounds.numbers("outer", FLAGS.outer)
    if not outer or inner != sorted(inner):
        raise ValueError("--outer needs rates, and those of --inner have to rise")
    return Effort(
        FLAGS.seeds,
        FLAGS.num_evals,
        tuple(outer),
        FLAGS.share,
        tuple(inner),
        FLAGS.grow,
    )


def checked_names() -> list[str]:
    """The strategies, with the references first; a ValueError for an unknown name."""
    known = {
        "machines": hj.machine.PRESETS,
        "tasks": problems.TASKS,
        "partitions": problems.PARTITIONS,
        "strategies": hj.STRATEGIES,
    }
    for flag, names in known.items():
        if not FLAGS[flag].value and flag != "strategies":
            raise ValueError(f"--{flag}= has no names: pass some of {', '.join(names)}")
        for name in FLAGS[flag].value or ():
            other = flag == "machines" and name.startswith("uniform:")
            if name not in names and not other:
                raise ValueError(f"--{flag}: {name!r} is not one of {', '.join(names)}")
    chosen = FLAGS.strategies or list(hj.STRATEGIES)
    return list(dict.fromkeys((*REFERENCES, *chosen)))


def places() -> tuple[list[tuple[str, str, str]], list[str]]:
    """The places, task by task, since a task's runs share programs; and notes."""
    missing = {task: problems.missing(task) for task in FLAGS.tasks}
    if FLAGS["tasks"].present and any(missing.values()):
        raise ValueError("; ".join(why for why in missing.values() if why))
    found = itertools.product(FLAGS.tasks, FLAGS.machines, FLAGS.partitions)
    return (
        [(machine, task, part) for task, machine, part in found if not missing[task]],
        [f"{why}: left out" for why in missing.values() if why],
    )


def own_part(all_cells: list[Cell]) -> list[Cell]:
    """The cells of --part."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", FLAGS.part)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"--part={FLAGS.part}: pass K/N with K from 1 to N, as in 1/2")
    return all_cells[int(match[1]) - 1 :: int(match[2])]


def main() -> int:
    apply_presets()
    names, wanted, out = checked_names(), effort(), Path(FLAGS.out)
    where, notes = places()
    every = [Cell(*place, name) for place in where for name in names]
    own, done, status = own_part(every), stored(every, wanted, out), 0
    if FLAGS.processes > 1 and FLAGS["part"].present:
        raise ValueError("--processes divides all cells: pass it without --part")
    try:
        if FLAGS.processes > 1 and len(done) < len(every):
            status |= _in_processes(FLAGS.processes)
            done = stored(every, wanted, out)
        else:
            for cell in own:
                if cell not in done:
                    status |= _run(cell, wanted, out, done)
    except KeyboardInterrupt as error:
        print("interrupted: the page has the cells that are done", file=sys.stderr)
        done = stored(every, wanted, out)
        status = scripts.status_of(str(error))
    notes += notes_of(every, done, out)
    by_place = {
        place: {n: done[c] for n in names if (c := Cell(*place, n)) in done}
        for place in where
    }
    command = shlex.join(["python", "experiments/leaderboard.py", *sys.argv[1:]])
    board = pages.leaderboard(by_place, settings(wanted), notes, command)
    print("wrote " + ", ".join(map(str, pages.write(board, out))))
    return status


def stored(every: list[Cell], wanted: Effort, out: Path) -> dict[Cell, dict[str, Any]]:
    """The results of the cells that are done; a ValueError if they are of others."""
    found = {}
    for cell in every:
        seconds = problems.seconds(cell.machine, cell.task, wanted.share)
        one = cells.read(cell.path(out), cells.asked(cell, wanted, seconds))
        if one is not None:
            found[cell] = one
    return found


def notes_of(
    every: list[Cell], done: dict[Cell, dict[str, Any]], out: Path
) -> list[str]:
    """What the page says of cells that failed or are not done, and of old versions."""
    left = [cell for cell in every if cell not in done]
    errors = [path for c in left if (path := c.path(out).with_suffix(ERROR)).exists()]
    notes = [path.read_text(encoding="utf-8") for path in errors]
    if len(left) > len(errors):
        notes.append(
            f"{len(left) - len(errors)} of {len(every)} cells are not done: ranks of "
            "strategies that lack places do not compare with those of others."
        )
    versions = sorted({found["hetjax"] for found in done.values()})
    if len(versions) > 1:
        notes.append(f"Cells are of hetjax {', '.join(versions)}: remove older ones.")
    return notes


def _in_processes(number: int) -> int:
    """Run the parts in processes with the same flags; the largest of their statuses.

    Each ends with this one. A signal's status, which is negative, counts as large.
    """
    parts = [f"--part={k + 1}/{number}" for k in range(number)]
    command = [sys.executable, sys.argv[0], *sys.argv[1:], "--processes=1"]
    started = [subprocess.Popen([*command, part], stdout=DEVNULL) for part in parts]
    try:
        return max(abs(process.wait()) for process in started)
    except KeyboardInterrupt:
        for process in started:
            process.terminate()
            process.wait()
        raise


def _run(cell: Cell, wanted: Effort, out: Path, done: dict[Cell, Any]) -> int:
    """Run a cell; store an error, which must not end a night's work. Returns status."""
    begin, failed = time.monotonic(), cell.path(out).with_suffix(ERROR)
    try:
        done[cell] = cells.run(cell, wanted, cell.path(out))
    except Exception as error:
        note = f"{', '.join(cell)}: {type(error).__name__}: {error}"
        print(note, file=sys.stderr, flush=True)
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.write_text(note, encoding="utf-8")
        return 0 if isinstance(error, ValueError) else 1
    finally:
        free_programs()
    failed.unlink(missing_ok=True)
    took = time.monotonic() - begin
    print(f"{', '.join(cell)}: {took:.1f} s", file=sys.stderr, flush=True)
    return 0


def settings(wanted: Effort) -> list[str]:
    """What is particular to these flags, for the page."""
    outer = ", ".join(f"{rate:g}" for rate in wanted.outer)
    found = []
    for name in FLAGS.tasks:
        task = problems.TASKS[name]
        inner = ", ".join(f"{rate:g}" for rate in wanted.inner or task.rates)
        found.append(
            f"{name}: {task.what}; batches of {task.batch_size}; inner rates {inner}, "
            f"outer rates {outer} at first."
        )
    found.append(
        f"Times that a grid of rates may grow: {wanted.grow}. "
        f"Seeds: {wanted.seeds}; evaluations of a run: {wanted.num_evals}. A run lasts "
        "as long as all workers together, if none ever waits, need for a number of "
        f"batches: {_batches(wanted)}; on lognormal32 four times as many."
    )
    if "v100x4-churn" in FLAGS.machines:
        found.append(
            "On v100x4-churn workers leave and join in each run as they do in the "
            f"preset's first {problems.FAULT_SECONDS:g} s."
        )
    return found


def _batches(wanted: Effort) -> str:
    return ", ".join(
        f"{name} {wanted.share * problems.TASKS[name].batches:,.0f}"
        for name in FLAGS.tasks
    )


if __name__ == "__main__":
    scripts.run(main)
