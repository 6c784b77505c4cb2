"""When workers of a simulated machine are present, and how they fail, from flags."""

from absl import flags

import hetjax as hj
from experiments.common import bounds
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "presence",
    None,
    "a CSV file with the columns worker,on,off: the seconds in which workers of a "
    "simulated machine are present; the others always are",
)
flags.DEFINE_float("mean_on", None, "mean seconds for which a worker is present")
flags.DEFINE_float("mean_off", None, "mean seconds for which a worker is absent")
flags.DEFINE_float("failure_rate", None, "failures of a present worker per second")
flags.DEFINE_float(
    "repair", None, "seconds after a failure until the worker joins; default: never"
)
flags.DEFINE_integer(
    "availability_seed", 0, "seed of --mean_on, --mean_off and --failure_rate"
)
bounded("mean_on", *bounds.SECONDS)
bounded("mean_off", *bounds.SECONDS)
bounded("failure_rate", 0, 10**9, "it is a number of failures per second")
bounded("repair", *bounds.SECONDS)
bounded("availability_seed", *bounds.SEED)
NAMES = (
    "presence",
    "mean_on",
    "mean_off",
    "failure_rate",
    "repair",
    "availability_seed",
)


def with_availability(
    machine: hj.machine.Machine, seconds: float | None
) -> hj.machine.Machine:
    """The machine whose workers come, go and fail as the flags say.

    Absences are drawn for `seconds`, those of a run; None stands for an unknown time.
    """
    _check()
    if FLAGS.presence is not None:
        machine = hj.machine.with_presence(machine, FLAGS.presence)
    if FLAGS.mean_on is not None:
        machine = hj.machine.with_drawn_presence(
            machine,
            mean_on=FLAGS.mean_on,
            mean_off=FLAGS.mean_off,
            seconds=_known(seconds, "mean_on"),
            seed=FLAGS.availability_seed,
        )
    if FLAGS.failure_rate:
        machine = hj.machine.with_failures(
            machine,
            rate=FLAGS.failure_rate,
            seconds=_known(seconds, "failure_rate"),
            seed=FLAGS.availability_seed,
            repair=FLAGS.repair,
        )
    return machine


def _check() -> None:
    """Raise a ValueError for a flag without the ones that it needs."""
    if (FLAGS.mean_on is None) != (FLAGS.mean_off is None):
        raise ValueError("--mean_on and --mean_off: pass both, or neither")
    if FLAGS.repair is not None and FLAGS.failure_rate is None:
        raise ValueError("--repair is of failures: pass --failure_rate, too")
    drawn = FLAGS.mean_on is not None or FLAGS.failure_rate is not None
    if FLAGS["availability_seed"].present and not drawn:
        raise ValueError(
            "--availability_seed: nothing is drawn; pass --mean_on and --mean_off, or "
            "--failure_rate"
        )


def _known(seconds: float | None, flag: str) -> float:
    if seconds is None:
        raise ValueError(
            f"--{flag}: absences are drawn for the seconds of a run, so pass --seconds"
        )
    return seconds
