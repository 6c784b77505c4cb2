"""The player of the scripts' simulated runs, from flags."""

from typing import Any, get_args

from absl import flags

from experiments.common.bounds import SEED, bounded
from hetjax.engine.job import DataOn

FLAGS = flags.FLAGS
COMPILED = {"auto": "auto", "true": True, "false": False}
flags.DEFINE_enum(
    "compiled",
    "auto",
    list(COMPILED),
    "whether simulated runs are compiled; auto: if it is faster; false: step by step",
    case_sensitive=False,
)
flags.DEFINE_enum(
    "data_on", "auto", get_args(DataOn), "where compiled runs have their training data"
)
flags.DEFINE_integer(
    "schedule_seed",
    None,
    "one seed for the schedule of all simulated runs, which are then played "
    "together; default: each run's own",
)
bounded("schedule_seed", *SEED)
NAMES = ("compiled", "data_on", "schedule_seed")


def settings() -> dict[str, Any]:
    """The flags as arguments of `hj.compare` and `hj.train`."""
    return {
        "compiled": COMPILED[FLAGS.compiled],
        "data_on": FLAGS.data_on,
        "schedule_seed": FLAGS.schedule_seed,
    }
