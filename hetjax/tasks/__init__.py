"""Tasks: a model's init, loss and metrics as pure functions, from any flax module."""

from hetjax.tasks import augment
from hetjax.tasks.classification import classification
from hetjax.tasks.custom import task
from hetjax.tasks.model import Model, from_functions, from_linen, from_nnx
from hetjax.tasks.next_token import next_token
from hetjax.tasks.regression import regression
from hetjax.tasks.types import Mean, Task

__all__ = [
    "Mean",
    "Model",
    "Task",
    "augment",
    "classification",
    "from_functions",
    "from_linen",
    "from_nnx",
    "next_token",
    "regression",
    "task",
]
