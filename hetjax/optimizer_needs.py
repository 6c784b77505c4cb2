"""Extra arguments that optax optimizers need, and checks for unusable optimizers.

`optax.GradientTransformationExtraArgs` may take the loss of the batch (`value`), or
evaluate it at other parameters (`value_fn`, which Sophia calls `obj_fn`).
"""

import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hetjax.made_of import enclosed_by
from hetjax.tree import OptState, Params, PyTree

_BY_EXAMPLE = "needs the gradient of every example, but only the batch's is available"
_UNDOES = "computes the parameters from its own initial ones, which would undo merges"
_AWAY = "moves the parameters away from the model's and back, also across a merge"
_SLOW = "trains two sets of parameters, but a worker has only one"
UNFIT = {  # by the names of the optax functions that return them
    "cocob": _UNDOES,
    "differentially_private_aggregate": _BY_EXAMPLE,
    "dpsgd": _BY_EXAMPLE,
    "lookahead": _SLOW,
    "mechanize": _UNDOES,
    "sam": _AWAY,
    "scale_by_cocob": _UNDOES,
}
SCHEDULE_FREE = ("schedule_free", "schedule_free_adamw", "schedule_free_sgd")


def update(
    tx: optax.GradientTransformation,
    grads: PyTree,
    opt: OptState,
    params: Params,
    extra_args: dict[str, Any],
) -> tuple[PyTree, OptState]:
    """Call tx.update, with `extra_args` if the optimizer takes extra arguments.

    They may be the loss as a "value" and as a function of the params, "value_fn".
    """
    if not isinstance(tx, optax.GradientTransformationExtraArgs):
        return tx.update(grads, opt, params)
    if "value_fn" in extra_args and _takes(tx, "obj_fn"):  # line searches refuse it
        extra_args = {**extra_args, "obj_fn": extra_args["value_fn"]}
    return tx.update(grads, opt, params, grad=grads, **extra_args)


def check_is_optimizer(tx: Any, where: str) -> None:
    """Raise a ValueError unless this is an optax optimizer; `where` names it."""
    if not (hasattr(tx, "init") and hasattr(tx, "update")):
        raise ValueError(
            f"{where}: {tx!r} is not an optax optimizer: pass one, such as "
            "optax.adam(1.0)"
        )


def check_worker_optimizer(
    tx: optax.GradientTransformation, where: str, *, sparse_updates: bool
) -> None:
    """Raise a ValueError if a worker cannot train with an optimizer, saying why.

    `where` names the argument.
    """
    makers = _check_fit(tx, where)
    if makers.intersection(SCHEDULE_FREE) and not is_schedule_free(tx):
        raise ValueError(
            f"{where}: schedule_free is inside another transformation, where its "
            "evaluation parameters cannot be found: put the others into its "
            "base_optimizer"
        )
    failed = _failure(tx, OF_ONES)
    if isinstance(failed, TypeError) and "required keyword-only" in str(failed):
        raise ValueError(
            f"{where}: the optimizer needs an argument that hetjax does not have "
            f"({failed}): it passes value, grad, value_fn and obj_fn"
        )
    whole = is_schedule_free(tx) or (
        failed is None and _failure(tx, {"value": 1.0}) is not None
    )
    if sparse_updates and whole:
        raise ValueError(
            f"{where}: the optimizer needs all parameters at every step, but "
            "sparse_updates=True passes only the rows of a batch: leave it out"
        )


def check_center_optimizer(tx: optax.GradientTransformation, where: str) -> None:
    """Raise a ValueError if an optimizer cannot be that of a center, saying why.

    `where` names the argument. A center gets gradients, and has no examples.
    """
    if _check_fit(tx, where).intersection(SCHEDULE_FREE):
        raise ValueError(
            f"{where}: schedule_free is for workers (optimizer= of local_sgd, ...): a "
            "center has no evaluation parameters"
        )
    if _failure(tx, {}) is not None and _failure(tx, OF_ONES) is None:
        raise ValueError(
            f"{where}: the optimizer needs the loss of a batch at every step, and a "
            "center only gets gradients: use it at the workers (optimizer= of "
            "local_sgd, ...), or another one here"
        )


def is_schedule_free(tx: optax.GradientTransformation) -> bool:
    """Whether this is optax.contrib.schedule_free, not within another one."""
    return _maker(tx.update) == "schedule_free"


def first_update(tx: optax.GradientTransformation, **extra_args: Any) -> PyTree:
    """The first update for parameters of ones, with the gradient of `half_square`."""
    ones = {"w": jnp.ones(2)}
    return update(tx, ones, tx.init(ones), ones, extra_args)[0]


def half_square(params: Params) -> jax.Array:
    """Half the sum of all squares: a loss whose gradient is the parameters."""
    return jnp.asarray(sum(jnp.vdot(w, w) for w in jax.tree.leaves(params))) / 2


OF_ONES = {"value": 1.0, "value_fn": half_square}  # for `first_update`


def _check_fit(tx: optax.GradientTransformation, where: str) -> set[str]:
    """Return the makers of an optimizer's parts; raise a ValueError for unfit ones."""
    check_is_optimizer(tx, where)
    makers = set(map(_maker, _functions((tx.init, tx.update), set())))
    for name in sorted(makers.intersection(UNFIT)):
        raise ValueError(
            f"{where}: optax's {name} {UNFIT[name]}: use another optimizer"
        )
    return makers


def _failure(
    tx: optax.GradientTransformation, extra_args: dict[str, Any]
) -> Exception | None:
    """The error that the first update raises; masks that do not fit also raise one."""
    try:
        jax.eval_shape(partial(first_update, tx, **extra_args))
    except Exception as error:  # whatever a user's transformation raises
        return error
    return None


def _functions(found: Any, seen: set[int]) -> Iterator[Callable]:
    """The functions in `found`, and all those that they close over."""
    if id(found) in seen:
        return
    seen.add(id(found))
    if callable(found) and not isinstance(found, partial):
        yield found
    for part in parts_of(found):
        yield from _functions(part, seen)
    if isinstance(found, types.FunctionType):
        yield from _functions(tuple(enclosed_by(found)), seen)


def parts_of(found: Any) -> tuple[Any, ...]:
    """The parts of a container, a partial function or a method of optax's object."""
    if isinstance(found, tuple | list):
        return tuple(found)
    if isinstance(found, dict):
        return tuple(found.values())
    if isinstance(found, partial):
        return found.func, found.args, found.keywords
    own = getattr(found, "__self__", None)  # such as MultiSteps'
    return (vars(own),) if type(own).__module__.startswith("optax") else ()


def _takes(tx: optax.GradientTransformation, name: str) -> bool:
    """Whether a part of the optimizer has an argument of this name."""
    codes = (
        getattr(f, "__code__", None) for f in _functions((tx.init, tx.update), set())
    )
    return any(
        name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for code in codes
        if code is not None
    )


def _maker(function: Callable) -> str:
    """The outermost function of optax in which this one is defined, or ""."""
    if not (getattr(function, "__module__", None) or "").startswith("optax"):
        return ""
    return getattr(function, "__qualname__", "").split(".")[0]
