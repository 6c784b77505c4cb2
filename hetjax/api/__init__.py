"""The functions that run strategies: `train`, `compare`, `calibrate`, and others."""

from hetjax.api.advice import Advice, advise
from hetjax.api.calibration import calibrate
from hetjax.api.comparison import compare
from hetjax.api.kept import OtherRun
from hetjax.api.models import load_model
from hetjax.api.replay import replay
from hetjax.api.resume import resume
from hetjax.api.train import train
from hetjax.runtimes.threads.machine import RealMachine, local_machine

__all__ = [
    "Advice",
    "OtherRun",
    "RealMachine",
    "advise",
    "calibrate",
    "compare",
    "load_model",
    "local_machine",
    "replay",
    "resume",
    "train",
]
