"""Policies: who merges now, who does what next (host world, no JAX)."""

from hetjax.machine.types import (
    ROOT,
    Alarm,
    Arrival,
    Evaluated,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Work,
    WorkerInfo,
)
from hetjax.schedule.free_running import free_running, random_partner
from hetjax.schedule.groups import groups
from hetjax.schedule.learners import TUNERS, tuned_learners
from hetjax.schedule.mailbox import mailbox
from hetjax.schedule.mega_batch import RULES, mega_batch
from hetjax.schedule.play import play
from hetjax.schedule.rates import START, Progress, Rate, RateLike, check_rate, rate_at
from hetjax.schedule.restarts import on_plateau, on_rate_drop, restarting
from hetjax.schedule.rounds import equal_time, fastest, one_per_device, rounds
from hetjax.schedule.scaling import (
    BOUNDS,
    Scaling,
    fixed_scaling,
    linear_scaling,
    measured_scaling,
)
from hetjax.schedule.ticking import SUBTRACT, ticking
from hetjax.schedule.types import Orders, Policy

__all__ = [
    "BOUNDS",
    "ROOT",
    "RULES",
    "START",
    "SUBTRACT",
    "TUNERS",
    "Alarm",
    "Arrival",
    "Evaluated",
    "Join",
    "Leave",
    "MergeOrder",
    "Merged",
    "Orders",
    "Policy",
    "Progress",
    "Rate",
    "RateLike",
    "Scaling",
    "Work",
    "WorkerInfo",
    "check_rate",
    "equal_time",
    "fastest",
    "fixed_scaling",
    "free_running",
    "groups",
    "linear_scaling",
    "mailbox",
    "measured_scaling",
    "mega_batch",
    "on_plateau",
    "on_rate_drop",
    "one_per_device",
    "play",
    "random_partner",
    "rate_at",
    "restarting",
    "rounds",
    "ticking",
    "tuned_learners",
]
