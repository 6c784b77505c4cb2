"""The functions that run strategies: `train`, `compare`, `calibrate` and others."""

from hetjax.api.advise import Advice, advise
from hetjax.api.calibrate import calibrate
from hetjax.api.compare import compare
from hetjax.api.load_model import load_model
from hetjax.api.make_round import make_round
from hetjax.api.make_run import make_run
from hetjax.api.plan import Plan, plan
from hetjax.api.replay import replay
from hetjax.api.resume import resume
from hetjax.api.run_folder import OtherRun
from hetjax.api.train import train
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine, cluster_machine
from hetjax.runtimes.threads.local_machine import LocalMachine, local_machine

__all__ = [
    "Advice",
    "ClusterMachine",
    "LocalMachine",
    "OtherRun",
    "Plan",
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
