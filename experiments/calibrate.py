"""Measure this host's devices, and save a simulated machine that matches them.

    python experiments/calibrate.py --cpu_devices=2 --out=laptop.json   (half a minute)
    python experiments/calibrate.py --devices=cpu:0,gpu:0 --data=mnist --model=lenet
    python experiments/calibrate.py --machine=cluster --local_workers=3

With --machine=cluster the workers of a Ray cluster are measured instead.

Every device runs local rounds of several batch sizes and numbers of steps, alone and
while the other devices compute. Costs, contention, noise and merge times are fitted to
these measurements. Pass the file as --machine to the other scripts. Expected: a median
error of the fit below 15 % for rounds of a few milliseconds on a busy laptop, and less
for longer rounds. A warning reports disturbed measurements: a worse fit, noisy
steps, or equal devices that are far apart.
"""

from pathlib import Path

from absl import flags

import hetjax as hj
from experiments.common import (
    bounds,
    cluster,
    local_devices,
    model_flags,
    named_data,
    scripts,
)
from experiments.common.bounds import bounded, whole_numbers
from hetjax.report import Table

FLAGS = flags.FLAGS
flags.DEFINE_enum("machine", "local", ["local", "cluster"], "what is measured")
flags.DEFINE_string("data", "digits", named_data.HELP)
flags.DEFINE_string("model", "mlp", "mlp, lenet, resnet20, ...")
flags.DEFINE_integer("hidden", 128, "hidden units of an mlp")
flags.DEFINE_list("batch_sizes", ["16", "32", "64", "128"], "batch sizes to measure")
flags.DEFINE_list("local_steps", ["1", "8"], "numbers of local steps to measure")
flags.DEFINE_integer("repeats", 8, "repetitions of every measurement")
flags.DEFINE_string("out", "machine.json", "file that the machine is saved to")
bounded("hidden", *bounds.HIDDEN)


def table(machine: hj.machine.Machine) -> Table:
    """The fitted costs, one row per worker."""
    header = ("worker", "per round [ms]", "fixed [ms]", "per example [us]")
    header += ("per non-zero [ns]", "slowdown", "contention")
    header += ("latency [ms]", "per MB [ms]")
    rows = [
        (
            worker.name,
            f"{1e3 * worker.cost.per_round:.3f}",
            f"{1e3 * worker.cost.fixed:.3f}",
            f"{1e6 * worker.cost.per_example:.3f}",
            f"{1e9 * worker.cost.per_nonzero:.3f}",
            f"{worker.factor:g}",
            f"{worker.contention:.2f}",
            f"{1e3 * worker.latency:.3f}",
            f"{1e9 * worker.per_byte:.3f}",
        )
        for worker in machine.workers
    ]
    about = machine.calibration
    assert about is not None
    merging = 1e3 * 2 * machine.links[""].latency
    caption = (
        f"a merge: {merging:.3f} ms, and the transfers of its workers (per MB); "
        f"a round begins after the latency; steps of one kind vary by "
        f"{100 * machine.noise:.1f} % (noise)",
        f"error of the fit: median {100 * about.error:.1f} %, 90th percentile "
        f"{100 * about.worst:.1f} %, of {about.local_rounds} rounds",
    )
    return Table(header, tuple(rows), caption)


def main() -> None:
    sizes = whole_numbers("batch_sizes", FLAGS.batch_sizes)
    local_steps = whole_numbers("local_steps", FLAGS.local_steps)
    folder = Path(FLAGS.out).parent
    if not folder.is_dir():
        raise ValueError(f"--out={FLAGS.out}: there is no folder {folder}")
    on_cluster = FLAGS.machine == "cluster"
    machine = cluster.machine() if on_cluster else local_devices.machine()
    data = named_data.load(FLAGS.data)
    task = named_data.task(FLAGS.model, data, FLAGS.hidden, inputs=model_flags.inputs())
    measured = hj.calibrate(
        task,
        data,
        machine,
        batch_sizes=sizes,
        local_steps=local_steps,
        repeats=FLAGS.repeats,
    )
    print(table(measured))  # first: the disk may be full
    measured.save(FLAGS.out)
    print(f"wrote {FLAGS.out}")


if __name__ == "__main__":
    scripts.run(main)
