"""Random streams and sown values of calls of flax modules."""

import re
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import DenyList
from flax.errors import InvalidRngError

UNSOWN = ("intermediates",)  # collections that flax.linen leaves out of `init`


def seeded(streams: Any, key: jax.Array) -> Any:
    """Return an nnx module's random streams, each with its own key derived from `key`.

    A module made by `nnx.vmap` or `nnx.scan` has several keys in one variable; each
    gets a different key.
    """

    def start(i: int, leaf: Any) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        new = jax.random.fold_in(key, i)
        return jax.random.split(new, leaf.shape) if leaf.shape else new

    leaves, structure = jax.tree.flatten(streams)
    return jax.tree.unflatten(structure, map(start, range(len(leaves)), leaves))


def without_sown(module: Any) -> Any:
    """Return the nnx module without the values sown by earlier calls.

    It shares its variables with the original.
    """
    shared = nnx.merge(*nnx.split(module))
    nnx.pop(shared, nnx.Intermediate)
    return shared


def without_new(before: Any, after: Any) -> Any:
    """Return the state `after` a call, without the values that the call has sown.

    Raise a ValueError if the call has created another variable, which would be lost.
    """
    known = {path for path, _ in nnx.to_flat_state(before)}
    flat = nnx.to_flat_state(after)
    for path, leaf in flat:
        if path not in known and not _is_sown(leaf):
            raise ValueError(
                f"the model's call creates the variable {'/'.join(map(str, path))} of "
                f"kind {type(leaf).__name__}: create it in __init__, or, if it is "
                "sown, make its kind a subclass of nnx.Intermediate"
            )
    return nnx.from_flat_state([(path, leaf) for path, leaf in flat if path in known])


def _is_sown(leaf: Any) -> bool:
    """Whether `sow` has created this variable; by default it appends to a tuple."""
    value = leaf.get_value() if isinstance(leaf, nnx.Variable) else leaf
    return isinstance(leaf, nnx.Intermediate) or isinstance(value, tuple)


def sown_collections(
    names: tuple[str, ...], init: Callable[[DenyList], Any]
) -> tuple[str, ...]:
    """Return the collections among `names` into which a linen module only sows.

    init(mutable) initializes the module. If a collection is immutable, `sow` does
    nothing, but creating state in it fails.
    """

    def is_sown(name: str) -> bool:
        try:
            jax.eval_shape(lambda: init(DenyList([*UNSOWN, name])))
        except Exception:  # whatever a user's module raises without its state
            return False
        return True

    return tuple(name for name in names if is_sown(name))


def with_streams(run: Callable[..., Any], default: str, key: jax.Array) -> Any:
    """Call run(rngs) of a linen module with every random stream that it asks for.

    The `default` stream has the key itself, others have keys derived from it. Flax does
    not list a module's streams, but raises an error for a missing one.
    """
    rngs = {default: key}
    while True:
        try:
            return run(rngs)
        except InvalidRngError as error:
            asked = re.search(r'needs PRNG for "([^"]+)"', str(error))
            # flax draws from "params" in place of any other stream
            name = asked[1] if asked and asked[1] not in rngs else "params"
            if name in rngs:
                raise
            rngs[name] = jax.random.fold_in(key, zlib.crc32(name.encode()))
