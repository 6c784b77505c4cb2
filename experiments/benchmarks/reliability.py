"""Reliability: runs that are killed, checkpoints that are damaged, workers that fail.

    python experiments/benchmarks/reliability.py                     (forty minutes)
    python experiments/benchmarks/reliability.py --parts=kills --kills=10 --real_kills=0

kills     runs of five strategies, killed with SIGKILL at random moments and started
          again; on the virtual clock they must equal an uninterrupted run, on threads
          the trace must replay to the same parameters
damage    checkpoints with truncated, changed and missing files, of another version, or
          of other data: the one before is used, or the call raises an error
overhead  a run with 100M parameters, with a checkpoint a minute and without
faults    every strategy and fault on every kind of machine, as a table (--table=FILE)

One JSON object on standard output: raw numbers, and as "ratios":

kills/clock/equal    share of killed runs on the clock that equal the uninterrupted
kills/threads/equal  share of those on threads that replay to the same parameters
damage/noticed       share of mutations without effect, named, or an error
overhead             seconds with checkpoints / without
faults/continue      the share of cells in which the run continues as documented
"""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from absl import flags

import hetjax as hj
from experiments.benchmarks import (
    reliability_damage,
    reliability_faults,
    reliability_kills,
    reliability_overhead,
)
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_list("parts", [], "some of the four parts; default: all")
flags.DEFINE_integer("kills", 100, "of kills: on the virtual clock")
flags.DEFINE_integer("real_kills", 20, "of kills: on threads")
flags.DEFINE_list("killed", list(reliability_kills.STRATEGIES), "strategies of kills")
flags.DEFINE_float("clock_seconds", 20.0, "of kills: virtual seconds of a run")
flags.DEFINE_float("real_seconds", 12.0, "of kills: seconds of a run on threads")
flags.DEFINE_integer("mutations", 1000, "of damage")
flags.DEFINE_float("millions", 100.0, "of overhead: parameters of the model")
flags.DEFINE_string("every", "60s", "of overhead: between two checkpoints")
flags.DEFINE_float("minutes", 3.0, "of overhead: of a run")
flags.DEFINE_integer("turns", 2, "of overhead")
flags.DEFINE_list("strategies", list(hj.STRATEGIES), "of faults")
flags.DEFINE_list("machines", list(reliability_faults.MACHINES), "of faults")
flags.DEFINE_string("table", None, "of faults: write the table to this file")
flags.DEFINE_integer("seed", 0, "of the random moments and places")
bounded("seed", *bounds.SEED)


def kills(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found, ratios = {}, {}
    both = (
        ("clock", FLAGS.kills, FLAGS.clock_seconds),
        ("threads", FLAGS.real_kills, FLAGS.real_seconds),
    )
    for kind, number, seconds in both:
        if not number:
            continue
        runs = reliability_kills.killed_runs(
            kind, seconds, FLAGS.killed, number, folder, FLAGS.seed
        )
        found[f"kills/{kind}"] = [run._asdict() for run in runs]
        ratios[f"kills/{kind}/lost"] = sum(run.lost for run in runs) / len(runs)
        ratios[f"kills/{kind}/equal"] = sum(run.equal for run in runs) / len(runs)
    return found, ratios


def damage(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    counts = reliability_damage.mutations(FLAGS.mutations, folder, FLAGS.seed)
    noticed = sum(n for what, n in counts.items() if not what.endswith("other"))
    return {"damage": counts}, {"damage/noticed": noticed / FLAGS.mutations}


def overhead(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = reliability_overhead.overhead(
        FLAGS.millions, FLAGS.every, FLAGS.minutes, FLAGS.turns, folder
    )
    ratios = {"overhead": found["ratio"], "overhead/later": found["later"]}
    return {"overhead": found}, ratios


def faults(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = reliability_faults.matrix(FLAGS.strategies, FLAGS.machines, folder)
    if FLAGS.table:
        Path(FLAGS.table).write_text(reliability_faults.table(found))
    cells = [c for row in found.values() for c in row.values()]
    there = [c for c in cells if c != reliability_faults.NOT_THERE]
    good = sum(c == reliability_faults.CONTINUES for c in there)
    return {"faults": found}, {"faults/continue": good / max(1, len(there))}


PARTS: dict[str, Callable[[Path], tuple[dict[str, Any], dict[str, Any]]]] = {
    "kills": kills,
    "damage": damage,
    "overhead": overhead,
    "faults": faults,
}


def main() -> None:
    parts = FLAGS.parts or list(PARTS)
    bounds.check_some_of("parts", parts, PARTS)
    jax.config.update("jax_num_cpu_devices", 3)
    numbers: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for part in parts:
        with tempfile.TemporaryDirectory() as folder:
            more, own = PARTS[part](Path(folder))
        numbers |= more
        ratios |= own
    print(json.dumps({"ratios": ratios, "numbers": numbers}, indent=1))


if __name__ == "__main__":
    scripts.run(main)
