"""Machines: how long things take. Host world, no JAX. Start with `clock.py`."""

from hetjax.machine.clock import SimulatedClock, Stamps, Transfer
from hetjax.machine.presets import PRESETS, load_machine, preset
from hetjax.machine.profile import Cost, Drift, Link, Machine, Profile
from hetjax.machine.types import (
    ROOT,
    Alarm,
    Arrival,
    Evaluated,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Work,
    WorkerInfo,
)

__all__ = [
    "PRESETS",
    "ROOT",
    "Alarm",
    "Arrival",
    "Cost",
    "Drift",
    "Evaluated",
    "Event",
    "Join",
    "Leave",
    "Link",
    "Machine",
    "MergeOrder",
    "Merged",
    "Profile",
    "SimulatedClock",
    "Stamps",
    "Transfer",
    "Work",
    "WorkerInfo",
    "load_machine",
    "preset",
]
