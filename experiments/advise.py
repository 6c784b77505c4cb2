"""Rank strategies and sets of workers, with and without a slow one, by simulation.

    python experiments/calibrate.py --cpu_devices=2 --slowdown=cpu:1=3 --out=laptop.json
    python experiments/advise.py --machine=laptop.json --target=0.95
    python experiments/advise.py --machine=rtx4090+epyc7543 --batch_size=128

Without --target the ranking is by examples/s, which takes a second. With it, every
candidate also trains on the virtual clock. --machine=local calibrates this host first.
--presence, --mean_on, --failure_rate, ... rank on a machine whose workers come and go.
"""

from absl import flags

import hetjax as hj
from experiments.common import (
    availability_flags,
    bounds,
    local_devices,
    model_flags,
    named_data,
    scripts,
)
from experiments.common.bounds import bounded
from experiments.common.strategy_flags import build_strategies

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "machine", "local", "a calibrated machine's file, a preset, or local"
)
flags.DEFINE_string("data", "digits", named_data.HELP)
flags.DEFINE_string("model", "mlp", "mlp, lenet, resnet20, ...")
flags.DEFINE_integer("hidden", 128, "hidden units of an mlp")
flags.DEFINE_integer("batch_size", 64, "batch size (the largest, if it adapts)")
flags.DEFINE_float("learning_rate", 0.1, "learning rate at --batch_size")
flags.DEFINE_list("strategies", [], "names; default: the five of hetjax.advise")
flags.DEFINE_multi_string("set", [], "one strategy's setting: local_sgd.local_steps=4")
flags.DEFINE_float("target", None, "metric to reach")
flags.DEFINE_float("seconds", 10.0, "virtual seconds of every candidate")
flags.DEFINE_multi_string("workers", [], "a set of workers to try: cpu:0,gpu:0")
flags.DEFINE_integer("seed", 0, "seed of the runs")
bounded("hidden", *bounds.HIDDEN)
bounded("seed", *bounds.SEED)


def main() -> int:
    local = FLAGS.machine == "local"
    for name in availability_flags.NAMES if local else ():
        if FLAGS[name].present:
            raise ValueError(
                f"--{name} is for a simulated machine, not --machine=local"
            )
    machine = (
        local_devices.machine()
        if local
        else availability_flags.with_availability(
            hj.machine.load_machine(FLAGS.machine), FLAGS.seconds
        )
    )
    data = named_data.load(FLAGS.data)
    task = named_data.task(FLAGS.model, data, FLAGS.hidden, inputs=model_flags.inputs())
    strategies = build_strategies(
        FLAGS.strategies, FLAGS.set, FLAGS.batch_size, FLAGS.learning_rate
    )
    advice = hj.advise(
        task,
        data,
        machine,
        strategies=strategies or None,
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        target=FLAGS.target,
        seconds=FLAGS.seconds,
        subsets=[names.split(",") for names in FLAGS.workers] or None,
        seed=FLAGS.seed,
    )
    print(advice.table())
    return 130 if advice.interrupted else 0


if __name__ == "__main__":
    scripts.run(main)
