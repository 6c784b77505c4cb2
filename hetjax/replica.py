"""A worker's replica of the model: the types that local updates and merges share."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from hetjax.tree import ModelState, OptState, Params, PyTree


class _ReplicaFields(NamedTuple):
    params: Params
    model_state: ModelState
    opt_state: OptState
    carry: dict[str, PyTree]  # the buffers that the merge and the update require


EMPTY: Any = MappingProxyType({})


class Replica(_ReplicaFields):
    """A worker's copy of the model, its optimizer state and its buffers.

    A named tuple, and thus a pytree. `carry` is a dict of buffers by name, by default a
    new, empty one.
    """

    __slots__ = ()

    def __new__(
        cls,
        params: Params,
        model_state: ModelState = (),
        opt_state: OptState = (),
        carry: dict[str, PyTree] = EMPTY,
    ) -> "Replica":
        """Create a replica; without `carry`, it has its own empty dict."""
        carry = {} if carry is EMPTY else carry
        return super().__new__(cls, params, model_state, opt_state, carry)


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
"""Names of known buffers and declarations of custom ones (`hetjax.local.buffers`)."""
