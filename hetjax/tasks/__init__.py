"""Tasks: the init, loss and metrics of any flax module as pure functions."""

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
