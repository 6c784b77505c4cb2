"""Machines and their clocks: the times of rounds and merges (host world, no JAX).

Start with `simulated_machine.py` and its clock, `simulated_clock.py`.
"""

from hetjax.machine.availability import (
    with_drawn_presence,
    with_failures,
    with_presence,
)
from hetjax.machine.faults import ScriptedFault
from hetjax.machine.merge_queues import Transfer
from hetjax.machine.merge_times import (
    MergeRequest,
    MergeTimes,
    PlannedMerge,
    Stamps,
    Traffic,
)
from hetjax.machine.merge_tree import Node, Topology, flat
from hetjax.machine.presets import PRESETS, like_amazon670k, load_machine, preset
from hetjax.machine.roster import Roster
from hetjax.machine.simulated_clock import SimulatedClock
from hetjax.machine.simulated_machine import Machine
from hetjax.machine.types import (
    PUSH_FETCH,
    ROOT,
    Arrival,
    Evaluated,
    EvaluationDue,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    RunEnded,
    Slow,
    Timer,
    WorkerInfo,
)
from hetjax.machine.workers_and_links import Cost, Drift, Link, Profile

__all__ = [
    "PRESETS",
    "PUSH_FETCH",
    "ROOT",
    "Timer",
    "Topology",
    "Traffic",
    "Transfer",
    "flat",
    "Arrival",
    "Cost",
    "Drift",
    "Evaluated",
    "EvaluationDue",
    "Event",
    "ScriptedFault",
    "Join",
    "Leave",
    "Link",
    "Machine",
    "MergeAction",
    "MergeOp",
    "MergeRequest",
    "MergeTimes",
    "Merged",
    "PlannedMerge",
    "Node",
    "Profile",
    "Roster",
    "RunEnded",
    "SimulatedClock",
    "Slow",
    "Stamps",
    "LocalRound",
    "WorkerInfo",
    "like_amazon670k",
    "load_machine",
    "preset",
    "with_drawn_presence",
    "with_failures",
    "with_presence",
]
