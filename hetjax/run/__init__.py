"""Runs: the loop between the host world and the device world, and what calls it."""

from hetjax.run.advice import Advice, advise
from hetjax.run.calibration import calibrate
from hetjax.run.comparison import compare
from hetjax.run.local import LocalMachine, local_machine
from hetjax.run.replay import replay
from hetjax.run.train import train

__all__ = [
    "Advice",
    "LocalMachine",
    "advise",
    "calibrate",
    "compare",
    "local_machine",
    "replay",
    "train",
]
