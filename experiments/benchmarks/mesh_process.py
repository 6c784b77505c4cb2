"""Rounds and merges on a mesh over all processes' devices; one line of JSON.

    python experiments/launch.py --processes=2 -- \
        experiments/benchmarks/mesh_process.py --hidden=16

`mesh.py --parts=processes` runs this. Every process has the same flags; process 0
prints "rounds_per_s", and "merge_s" of averaging the model's parameters alone.
"""

import json
import sys
from statistics import median

import jax
from absl import flags

import hetjax as hj
from experiments.benchmarks import mesh_merges, step_times, turns
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_integer("hidden", 16, "hidden units of the MLP")
flags.DEFINE_integer("workers", 8, "workers on all devices together")
flags.DEFINE_float("seconds", 2.0, "seconds of every run, at least")
flags.DEFINE_integer("turns", 3, "runs")
bounded("hidden", *bounds.HIDDEN)
bounded("workers", *bounds.DEVICES)
bounded("seconds", 1e-3, 10**6, "it is a time that passes")
bounded("turns", 1, 1000, "every turn is run")


def main() -> None:
    devices = jax.devices()
    if FLAGS.workers % len(devices):
        raise ValueError(
            f"--workers={FLAGS.workers}: pass a multiple of the {len(devices)} devices"
        )
    data = step_times.make_data()
    task = hj.classification(hj.models.mlp(hidden=FLAGS.hidden), data)
    machine = hj.local_machine(
        devices, workers_per_device=FLAGS.workers // len(devices), placement="mesh"
    )
    rounds = turns.trained(
        turns.session(task, data, machine), step_times.rounds_strategy()
    )
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    floats = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    merges = turns.by_hand(mesh_merges.along_axis("psum", floats, devices))
    # a number of merges, not seconds: all processes must do equally many
    contenders = {"rounds": rounds, "merges": lambda seconds: merges(0.0)}
    found = turns.in_turn(contenders, FLAGS.seconds, FLAGS.turns, "mesh_process")
    result = {
        "processes": jax.process_count(),
        "devices": len(devices),
        "floats": floats,
        "rounds_per_s": round(1 / median(found["rounds"]), 3),
        "merge_s": round(median(found["merges"]), 6),
    }
    if jax.process_index() == 0:
        print(json.dumps(result))
        sys.stdout.flush()


if __name__ == "__main__":
    scripts.run(main)
