"""Policies, which decide when workers merge and what they do next (host, no JAX)."""

from hetjax.machine.types import (
    PUSH_FETCH,
    ROOT,
    Arrival,
    Evaluated,
    EvaluationDue,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    Timer,
    WorkerInfo,
)
from hetjax.schedule.batch_scaling import (
    BOUNDS,
    Scaling,
    fixed_scaling,
    linear_scaling,
    measured_scaling,
)
from hetjax.schedule.learning_rates import (
    START,
    LearningRate,
    LearningRateLike,
    Progress,
    check_learning_rate,
    learning_rate_at,
)
from hetjax.schedule.policies.asynchronous import asynchronous
from hetjax.schedule.policies.asynchronous_parts import random_partner
from hetjax.schedule.policies.bounded_delay import bounded_delay
from hetjax.schedule.policies.collected import collected
from hetjax.schedule.policies.downpour import downpour
from hetjax.schedule.policies.given_versions import UNFINISHED
from hetjax.schedule.policies.grace_periods import GracePeriod, adaptive_grace
from hetjax.schedule.policies.hierarchical import hierarchical
from hetjax.schedule.policies.magma_async import SUBTRACT, magma_async
from hetjax.schedule.policies.mega_batch import RULES, mega_batch
from hetjax.schedule.policies.ringleader import ringleader
from hetjax.schedule.policies.rounds import equal_time, fastest, one_per_device, rounds
from hetjax.schedule.policies.sma_restarts import on_plateau, on_rate_drop, sma_restarts
from hetjax.schedule.policies.streaming import streaming
from hetjax.schedule.policies.syncer import syncer
from hetjax.schedule.policies.tuned_workers import TUNERS, tuned_workers
from hetjax.schedule.step_counts import (
    StepCounts,
    dynamic_local_updates,
    measured_local_updates,
)
from hetjax.schedule.types import Actions, Policy

__all__ = [
    "BOUNDS",
    "PUSH_FETCH",
    "ROOT",
    "RULES",
    "START",
    "SUBTRACT",
    "TUNERS",
    "UNFINISHED",
    "GracePeriod",
    "StepCounts",
    "adaptive_grace",
    "bounded_delay",
    "collected",
    "dynamic_local_updates",
    "measured_local_updates",
    "ringleader",
    "streaming",
    "syncer",
    "Timer",
    "Arrival",
    "Evaluated",
    "EvaluationDue",
    "Join",
    "Leave",
    "MergeAction",
    "MergeOp",
    "Merged",
    "Actions",
    "Policy",
    "Progress",
    "LearningRate",
    "LearningRateLike",
    "Scaling",
    "LocalRound",
    "WorkerInfo",
    "check_learning_rate",
    "equal_time",
    "fastest",
    "fixed_scaling",
    "asynchronous",
    "hierarchical",
    "linear_scaling",
    "downpour",
    "measured_scaling",
    "mega_batch",
    "on_plateau",
    "on_rate_drop",
    "one_per_device",
    "random_partner",
    "learning_rate_at",
    "sma_restarts",
    "rounds",
    "magma_async",
    "tuned_workers",
]
