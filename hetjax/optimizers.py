"""Optimizers of optax: what hetjax accepts, and the extra arguments that they need."""

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from hetjax.arguments import shown
from hetjax.tree import OptState, Params, PyTree

Optimizer: TypeAlias = (
    optax.GradientTransformation
    | optax.MultiSteps
    | Callable[[float], optax.GradientTransformation]
)
"""An optimizer with its own learning rate, or a function of the rate (`optax.adam`)."""

_UNDOES = "computes the parameters from its own initial ones, which would undo merges"
UNFIT = {  # by the names of their states
    "COCOBState": f"cocob {_UNDOES}",
    "DifferentiallyPrivateAggregateState": "dpsgd needs the gradient of every example, "
    "but only the batch's is available",
    "LookaheadState": "lookahead trains two sets of parameters, but a worker has one",
    "MechanicState": f"mechanize {_UNDOES}",
    "SAMState": "sam moves the parameters away from the model's and back, also across "
    "a merge",
}
_ONES = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}


def built(optimizer: Optimizer, where: str) -> optax.GradientTransformation:
    """The optimizer, or the one that a function of the learning rate returns for 1.

    Whoever applies its updates multiplies them by the learning rate, which is data and
    may change at every step. `where` names the argument in errors.
    """
    try:
        found = _of_rate_one(optimizer) if callable(optimizer) else optimizer
    except TypeError as error:
        raise ValueError(
            f"{where}: {shown(optimizer)} fails for the learning rate 1.0 ({error}): "
            "pass a function of the learning rate alone"
        ) from error
    if isinstance(found, optax.MultiSteps):
        found = found.gradient_transformation()
    if not isinstance(found, optax.GradientTransformation):
        raise ValueError(
            f"{where}: {shown(optimizer)} is not an optax optimizer: pass one, such as "
            "optax.adam(1e-3), or a function of the learning rate, such as optax.adam"
        )
    return found


@lru_cache  # strategies with equal optimizers share their compiled programs
def _of_rate_one(factory: Callable[[float], Any]) -> Any:
    return factory(1.0)


def update(
    tx: optax.GradientTransformation,
    grads: PyTree,
    opt: OptState,
    params: Params,
    extra_args: dict[str, Any],
) -> tuple[PyTree, OptState]:
    """Call tx.update, with `extra_args` if the optimizer takes extra arguments.

    They may be the loss as a "value", and as a function of the params, "value_fn",
    which Sophia calls `obj_fn`.
    """
    names = _fitting(opt, "optimizer=")  # masks may have hidden unfit parts before
    if not isinstance(tx, optax.GradientTransformationExtraArgs):
        return tx.update(grads, opt, params)
    if "value_fn" in extra_args and "HutchinsonState" in names:
        extra_args = {**extra_args, "obj_fn": extra_args["value_fn"]}
    return tx.update(grads, opt, params, grad=grads, **extra_args)


def check_worker_optimizer(
    tx: optax.GradientTransformation, where: str, *, sparse_updates: bool
) -> None:
    """Raise a ValueError if a worker cannot train with an optimizer, saying why."""
    state = _state_of_ones(tx)
    schedule_free = "ScheduleFreeState" in _fitting(state, where)
    if schedule_free and not is_schedule_free(state):
        raise ValueError(
            f"{where}: schedule_free is inside another transformation, where its "
            "evaluation parameters cannot be found: put the others into its "
            "base_optimizer"
        )
    failed = _failure(tx, **_LOSS)
    if isinstance(failed, TypeError) and "required keyword-only" in str(failed):
        raise ValueError(
            f"{where}: the optimizer needs an argument that hetjax does not have "
            f"({failed}): it passes value, grad, value_fn and obj_fn"
        )
    needs_loss_function = failed is None and _failure(tx, value=1.0) is not None
    if sparse_updates and (schedule_free or needs_loss_function):
        raise ValueError(
            f"{where}: the optimizer needs all parameters at every step, but "
            "sparse_updates=True passes only the rows of a batch: leave it out"
        )


def check_center_optimizer(tx: optax.GradientTransformation, where: str) -> None:
    """Raise a ValueError if an optimizer cannot be that of a center, saying why.

    A center gets gradients, and has no examples.
    """
    if "ScheduleFreeState" in _fitting(_state_of_ones(tx), where):
        raise ValueError(
            f"{where}: schedule_free is for workers (optimizer= of local_sgd, ...): a "
            "center has no evaluation parameters"
        )
    if _failure(tx) is not None and _failure(tx, **_LOSS) is None:
        raise ValueError(
            f"{where}: the optimizer needs the loss of a batch at every step, and a "
            "center only gets gradients: use it at the workers (optimizer= of "
            "local_sgd, ...), or another one here"
        )


def is_schedule_free(state: OptState) -> bool:
    """Whether this is the state of optax.contrib.schedule_free, not within another."""
    return isinstance(state, optax.contrib.ScheduleFreeState)


def _parts(state: Any) -> Iterator[Any]:
    yield state
    inside = tuple(state.values()) if isinstance(state, dict) else state
    for part in inside if isinstance(inside, tuple | list) else ():
        yield from _parts(part)


def _fitting(state: OptState, where: str) -> set[str]:
    """The names of a state and of all states within it; ValueError for unfit ones."""
    names = {type(part).__name__ for part in _parts(state)}
    for name in sorted(names.intersection(UNFIT)):
        raise ValueError(f"{where}: optax's {UNFIT[name]}: use another optimizer")
    return names


def _state_of_ones(tx: optax.GradientTransformation) -> OptState:
    """The state for parameters of ones; () if the optimizer only fits other ones."""
    try:
        return jax.eval_shape(tx.init, _ONES)
    except Exception:  # such as of a mask
        return ()


def _failure(tx: optax.GradientTransformation, **extra_args: Any) -> Exception | None:
    """The error that the first update raises; masks that do not fit also raise one."""

    def first_update(ones):
        return update(tx, ones, tx.init(ones), ones, extra_args)

    try:
        jax.eval_shape(first_update, _ONES)
    except Exception as error:  # whatever a user's transformation raises
        return error
    return None


def _half_square(params: Params) -> jax.Array:
    """A loss whose gradient is the parameters."""
    return jnp.asarray(sum(jnp.vdot(w, w) for w in jax.tree.leaves(params))) / 2


_LOSS = {"value": 1.0, "value_fn": _half_square}
