"""Whether batch-size scaling settles: a simulation without model, data or training.

    python experiments/papers/batch_scaling.py                      (a second)
    python experiments/papers/batch_scaling.py --machine=v100x2 --plot=sizes.png

Simulates Adaptive SGD's scheduler (`schedule.mega_batch` with `linear_scaling`) on a
machine and prints every worker's updates and batch sizes, one line per mega-batch, then
a stability number. If a step on b examples takes a + c b seconds, a worker that does u
updates with a batch that is one example too large loses u c / (a + c b) updates, and
the rule corrects its batch by beta times as many examples. The correction overshoots,
and the sizes oscillate, unless

    beta u c / (a + c b) < 2.
"""

from functools import partial

from absl import flags

import hetjax as hj
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded
from experiments.papers import mega_batches
from hetjax.atomic_files import naming
from hetjax.machine import SimulatedClock

FLAGS = flags.FLAGS
flags.DEFINE_string("machine", "v100x4", "a preset, or a machine's JSON file")
flags.DEFINE_float("noise", 0.0, "noise of step times (lognormal sigma)")
flags.DEFINE_integer("batch_size", 256, "largest batch size")
flags.DEFINE_integer("batches", 100, "batches of --batch_size in a mega-batch")
flags.DEFINE_integer("mega_batches", 40, "mega-batches to simulate")
flags.DEFINE_integer("scale_every", 1, "mega-batches between scalings")
flags.DEFINE_float("beta", None, "step of the rule; default --batch_size / 16")
flags.DEFINE_enum(
    "bound",
    "skip",
    hj.schedule.BOUNDS,
    "skip or clip a step beyond the bounds",
)
flags.DEFINE_float("nonzeros", 0.0, "mean non-zeros of an example")
flags.DEFINE_integer("seed", 0, "seed of the noise")
flags.DEFINE_string("plot", None, "PNG to plot the sizes over mega-batches to")
bounded("batch_size", *bounds.BATCH_SIZE)
bounded("batches", 1, 10_000, "every batch is an event of the clock")
bounded("mega_batches", 1, 10_000, "every mega-batch is a line of the table")
bounded("scale_every", 1, 10_000, "it is a number of mega-batches")
bounded("beta", 0, 10**9, "it multiplies a number of updates")
bounded("nonzeros", 0, 10**9, "an example has at most this many")
bounded("noise", 0, 100, "it is the sigma of a lognormal")
bounded("seed", *bounds.SEED)
Table = list[mega_batches.MegaBatch]


def simulate(clock: SimulatedClock, beta: float) -> Table:
    """The updates and batch sizes of every mega-batch."""
    limits = {
        "min_batch_size": FLAGS.batch_size / 8,
        "batch_size": FLAGS.batch_size,
        "bound": FLAGS.bound,
    }
    rule = partial(hj.schedule.linear_scaling, beta=beta, **limits)
    policy = hj.schedule.mega_batch(
        examples=FLAGS.batches * FLAGS.batch_size,
        batch_size=FLAGS.batch_size,
        scaling=rule,
        scale_every=FLAGS.scale_every,
    )
    return mega_batches.first_mega_batches(
        policy,
        clock,
        FLAGS.mega_batches,
        batch_size=FLAGS.batch_size,
        nonzeros=FLAGS.nonzeros,
    )


def stability(machine: hj.machine.Machine, table: Table, beta: float) -> float:
    """The largest beta u c / (a + c b) of all workers, at the last sizes."""
    updates, sizes = table[-1]
    numbers = []
    for info, u, b in zip(
        machine.worker_infos(FLAGS.nonzeros), updates, sizes, strict=True
    ):
        numbers.append(beta * u * info.per_example / info.seconds(b))
    return max(numbers)


def plot(table: Table, path: str) -> None:
    from matplotlib.figure import Figure  # here: most calls draw nothing

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for worker, sizes in enumerate(zip(*(sizes for _, sizes in table), strict=True)):
        x = range(1, len(table) + 1)
        axes.step(x, sizes, where="mid", label=f"worker {worker}")
    axes.set(xlabel="mega-batch", ylabel="batch size [examples]")
    axes.legend(frameon=False)
    with naming(path):
        figure.savefig(path, dpi=120)


def main() -> None:
    machine = hj.machine.load_machine(FLAGS.machine, noise=FLAGS.noise)
    beta = FLAGS.batch_size / 16 if FLAGS.beta is None else FLAGS.beta
    clock = SimulatedClock(machine, seed=FLAGS.seed)
    table = simulate(clock, beta)
    for i, (updates, sizes) in enumerate(table, 1):
        print(f"{i:3}  updates {updates}  sizes {tuple(round(b, 1) for b in sizes)}")
    gaps = [max(u) - min(u) for u, _ in table]
    late = max(gaps[14:], default="(too few to say)")
    print(f"updates differ by at most {late} from the 15th mega-batch on")
    print(f"stability number {stability(machine, table, beta):.2f} (settles below 2)")
    if FLAGS.plot:
        plot(table, FLAGS.plot)


if __name__ == "__main__":
    scripts.run(main)
