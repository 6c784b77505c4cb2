"""Flags that switch a module between training and evaluation, recognized by name."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import jax
from flax import linen, nnx

TRAIN_FLAGS = (  # true in training
    "train",
    "training",
    "is_train",
    "is_training",
    "train_mode",
    "training_mode",
)
EVAL_FLAGS = (  # true in evaluation
    "deterministic",
    "use_running_average",
    "inference",
    "is_inference",
    "inference_mode",
    "eval",
    "is_eval",
    "eval_mode",
    "evaluate",
    "evaluation",
    "test",
    "testing",
    "is_test",
    "is_testing",
)


def values_of(names: tuple[str, ...], train: bool) -> dict[str, Any]:
    """Return the values of these flags in training, or in evaluation."""
    return {name: train == (name in TRAIN_FLAGS) for name in names}


def call_flags(module_class: type) -> tuple[str, ...]:
    """Return the arguments of the class's `__call__` that are known flags.

    Raise a ValueError for another argument without a default, whose value is unknown.
    """
    parameters = inspect.signature(module_class.__call__).parameters
    kinds = inspect.Parameter
    others = [  # besides the module itself and its input
        p
        for p in list(parameters.values())[2:]
        if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    found = tuple(p.name for p in others if p.name in TRAIN_FLAGS + EVAL_FLAGS)
    for parameter in others:
        if parameter.default is kinds.empty and parameter.name not in found:
            raise ValueError(
                f"{module_class.__name__}.__call__ needs the argument "
                f"{parameter.name!r}, which is not a known flag for training or "
                f"evaluation "
                f"({', '.join(TRAIN_FLAGS + EVAL_FLAGS)}): rename it, or add a default"
            )
    return found


def field_flags(module: linen.Module) -> tuple[str, ...]:
    """Return the module's fields that are known flags with boolean values."""
    names = (field.name for field in dataclasses.fields(module))
    return tuple(
        name
        for name in names
        if name in TRAIN_FLAGS + EVAL_FLAGS and isinstance(getattr(module, name), bool)
    )


def set_mode(module: nnx.Module, train: bool) -> None:
    """Put an nnx module, and all modules in it, in training or evaluation mode.

    `.train()` and `.eval()` only know the attributes of Dropout and BatchNorm; other
    boolean attributes are set if they have the name of a known flag.
    """
    # called on the class, since a user's attribute `train` would hide the method
    (type(module).train if train else type(module).eval)(module)
    values = values_of(TRAIN_FLAGS + EVAL_FLAGS, train)
    for _, part in nnx.iter_modules(module):
        for name, value in values.items():
            if isinstance(vars(part).get(name), bool):
                setattr(part, name, value)


def warn_if_inert(module: linen.Module, init: Callable[[], Any]) -> None:
    """Warn if a module without flags has parts that need a flag to be switched on.

    `init` initializes the module; it is traced to find the modules that it calls.
    """
    found: dict[str, str] = {}

    def watch(next_fun: Callable, args: Any, kwargs: Any, context: Any) -> Any:
        part = context.module
        if _depends_on_mode(part):
            found.setdefault("/".join(part.path), type(part).__name__)
        return next_fun(*args, **kwargs)

    with linen.intercept_methods(watch):
        # a new function each time: a trace cached by JAX would not call the modules
        jax.eval_shape(lambda: init())
    if found:
        parts = ", ".join(f"{kind} ({path})" for path, kind in found.items())
        warnings.warn(
            f"{type(module).__name__} has {parts}, but no argument of its __call__ is "
            "a known flag for training: it is called in training as in evaluation, "
            "most likely without dropout and without updates of statistics. Add an "
            "argument `train` to __call__ and pass it on",
            stacklevel=8,  # the call of `classification`
        )


def _depends_on_mode(part: linen.Module) -> bool:
    """Whether this module behaves differently in training mode."""
    if isinstance(part, linen.Dropout):
        return part.rate > 0
    if isinstance(part, linen.MultiHeadDotProductAttention):
        return part.dropout_rate > 0
    return isinstance(part, linen.BatchNorm | linen.SpectralNorm)
