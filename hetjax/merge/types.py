"""The `Merge` interface: pure functions from a group's replicas to a common model."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from hetjax import tree
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.formulas.moves import moved
from hetjax.merge.formulas.weights import Numbers
from hetjax.merge.group import Group
from hetjax.merge.merge_checks import (
    WrongPart,
    check_buffers,
    check_count,
    check_op,
    check_steps,
)
from hetjax.replica import Replica, Requires
from hetjax.summaries import html_of, maker, two_lines
from hetjax.tree import MergeState, ModelState, Params, PyTree


class WorkerStats(NamedTuple):
    """What each member did since it last took part in a merge: arrays [n], or [].

    A member without local steps is absent: it does not affect the merge. Partners come
    last and have no local steps. The numbers of a node count all workers below it.
    `stats` builds a `WorkerStats` with defaults.
    """

    worker: jax.Array  # int32, index of the worker; -1 for a node
    local_steps: jax.Array
    batch_size: jax.Array  # [examples] of the last round, real-valued
    examples: jax.Array  # [examples]
    learning_rate: jax.Array  # of the last round
    staleness: jax.Array  # versions of the node's model since it was fetched
    leaves: jax.Array  # 1 for a worker; for a node, the number of workers below it
    share: jax.Array  # of the data that the member draws from, before normalisation
    accuracy: jax.Array  # on held-out data if the merge requires it, else 0
    server_steps: jax.Array  # [] the node's own steps since its last merge
    num_workers: jax.Array  # [] of the whole run

    @classmethod
    def unpacked(cls, table: jax.Array) -> "WorkerStats":
        """The statistics in a float32 table [fields, n], a single device transfer.

        A number that belongs to the whole group is repeated in every column.
        """
        rows = dict(zip(cls._fields, table, strict=True))
        for name in ("server_steps", "num_workers"):
            rows[name] = rows[name][0]
        rows["worker"] = rows["worker"].astype(jnp.int32)
        return cls(**rows)

    @property
    def present(self) -> jax.Array:
        """[n] bool: did the member do any local steps?"""
        return self.local_steps > 0


def stats(
    local_steps: Numbers,
    *,
    batch_size: Numbers = 1.0,
    examples: Numbers | None = None,
    learning_rate: Numbers = 1.0,
    staleness: Numbers = 0.0,
    leaves: Numbers = 1.0,
    share: Numbers = 1.0,
    accuracy: Numbers = 0.0,
    server_steps: ArrayLike = 0.0,
    num_workers: ArrayLike | None = None,
    worker: Sequence[int] | None = None,
) -> WorkerStats:
    """The `WorkerStats` of n members that did `local_steps` [n] local steps.

    Every other per-member argument is one number for all members or one for each.
    `examples` defaults to local_steps * batch_size, `num_workers` to n and `worker` to
    0, 1, ... n - 1.

    >>> stats(local_steps=[8, 4], batch_size=32).examples.tolist()
    [256.0, 128.0]
    """
    check_steps("stats", local_steps)
    steps = jnp.asarray(local_steps, jnp.float32)
    if steps.ndim != 1:
        raise ValueError(
            f"stats: local_steps has shape {steps.shape}; give one number per member"
        )
    n = steps.shape[0]

    def each(name: str, value: Any) -> jax.Array:
        value = jnp.asarray(value, jnp.float32)
        if value.shape not in ((), (n,)):
            raise ValueError(
                f"stats: {name} has shape {value.shape} for {n} members; give one "
                "number for all, or one for each"
            )
        return jnp.broadcast_to(value, (n,))

    sizes = each("batch_size", batch_size)
    total = steps * sizes if examples is None else each("examples", examples)
    return WorkerStats(
        worker=jnp.asarray(range(n) if worker is None else worker, jnp.int32),
        local_steps=steps,
        batch_size=sizes,
        examples=total,
        learning_rate=each("learning_rate", learning_rate),
        staleness=each("staleness", staleness),
        leaves=each("leaves", leaves),
        share=each("share", share),
        accuracy=each("accuracy", accuracy),
        server_steps=jnp.asarray(server_steps, jnp.float32),
        num_workers=jnp.asarray(n if num_workers is None else num_workers, jnp.float32),
    )


class Merge(NamedTuple):
    """The pure functions and properties that define a merging algorithm.

    init(params, model_state=()) -> state          one state per node of the tree
    apply(state, replicas, stats, op) -> (state, replicas)         a tuple of replicas
    model(state) -> (params, model_state)          the model to evaluate, in float32
    requires: buffers of `Replica.carry`: names of known ones, or custom `Buffer`s
    report(state) -> {name: scalar}                counters, for every evaluation
    broadcasts: do members continue from the merged model?
    required_metrics: what the loop measures for `WorkerStats`: "accuracy"
    as_member(state) -> replica                    the node as a member of its parent
    from_parent(state, replica) -> state           the node after the parent's merge
    updates_busy_workers: does the merge change partners, which may be working?
    ops: the operations that the merge supports
    takes_groups: is `apply` written for a `Group` of replicas (see `group_merge`)?
    masks: does `apply` leave out members without local steps (see `masked`)?
    """

    init: Callable[..., MergeState]
    apply: Callable[..., tuple[MergeState, tuple[Replica, ...]]]
    model: Callable[[MergeState], tuple[Params, ModelState]]
    requires: Requires = ()
    report: Callable[[MergeState], dict[str, jax.Array]] | None = None
    broadcasts: bool = False
    required_metrics: tuple[str, ...] = ()
    as_member: Callable[[MergeState], Replica] | None = None
    from_parent: Callable[[MergeState, Replica], MergeState] | None = None
    updates_busy_workers: bool = False
    ops: MergeOp = PUSH_FETCH
    takes_groups: bool = False
    masks: bool = False

    _repr_html_ = html_of

    def __repr__(self) -> str:
        buffers = ", ".join(b if isinstance(b, str) else b.name for b in self.requires)
        return two_lines(
            f"Merge {maker(self.apply)}",
            (
                "replicas continue from the merged model" * self.broadcasts,
                "replicas keep their own models" * (not self.broadcasts),
                f"needs of each replica: {buffers}" * bool(buffers),
                f"weights by {', '.join(self.required_metrics)}"
                * bool(self.required_metrics),
                "may be a node of a tree" * (self.as_member is not None),
            ),
        )


APPLY = """Merges replicas: (state, replicas, stats, op) -> (state, replicas).

`state` is what `init` or the last `apply` returned. `replicas` are a sequence of
`hetjax.Replica`, one for each worker, with the buffers in the merge's `requires`.
`stats` tells what each worker did since the last merge: `hetjax.merge.stats(...)`. `op`
is one of the merge's `ops`, by default to push all replicas and to fetch the result.
"""


def group_merge(
    init: Callable[..., MergeState],
    rule: Callable[..., tuple[MergeState, Group]],
    model: Callable[[MergeState], tuple[Params, ModelState]],
    *,
    ops: MergeOp = PUSH_FETCH,
    **fields: Any,
) -> Merge:
    """A Merge whose rule is written on a `Group`, so that it also runs on a mesh.

    rule(state, group, stats, op) -> (state, group). The merge's `apply` takes a tuple
    of replicas and an operation, `PUSH_FETCH` by default; `over_axis` passes it a Group
    along a mesh axis. `fields` are the other fields of `Merge`.
    """
    name, requires = rule.__qualname__.split(".")[0], fields.get("requires", ())

    def apply(
        state: MergeState,
        replicas: Group | Sequence[Replica],
        stats: WorkerStats,
        op: MergeOp = PUSH_FETCH,
    ) -> tuple[MergeState, tuple[Replica, ...]]:
        group = replicas if isinstance(replicas, Group) else Group(tuple(replicas))
        check_op(name, op, ops)
        check_buffers(name, group.members, requires)
        check_count(name, group.size, stats)
        found = rule(state, group, stats, op)
        if not (isinstance(found, tuple) and isinstance(found[-1], Group)):
            raise WrongPart(
                f"{name}: the rule returned a {type(found).__name__}: return a pair "
                "(state, group)"
            )
        state, group = found
        return state, group.members

    apply.__doc__, apply.__qualname__ = APPLY, f"{name}.apply"
    apply.__module__ = rule.__module__
    return Merge(init, apply, model, ops=ops, takes_groups=True, **fields)


def over_axis(
    merge: Merge,
    axis: str,
    *,
    axis_groups: tuple[tuple[int, ...], ...] | None = None,
    replicated_over: tuple[int, ...] | None = None,
) -> Merge:
    """The merge of the replicas along a mesh axis, for use inside `jax.shard_map`.

    Its `apply` takes a tuple of this device's replicas, equally many on every device,
    and returns them merged. The state and the statistics (of all members, in the order
    of the devices) are the same on all devices. A merge that is written for a `Group`
    needs one `psum`; any other merge runs on all replicas, gathered on every device,
    which takes n times the memory. `shard_map` needs `check_vma=False`.

    `parts` divide the devices among several nodes that merge at the same time, and with
    `holds` several devices hold copies of one member (see `Group`). The state and the
    statistics are then the same on the devices of a part, and members of other parts
    are absent from the statistics.
    """

    def apply(
        state: MergeState,
        replicas: Sequence[Replica],
        stats: WorkerStats,
        op: MergeOp = PUSH_FETCH,
    ) -> tuple[MergeState, tuple[Replica, ...]]:
        group = Group(tuple(replicas), axis, axis_groups, replicated_over)
        n = stats.local_steps.shape[0]
        if group.size != n:
            raise ValueError(
                f"over_axis: {group.size} replicas along {axis!r}, statistics of {n}: "
                "give every device the statistics of all members"
            )
        if merge.takes_groups:
            return merge.apply(state, group, stats, op)
        check_op("over_axis", op, merge.ops)
        state, members = merge.apply(state, group.gathered(), stats, op)
        return state, group.scattered(members)

    apply.__doc__ = APPLY
    return merge._replace(apply=apply, takes_groups=False)


def mean_learning_rate(stats: WorkerStats, alpha: jax.Array) -> jax.Array:
    """The weighted mean learning rate; an absent member's may be NaN."""
    return jnp.sum(jnp.where(stats.present, alpha * stats.learning_rate, 0.0))


def mean_statistics(state: MergeState, group: Group, alpha: jax.Array) -> ModelState:
    """s + sum_i alpha_i (s_i - s): the model state for a weighted mean of members."""
    return moved(state.model_state, group.each(lambda r: r.model_state), alpha)


def centered_model(state: MergeState) -> tuple[Params, ModelState]:
    """The center and the averaged model state of a merge state that has both."""
    return state.center, state.model_state


def centered_member(state: MergeState) -> Replica:
    """The replica of a node whose parent sees its center."""
    return Replica(state.center, state.model_state)


def moved_center(state: MergeState, replica: Replica) -> MergeState:
    """The state with the replica's model as its center."""
    return state._replace(center=replica.params, model_state=replica.model_state)


def buffer_of(name: str) -> Callable[[Replica], PyTree]:
    """A function that returns a replica's buffer of this name."""
    return lambda replica: replica.carry[name]


def params_of(group: Group) -> Group:
    """The members' parameters."""
    return group.each(lambda r: r.params)


def with_buffer(replica: Replica, name: str, value: PyTree) -> Replica:
    """The replica with this value in a buffer."""
    return replica._replace(carry={**replica.carry, name: value})


def reset_to(replica: Replica, params: Params, model_state: ModelState) -> Replica:
    """The replica with the merged model in its own dtypes; optimizer state is kept."""
    return at_round_start(
        replica._replace(
            params=_replaced(replica.params, params),
            model_state=_replaced(replica.model_state, model_state),
        )
    )


def at_round_start(replica: Replica) -> Replica:
    """The replica with its parameters in the buffer "round_start", if it has that."""
    if "round_start" not in replica.carry:
        return replica
    return with_buffer(replica, "round_start", replica.params)


def _replaced(old: PyTree, new: PyTree) -> PyTree:
    return tree.map_floats(lambda x, y: y.astype(x.dtype), old, new)


def without_momentum(replica: Replica) -> Replica:
    """The replica with its optimizer state, that of SGD with momentum, set to zero."""
    return replica._replace(opt_state=jax.tree.map(jnp.zeros_like, replica.opt_state))


def emptied(replica: Replica, name: str) -> Replica:
    """The replica with zeros in a buffer."""
    return with_buffer(replica, name, jax.tree.map(jnp.zeros_like, replica.carry[name]))
