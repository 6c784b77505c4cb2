"""Does batch-size scaling settle? The host world alone: no model, no data, no JAX step.

    python experiments/batch_scaling.py                      (a second)
    python experiments/batch_scaling.py --machine=v100x2 --noise=0 --plot=sizes.png

Plays Adaptive SGD's scheduler (`schedule.mega_batch` with `linear_scaling`) on a
simulated machine and prints every worker's updates and batch sizes, mega-batch by
mega-batch, then a stability number. With steps of a + c b seconds, a size that is an
example too large costs u c / (a + c b) updates, and the rule answers with beta times as
many examples: it swings back further than it came from unless

    beta u c / (a + c b) < 2.
"""

from functools import partial

import mega_batches
import scripts
from absl import flags
from matplotlib.figure import Figure

import hetjax as hj
from hetjax.machine import SimulatedClock

FLAGS = flags.FLAGS
flags.DEFINE_string("machine", "v100x4", "a preset, or a machine's JSON file")
flags.DEFINE_float("noise", 0.0, "noise of a step's seconds (lognormal sigma)")
flags.DEFINE_integer("b_max", 256, "largest batch size")
flags.DEFINE_integer("batches", 100, "a mega-batch is so many batches of b_max")
flags.DEFINE_integer("mega_batches", 40, "how many to play")
flags.DEFINE_integer("scale_every", 1, "mega-batches between two scalings")
flags.DEFINE_float("beta", None, "step of the rule; default b_max / 16")
flags.DEFINE_enum("bound", "skip", hj.schedule.BOUNDS, "what happens at the bounds")
flags.DEFINE_float("nonzeros", 0.0, "mean non-zeros of an example")
flags.DEFINE_integer("seed", 0, "of the noise")
flags.DEFINE_string("plot", None, "write the sizes over mega-batches to this PNG")
Table = list[mega_batches.MegaBatch]


def play(clock: SimulatedClock, beta: float) -> Table:
    """Updates and sizes of every mega-batch."""
    bounds = {"b_min": FLAGS.b_max / 8, "b_max": FLAGS.b_max, "bound": FLAGS.bound}
    rule = partial(hj.schedule.linear_scaling, beta=beta, **bounds)
    policy = hj.schedule.mega_batch(
        examples=FLAGS.batches * FLAGS.b_max,
        b_max=FLAGS.b_max,
        scaling=rule,
        scale_every=FLAGS.scale_every,
    )
    return mega_batches.played(
        policy, clock, FLAGS.mega_batches, b_max=FLAGS.b_max, nonzeros=FLAGS.nonzeros
    )


def stability(machine: hj.machine.Machine, table: Table, beta: float) -> float:
    """The largest beta u c / (a + c b) over the workers, at the last sizes."""
    updates, sizes = table[-1]
    numbers = []
    for info, u, b in zip(
        machine.worker_infos(FLAGS.nonzeros), updates, sizes, strict=True
    ):
        numbers.append(beta * u * info.per_example / info.seconds(b))
    return max(numbers)


def plot(table: Table, path: str) -> None:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for worker, sizes in enumerate(zip(*(sizes for _, sizes in table), strict=True)):
        x = range(1, len(table) + 1)
        axes.step(x, sizes, where="mid", label=f"worker {worker}")
    axes.set(xlabel="mega-batch", ylabel="batch size [examples]")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main() -> None:
    machine = hj.machine.load_machine(FLAGS.machine, noise=FLAGS.noise)
    beta = FLAGS.b_max / 16 if FLAGS.beta is None else FLAGS.beta
    clock = SimulatedClock(machine, seed=FLAGS.seed)
    table = play(clock, beta)
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
