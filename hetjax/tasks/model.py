"""Models as pure functions: from flax.nnx, from flax.linen, from plain functions.

`model_state`, such as batch statistics, is a tree separate from the parameters; for
flax modules both are plain nested dictionaries of arrays.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen, nnx
from flax.core import DenyList

from hetjax import sparse
from hetjax.arguments import checked
from hetjax.data.batching import make_batch, make_buckets
from hetjax.data.dataset import Dataset
from hetjax.output import OutputParam
from hetjax.recipes import by_name
from hetjax.tasks import flax_calls, train_flags
from hetjax.tree import ModelState, Params


class Model(NamedTuple):
    """A model without a loss.

    init(key) -> (params, model_state)
    apply(params, model_state, x, key, train) -> (outputs, model_state)
    restore(params, model_state) -> the user's model with these values
    call(function, params, model_state, key, train) -> (function(the user's model with
        these values), model_state): for losses that call the model themselves
    """

    init: Callable[[jax.Array], tuple[Params, ModelState]]
    apply: Callable[
        [Params, ModelState, Any, jax.Array, bool], tuple[jax.Array, ModelState]
    ]
    restore: Callable[[Params, ModelState], Any]
    row_params: tuple[str, ...] = ()
    output_params: tuple[str, ...] = ()
    call: Callable[..., tuple[Any, ModelState]] | None = None


def as_model(
    model: Any,
    data: Dataset | None,
    row_params: tuple[str, ...] = (),
    output_params: tuple[str, ...] = (),
    sizes: tuple[Any, ...] | None = None,
    transform: Callable[[Any], Any] = lambda x: x,
) -> Model:
    """Convert anything that a task accepts as `model` to a `Model`.

    A builder of modules is called with `sizes` (by default the data's features and
    classes) and rngs; a linen module is initialized with transform(example).
    """
    found = _convert(model, data, sizes, transform)
    found = found._replace(
        row_params=found.row_params + tuple(row_params),
        output_params=found.output_params + tuple(output_params),
    )
    given = {"row_params": found.row_params, "output_params": found.output_params}
    known = param_shapes(found) if any(given.values()) else {}
    for argument, names in given.items():
        for name in names:
            if name not in known:
                raise ValueError(
                    f"{argument}: the model has no parameter {name!r}; it has "
                    f"{', '.join(known)}"
                )
    return found


def param_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter by its path, without computing anything."""
    params, _ = jax.eval_shape(model.init, jax.random.key(0))
    leaves = jax.tree_util.tree_leaves_with_path(params)
    names = [sparse.path_name(path) for path, _ in leaves]
    for twice, number in Counter(names).items():
        if number > 1:
            raise ValueError(
                f"the model has {number} parameters with the path {twice!r}, which is "
                "then ambiguous: rename one, without a slash in its name"
            )
    return {name: leaf.shape for name, (_, leaf) in zip(names, leaves, strict=True)}


def _convert(
    model: Any,
    data: Dataset | None,
    sizes: tuple[Any, ...] | None,
    changed: Callable[[Any], Any],
) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, nnx.Module):
        return from_nnx(model)
    if isinstance(model, linen.Module):
        if data is None:
            raise ValueError(
                "a flax.linen module takes its shapes from an example: pass data=..."
            )
        one = make_batch(data.train, np.zeros(1, int), make_buckets(data.train, 1))
        return from_linen(model, changed(one.x))
    if callable(model):
        if sizes is None:
            assert data is not None
            sizes = data.num_features, data.num_classes
        given = sizes
        _check_builder(model, given)
        return from_nnx(lambda rngs: model(*given, rngs=rngs))
    raise ValueError(
        f"model is a {type(model).__name__}: pass a flax.nnx module or a callable that "
        "builds one, a flax.linen module, or hetjax.from_functions(init, apply)"
    )


def _check_builder(build: Callable, sizes: tuple[Any, ...]) -> None:
    """Raise a ValueError unless `build` accepts the arguments that a task passes."""
    try:
        # a module's metaclass accepts anything and passes it on to __init__
        first = (None,) if inspect.isclass(build) else ()
        signature = inspect.signature(build.__init__ if first else build)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*first, *sizes, rngs=None)
    except TypeError as error:
        name = getattr(build, "__name__", type(build).__name__)
        called = ", ".join([*map(str, sizes), "rngs=..."])
        raise ValueError(
            f"the model is built as {name}({called}), which fails ({error}): accept "
            "these arguments, or wrap it in a function that does"
        ) from None


@by_name
@checked
def from_functions(
    init: Callable[[jax.Array], Params],
    apply: Callable[[Params, Any], jax.Array],
    *,
    row_params: tuple[str, ...] = (),
    output_params: tuple[str, ...] = (),
) -> Model:
    """A model made of two functions: init(key) -> params; apply(params, x) -> outputs.

    The restored model is `x -> apply(params, x)`.
    """
    return Model(
        lambda key: (init(key), ()),
        lambda params, state, x, key, train: (apply(params, x), state),
        lambda params, state: lambda x: apply(params, x),
        row_params,
        output_params,
        lambda function, params, state, key, train: (
            function(lambda x: apply(params, x)),
            state,
        ),
    )


def from_nnx(model: nnx.Module | Callable[[nnx.Rngs], Any]) -> Model:
    """A model made of a flax.nnx module, or of a function that builds one from rngs.

    A module starts every seed from its current parameters; a builder makes new ones for
    each seed. `Param`s are parameters, random streams are set from the step's key,
    `Intermediate`s and other sown values are discarded after each call, and everything
    else is model state. A call that creates another variable is a ValueError.
    `.train()` and `.eval()` switch the mode; attributes and call arguments named like a
    flag (`tasks.train_flags`) are set, too, since they would otherwise override it. The
    restored model is a new module in evaluation mode.
    """
    instance = isinstance(model, nnx.Module)
    skeleton = model if instance else nnx.eval_shape(lambda: model(nnx.Rngs(0)))
    skeleton = flax_calls.without_sown(skeleton)
    graph, params_0, streams, rest_0 = _split(skeleton)
    in_call = train_flags.call_flags(type(skeleton))

    def merged(params: Params, model_state: ModelState, key: jax.Array) -> nnx.Module:
        state = _filled(params_0, params), _filled(rest_0, model_state)
        return nnx.merge(
            graph, state[0], flax_calls.seeded(streams, key), state[1], copy=True
        )

    def values_of(built: Any) -> tuple[Params, ModelState]:
        _, params, _, rest = _split(flax_calls.without_sown(built))
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    # read once: JAX traces `init` once, and would not see a later change
    current = values_of(model) if instance else None

    def init(key):
        return values_of(model(nnx.Rngs(key))) if current is None else current

    def call(function, params, model_state, key, train):
        module = merged(params, model_state, key)
        train_flags.set_mode(module, train)
        result = function(module)
        _, params_1, _, rest = _split(module)
        flax_calls.without_new(params_0, params_1)
        return result, nnx.to_pure_dict(flax_calls.without_new(rest_0, rest))

    def restore(params, model_state):
        module = merged(params, model_state, jax.random.key(0))
        train_flags.set_mode(module, False)
        return module

    rows, outputs = (
        tuple(
            "/".join(map(str, path))
            for path, leaf in nnx.to_flat_state(params_0)
            if isinstance(leaf, kind)
        )
        for kind in (sparse.RowParam, OutputParam)
    )
    apply = _apply_of(call, in_call)
    return Model(init, apply, restore, rows, outputs, call)


def _apply_of(call: Callable[..., Any], in_call: tuple[str, ...]) -> Callable[..., Any]:
    """Return `Model.apply` of a flax module, from its `Model.call` and call flags."""

    def apply(params, model_state, x, key, train):
        flags = train_flags.values_of(in_call, train)
        return call(lambda m: m(x, **flags), params, model_state, key, train)

    return apply


def _split(module: Any) -> tuple:
    return nnx.split(module, nnx.Param, nnx.RngState, ...)


def _filled(state: Any, pure: Any) -> Any:
    """Return a copy of an nnx State with the values of a pure dictionary."""
    filled = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(filled, pure)
    return filled


def from_linen(
    module: linen.Module, example: Any, *, row_params: tuple[str, ...] = ()
) -> Model:
    """A model made of a flax.linen module, with shapes inferred from a batch `example`.

    Call arguments or fields of the module are set if they are named like a training
    flag ("train", "is_training", ...) or an evaluation flag ("deterministic",
    "use_running_average", "inference", ...); `tasks.train_flags` lists all names. A
    module with dropout or batch normalization but without a flag causes a warning.
    Every random stream requested by `make_rng` is provided. "params" are the
    parameters, collections into which the module only sows are discarded after each
    call, and all other collections are model state.
    """
    in_call = train_flags.call_flags(type(module))
    in_fields = train_flags.field_flags(module)

    def moded(train: bool) -> tuple[linen.Module, dict[str, Any]]:
        """Return the module in this mode, and the flags to pass to its call."""
        fields = train_flags.values_of(in_fields, train)
        return (
            module.clone(**fields) if fields else module,
            train_flags.values_of(in_call, train),
        )

    sown: list[str] = list(flax_calls.UNSOWN)
    others: set[str] = set()  # collections that are state

    def init(key):
        evaluated, flags = moded(False)

        def variables_of(mutable: Any) -> dict[str, Any]:
            def run(rngs: dict[str, jax.Array]) -> Any:
                return evaluated.init(rngs, example, mutable=mutable, **flags)

            return dict(flax_calls.with_streams(run, "params", key))

        variables = variables_of(DenyList(flax_calls.UNSOWN))
        params = variables.pop("params", {})
        unknown = tuple(n for n in variables if n not in others and n not in sown)
        sown.extend(flax_calls.sown_collections(unknown, variables_of))
        state = {name: v for name, v in variables.items() if name not in sown}
        others.update(state)
        return params, state

    def call(function, params, model_state, key, train):
        variables = {"params": params, **model_state}
        chosen, _ = moded(train)
        # collections of sown values are mutable, too: a custom loss may read them
        mutable = [*sown, *model_state] if train else list(sown)
        running = linen.apply(function, chosen, mutable=mutable)
        result: Any = flax_calls.with_streams(
            lambda rngs: running(variables, rngs=rngs), "dropout", key
        )
        changed = {k: v for k, v in result[1].items() if k not in sown}
        return result[0], {**model_state, **changed}

    def restore(params, model_state):
        variables = {"params": params, **model_state}
        # the key is for draws, in whatever the user calls
        return moded(False)[0].bind(variables, rngs={"params": jax.random.key(0)})

    if not (in_call or in_fields):
        train_flags.warn_if_inert(module, lambda: init(jax.random.key(0)))
    apply = _apply_of(call, in_call)
    return Model(init, apply, restore, tuple(row_params), call=call)
