"""Measure this machine's devices: a simulated machine that is as fast as they are.

    python experiments/calibrate.py --cpu_devices=2 --out=laptop.json   (half a minute)
    python experiments/calibrate.py --devices=cpu:0,gpu:0 --data=mnist --model=lenet

Every device does works of several batch sizes and numbers of steps, alone and while the
others compute; costs, contention, noise and merges are fitted to it. The file is a
machine for every script's --machine, and for advise.py. Expected: a median error of the
fit below 15 % (of works of a few milliseconds on a busy laptop; less of longer ones).
"""

import datasets
import local_devices
import scripts
from absl import flags

import hetjax as hj
from hetjax.report import Table

FLAGS = flags.FLAGS
POOR = 0.25  # median error of a fit that is worth a word
flags.DEFINE_string("data", "digits", "digits, mnist, ..., or a folder")
flags.DEFINE_string("model", "mlp", "mlp, lenet, resnet20, ...")
flags.DEFINE_integer("hidden", 128, "hidden units of an mlp")
flags.DEFINE_list("batch_sizes", ["16", "32", "64", "128"], "to measure")
flags.DEFINE_list("steps", ["1", "8"], "local steps of a work, to measure")
flags.DEFINE_integer("repeats", 8, "of every measurement")
flags.DEFINE_string("out", "machine.json", "file of the machine")


def table(machine: hj.machine.Machine) -> Table:
    """What was fitted."""
    header = ("worker", "per work [ms]", "fixed [ms]", "per example [us]")
    header += ("per non-zero [ns]", "slowdown", "contention")
    rows = [
        (
            worker.name,
            f"{1e3 * worker.cost.per_work:.3f}",
            f"{1e3 * worker.cost.fixed:.3f}",
            f"{1e6 * worker.cost.per_example:.3f}",
            f"{1e9 * worker.cost.per_nonzero:.3f}",
            f"{worker.factor:g}",
            f"{worker.contention:.2f}",
        )
        for worker in machine.workers
    ]
    about = machine.calibration
    assert about is not None
    caption = (
        f"merges {1e3 * 2 * machine.links[''].latency:.3f} ms and each worker's way, "
        f"noise {machine.noise:.3f}",
        f"error of the fit: median {100 * about.error:.1f} %, 90th percentile "
        f"{100 * about.worst:.1f} %, of {about.works} works",
    )
    if about.error > POOR:
        caption += ("a poor fit: is something else running? or raise --repeats",)
    return Table(header, tuple(rows), caption)


def main() -> None:
    machine = local_devices.machine()
    data = datasets.load(FLAGS.data)
    task = hj.classification(datasets.model(FLAGS.model, data, FLAGS.hidden), data)
    sizes = [int(b) for b in scripts.numbers("batch_sizes", FLAGS.batch_sizes)]
    steps = [int(k) for k in scripts.numbers("steps", FLAGS.steps)]
    measured = hj.calibrate(
        task,
        data,
        machine,
        batch_sizes=sizes,
        steps=steps,
        repeats=FLAGS.repeats,
        path=FLAGS.out,
    )
    print(table(measured))
    print(f"wrote {FLAGS.out}")


if __name__ == "__main__":
    scripts.run(main)
