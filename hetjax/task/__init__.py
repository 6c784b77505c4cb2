"""Tasks: a model's init, loss and metrics as pure functions, from any flax module."""

from hetjax.task import augment
from hetjax.task.classification import classification
from hetjax.task.model import Model, from_functions, from_linen, from_nnx
from hetjax.task.types import Task

__all__ = [
    "Model",
    "Task",
    "augment",
    "classification",
    "from_functions",
    "from_linen",
    "from_nnx",
]
