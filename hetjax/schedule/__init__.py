"""Policies: who merges now, who does what next (host world, no JAX)."""

from hetjax.machine.types import Alarm, Arrival, Evaluated, Merged, Work, WorkerInfo
from hetjax.schedule.mega_batch import mega_batch
from hetjax.schedule.rounds import fastest, rounds
from hetjax.schedule.scaling import BOUNDS, linear_scaling
from hetjax.schedule.types import ROOT, MergeOrder, Orders, Policy

__all__ = [
    "Alarm",
    "Arrival",
    "Evaluated",
    "Merged",
    "Work",
    "WorkerInfo",
    "BOUNDS",
    "ROOT",
    "MergeOrder",
    "Orders",
    "Policy",
    "fastest",
    "linear_scaling",
    "mega_batch",
    "rounds",
]
