"""Runs: the loop between the host world and the device world, and what calls it."""

from hetjax.run.comparison import compare
from hetjax.run.local import LocalMachine, local_machine
from hetjax.run.train import replay, train

__all__ = ["LocalMachine", "compare", "local_machine", "replay", "train"]
