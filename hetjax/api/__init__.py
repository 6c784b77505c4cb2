"""The functions that run strategies: `train`, `compare`, `calibrate`, and others."""

from hetjax.api.advice import Advice, advise
from hetjax.api.calibration import calibrate
from hetjax.api.comparison import compare
from hetjax.api.functions import make_run
from hetjax.api.kept import OtherRun
from hetjax.api.models import load_model
from hetjax.api.planning import Plan, plan
from hetjax.api.replay import replay
from hetjax.api.resume import resume
from hetjax.api.rounds import make_round
from hetjax.api.train import train
from hetjax.runtimes.cluster.machine import ClusterMachine
from hetjax.runtimes.cluster.making import cluster_machine
from hetjax.runtimes.threads.machine import RealMachine, local_machine

__all__ = [
    "Advice",
    "ClusterMachine",
    "OtherRun",
    "Plan",
    "RealMachine",
    "advise",
    "calibrate",
    "cluster_machine",
    "compare",
    "load_model",
    "local_machine",
    "make_round",
    "make_run",
    "plan",
    "replay",
    "resume",
    "train",
]
