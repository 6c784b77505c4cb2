"""Checkpoints: everything that a run is, saved while it goes on, and taken up again.

`keeper` is the folder of a run, `files` one checkpoint in it, `values` its JSON. What
is saved is said by the parts of a run themselves (`hetjax.saved`, `hetjax.engine.cut`).
"""

from hetjax.checkpoint.files import Damaged
from hetjax.checkpoint.keeper import Checkpoint, Found, Keeper, find

__all__ = ["Checkpoint", "Damaged", "Found", "Keeper", "find"]
