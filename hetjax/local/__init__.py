"""Local updates: a worker's step on each batch (device world)."""

from hetjax.local.buffers import (
    check_buffers,
    empty_buffers,
    merge_buffers,
    step_buffers,
    with_buffers,
    with_merge_buffers,
)
from hetjax.local.manual import new_replica, step_fn
from hetjax.local.updates import (
    LocalUpdate,
    eamsgd_nesterov,
    from_optax,
    gradient,
    heavy_ball,
    proximal,
    scaffold,
    sgd,
    with_lr_decay,
)

__all__ = [
    "LocalUpdate",
    "check_buffers",
    "eamsgd_nesterov",
    "empty_buffers",
    "from_optax",
    "gradient",
    "heavy_ball",
    "step_buffers",
    "new_replica",
    "merge_buffers",
    "proximal",
    "scaffold",
    "sgd",
    "step_fn",
    "with_buffers",
    "with_lr_decay",
    "with_merge_buffers",
]
