"""Local rules: what a worker does between two reports (device world)."""

from hetjax.local.rows import ROWS
from hetjax.local.rules import (
    LocalRule,
    gradient,
    look_ahead,
    optimizer,
    polyak,
    proximal,
    sgd,
)
from hetjax.local.slots import check_slots, empty_slots, kept_slots, with_slots

__all__ = [
    "ROWS",
    "LocalRule",
    "check_slots",
    "empty_slots",
    "gradient",
    "kept_slots",
    "look_ahead",
    "optimizer",
    "polyak",
    "proximal",
    "sgd",
    "with_slots",
]
