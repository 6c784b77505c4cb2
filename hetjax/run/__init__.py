"""Runs: the loop between the host world and the device world, and what calls it."""

from hetjax.run.comparison import compare
from hetjax.run.train import train

__all__ = ["compare", "train"]
