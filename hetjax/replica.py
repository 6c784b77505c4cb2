"""What a worker holds of the model: the words that local updates and merges share."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from hetjax.tree import PyTree

Params: TypeAlias = PyTree  # parameters of a model
ModelState: TypeAlias = PyTree  # batch statistics and the like; () if there are none
OptState: TypeAlias = PyTree  # of a local update


class Replica(NamedTuple):
    """A worker's copy of the model and what it keeps beside it."""

    params: Params
    model_state: ModelState = ()
    opt_state: OptState = ()
    carry: dict[str, PyTree] = {}  # the buffers that the merge and the update require


class Buffer(NamedTuple):
    """A buffer of a merge's own, declared among its `requires`.

    `init(params)` is what `Replica.carry[name]` begins with. Only the merge changes it.

    >>> import jax.numpy as jnp
    >>> Buffer("rounds", lambda params: jnp.zeros(())).name
    'rounds'
    """

    name: str
    init: Callable[[Params], Any]


Requires: TypeAlias = tuple[str | Buffer, ...]
"""Names of known buffers, and declarations of others (see `hetjax.local.buffers`)."""
