"""Machines: how long things take. Host world, no JAX. Start with `clock.py`."""

from hetjax.machine.clock import SimulatedClock, Stamps, Transfer
from hetjax.machine.presets import PRESETS, load_machine, preset
from hetjax.machine.profile import Cost, Drift, Incident, Link, Machine, Profile
from hetjax.machine.recorded_clock import RecordedClock, Recorder
from hetjax.machine.trace import Recording, Trace
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
    RunEnded,
    Slow,
    Work,
    WorkerInfo,
)
from hetjax.machine.wall_clock import WallClock

__all__ = [
    "PRESETS",
    "ROOT",
    "Alarm",
    "Arrival",
    "Cost",
    "Drift",
    "Evaluated",
    "Event",
    "Incident",
    "Join",
    "Leave",
    "Link",
    "Machine",
    "MergeOrder",
    "Merged",
    "Profile",
    "RecordedClock",
    "Recorder",
    "Recording",
    "RunEnded",
    "SimulatedClock",
    "Slow",
    "Stamps",
    "Trace",
    "Transfer",
    "WallClock",
    "Work",
    "WorkerInfo",
    "load_machine",
    "preset",
]
