"""A worker's replica of the model: the types that local updates and merges share."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from hetjax.tree import ModelState, OptState, Params, PyTree


class Replica(NamedTuple):
    """A worker's copy of the model, its optimizer state and its buffers."""

    params: Params
    model_state: ModelState = ()
    opt_state: OptState = ()
    carry: dict[str, PyTree] = {}  # the buffers that the merge and the update require


class Buffer(NamedTuple):
    """A buffer that a merge declares for itself, in its `requires`.

    `init(params)` is the first value of `Replica.carry[name]`. Only the merge changes
    it.

    >>> import jax.numpy as jnp
    >>> Buffer("rounds", lambda params: jnp.zeros(())).name
    'rounds'
    """

    name: str
    init: Callable[[Params], PyTree]


Requires: TypeAlias = tuple[str | Buffer, ...]
"""Names of known buffers and declarations of a merge's own (`hetjax.local.buffers`)."""
