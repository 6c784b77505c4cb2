"""`make_round`: one bulk-synchronous round of a strategy as a pure function."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.arguments import Count, checked
from hetjax.data.batching import Batch
from hetjax.engine.programs.merge_functions import applied
from hetjax.engine.programs.task_programs import Programs, step_key
from hetjax.machine.types import PUSH_FETCH
from hetjax.merge.group import Group, unstacked
from hetjax.merge.types import Merge, MergeProperty
from hetjax.merge.worker_stats import WorkerStats
from hetjax.replica import Replica
from hetjax.runtimes.compiled.run_function import rate_dtype
from hetjax.strategies.custom_parts import check_custom_merges, check_custom_step
from hetjax.strategies.types import Strategy
from hetjax.tasks.task_checks import model_like, trainable_shapes
from hetjax.tasks.types import Task
from hetjax.tree import MergeState, ModelState, Params, PyTree


class RoundState(NamedTuple):
    """The state between rounds, of W workers."""

    replicas: Replica  # leaves [W, ...]
    merge: MergeState  # the center, its momentum, and so on
    steps: jax.Array  # int32 [W], steps taken by each worker
    key: jax.Array


class RoundFunctions(NamedTuple):
    """The pure functions of `make_round`."""

    init: Callable[..., RoundState]
    round: Callable[..., tuple[RoundState, dict[str, jax.Array]]]
    model: Callable[[RoundState], tuple[Params, ModelState]]


@checked
def make_round(task: Task, strategy: Strategy, *, workers: Count) -> RoundFunctions:
    """Return a strategy's bulk-synchronous round as pure functions, without a machine.

        init(key, params=None) -> state
        round(state, batches, *, learning_rate=None, steps=None) -> (state, metrics)
        model(state) -> (params, model_state)

    In a round each of the W `workers` takes K local steps, all side by side (`vmap`),
    and then the strategy's merge combines all replicas (push and fetch). The strategy's
    policy and sampler are not used: the caller chooses rounds and examples. Use
    `jax.jit`, `jax.lax.scan` over rounds, `jax.grad` through them, and `jax.vmap` over
    keys, rates or strategies made with traced settings.

    `batches` are a pair (x, y) of arrays, or trees of arrays, [W, K, B, ...]; or a
    `Batch`, which also has weights [W, K, B] and counts [W, K], for padded batches.
    `learning_rate` is a number or [W]; the default is the strategy's constant one. With
    `steps`, int [W], worker i takes only the first steps[i] <= K of its steps, and a
    worker with 0 steps is absent from the merge. `key` makes the initial parameters
    (`task.init(key)`), unless `params` (or a pair with the model state) are passed. The
    random key of step t of worker i is `key` folded with i and t, as in `train`, so
    that rounds of the same batches yield the same parameters, up to rounding.

    `metrics` are the mean training loss of all examples of the round, "loss" [], and
    that of every step, "losses" [W, K], NaN for steps that were not taken. `model`
    returns the merged model, which `task.metrics` evaluates.

    Errors: a ValueError for a strategy whose merge is a tree of merges, needs metrics
    of held-out examples, or has partners (use `make_run`); for complex or integer
    parameters; for a custom merge or local update with wrong outputs; for batches that
    do not have W workers; and for a missing learning rate if the strategy has no
    constant one. Unlike `train`, this does not check whether the losses of a batch's
    examples are coupled.

    >>> import hetjax as hj
    >>> import jax, jax.numpy as jnp
    >>> mlp = hj.from_functions(lambda key: jnp.zeros((3, 1)), lambda w, x: x @ w)
    >>> task = hj.task(mlp, lambda outputs, y: ((outputs - y) ** 2).mean(axis=-1))
    >>> strategy = hj.local_sgd(batch_size=8, learning_rate=0.1)
    >>> init, round, model = hj.make_round(task, strategy, workers=4)
    >>> batches = jnp.ones((4, 2, 8, 3)), jnp.ones((4, 2, 8, 1))
    >>> state, metrics = jax.jit(round)(init(jax.random.key(0)), batches)
    >>> metrics["losses"].shape
    (4, 2)
    """
    checked_batches: set[Any] = set()  # shapes with which a custom step was traced
    like = trainable_shapes(task)
    check_custom_merges(strategy, task)
    programs = Programs(task)  # not shared: settings of the strategy may be traced
    merge = _merge_of(strategy, programs)
    requires = (*merge.requires, *strategy.local.requires)
    begin = programs.replica(strategy.local, requires)
    step = programs.keyed_step_fn(strategy.local, requires)

    def init(key: jax.Array, params: PyTree = None) -> RoundState:
        """Return the state before the first round."""
        model = task.init(key) if params is None else model_like(task, params)
        replicas = jax.tree.map(
            lambda x: jnp.repeat(x[None], workers, axis=0), begin(*model)
        )
        state = merge.init(*tree.copies(model))
        return RoundState(replicas, state, jnp.zeros(workers, jnp.int32), key)

    def round(
        state: RoundState,
        batches: Any,
        *,
        learning_rate: Any = None,
        steps: Any = None,
    ) -> tuple[RoundState, dict[str, jax.Array]]:
        """Take all local steps, and merge."""
        batches = _batches(batches, workers)
        most = batches.count.shape[1]
        rates = _rates(strategy, learning_rate, state.replicas.params, workers)
        taken = jnp.full(workers, most) if steps is None else jnp.asarray(steps)
        leaves, structure = jax.tree.flatten(batches)  # a BCOO has its own vmap
        shapes = tuple(jax.ShapeDtypeStruct(x.shape[2:], x.dtype) for x in leaves)
        if (structure, shapes) not in checked_batches:
            batch = jax.tree.unflatten(structure, shapes)
            check_custom_step(strategy.local, task, batch)
            checked_batches.add((structure, shapes))

        def local(
            worker: Any, replica: Replica, first: Any, n: Any, rate: Any, own: Any
        ):
            def one(replica: Replica, now: Any) -> tuple[Replica, Any]:
                k, of_step = now
                batch = jax.tree.unflatten(structure, of_step)
                key = step_key(state.key, worker, first + k)
                new, _, loss = step(replica, batch, rate, key)
                if steps is not None:
                    new = jax.tree.map(
                        lambda a, b: jnp.where(k < n, a, b), new, replica
                    )
                return new, loss

            return jax.lax.scan(one, replica, (jnp.arange(most), own))

        replicas, losses = jax.vmap(local)(
            jnp.arange(workers), state.replicas, state.steps, taken, rates, leaves
        )
        here = jnp.arange(most)[None] < taken[:, None]
        counts = jnp.where(here, batches.count, 0.0)
        stats = _stats(taken, batches.count, counts, rates)
        center, replicas = _merged(merge, state.merge, replicas, stats)
        total = jnp.where(here, losses * counts, 0.0).sum()
        metrics = {
            "loss": total / jnp.maximum(counts.sum(), 1.0),
            "losses": jnp.where(here, losses, jnp.nan),
        }
        after = state.steps + taken.astype(jnp.int32)
        return RoundState(replicas, center, after, state.key), metrics

    def model(state: RoundState) -> tuple[Params, ModelState]:
        """Return the merged model."""
        return tree.cast_like(merge.model(state.merge), like)

    return RoundFunctions(init, round, model)


def _merge_of(strategy: Strategy, programs: Programs) -> Merge:
    """Return the strategy's merge; a ValueError if it does not merge all workers."""
    merge, *others = programs.merges_of(strategy)
    why = ""
    if others:
        why = "merges at the nodes of a tree"
    elif merge.required_metrics:
        why = "weighs workers by their metrics on held-out examples"
    elif merge.updates_busy_workers or PUSH_FETCH not in merge.ops:
        why = "does not merge all workers at once"
    if why:
        raise ValueError(
            f"{strategy.name} {why}, which is not a round of all workers; use "
            "hj.make_run or hj.train"
        )
    return merge


def _batches(batches: Any, workers: int) -> Batch:
    """Return batches with weights and counts; check that they have W workers."""
    if not isinstance(batches, Batch):
        if not isinstance(batches, tuple | list) or len(batches) != 2:
            raise ValueError(
                "batches must be a pair (x, y) of arrays [workers, steps, examples, "
                "...], or a Batch"
            )
        x, y = batches
        shape = jnp.shape(jax.tree.leaves(y)[0])[:3]
        batches = Batch(x, y, jnp.ones(shape), jnp.full(shape[:2], float(shape[-1])))
    shape = jnp.shape(batches.weight)
    if len(shape) != 3 or shape[0] != workers:
        raise ValueError(
            f"batches have the shape {shape}; their first axes must be workers (here "
            f"{workers}), local steps, and examples"
        )
    return batches


def _rates(strategy: Strategy, given: Any, params: Params, workers: int) -> jax.Array:
    """Return the learning rates [W] of a round."""
    rate: Any = strategy.learning_rate if given is None else given
    if given is None and not isinstance(rate, int | float):
        raise ValueError(
            f"learning_rate of {strategy.name} is a function of the examples; pass "
            "that of this round, round(..., learning_rate=...)"
        )
    if jnp.shape(rate) not in ((), (workers,)):
        raise ValueError(
            f"learning_rate has shape {jnp.shape(rate)}; pass one number, or one for "
            f"each of the {workers} workers"
        )
    return jnp.broadcast_to(jnp.asarray(rate, rate_dtype(params)), (workers,))


def _stats(
    steps: jax.Array, sizes: jax.Array, counts: jax.Array, rates: jax.Array
) -> WorkerStats:
    """Return worker statistics of a round; `counts` [W, K] are of the steps taken."""
    n = len(steps)
    ones, zeros = jnp.ones(n, rates.dtype), jnp.zeros(n, rates.dtype)
    last = jnp.clip(steps - 1, 0)
    size = jnp.take_along_axis(sizes, last[:, None], axis=1)[:, 0]
    return WorkerStats(
        worker=jnp.arange(n, dtype=jnp.int32),
        local_steps=steps.astype(rates.dtype),
        batch_size=jnp.where(steps > 0, size, 0.0).astype(rates.dtype),
        examples=counts.sum(axis=1).astype(rates.dtype),
        learning_rate=rates,
        staleness=zeros,
        leaves=ones,
        share=ones,
        accuracy=zeros,
        weight=ones,
        server_steps=zeros[0],
        num_workers=ones.sum(),
    )


def _merged(
    merge: Merge, state: MergeState, replicas: Replica, stats: WorkerStats
) -> tuple[MergeState, Replica]:
    """Return (state, replicas [W, ...]) after a merge of all workers."""
    if MergeProperty.TAKES_GROUPS in merge.properties:
        group: Any = Group((replicas,), stacked=len(stats.local_steps))
        state, (after,) = applied(merge, state, group, stats, PUSH_FETCH)
        return state, tree.cast_like(after, replicas)
    n = len(stats.local_steps)
    state, several = applied(merge, state, unstacked(replicas, n), stats, PUSH_FETCH)
    after = jax.tree.map(lambda *x: jnp.stack(x), *several)
    return state, tree.cast_like(after, replicas)
