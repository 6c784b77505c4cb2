"""Merges written on a `Group`, and merges along a mesh axis."""

from collections.abc import Callable
from typing import Any

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.group import Group
from hetjax.merge.members import centered_model
from hetjax.merge.merge_checks import WrongPart, check_buffers, check_count, check_op
from hetjax.merge.types import APPLY, NO_PROPERTIES, Merge, MergeProperty
from hetjax.tree import MergeState, ModelState, Params


def group_merge(
    init: Callable[..., MergeState],
    rule: Callable[..., tuple[MergeState, Group]],
    model: Callable[[Any], tuple[Params, ModelState]] = centered_model,
    *,
    ops: MergeOp = PUSH_FETCH,
    properties: MergeProperty = NO_PROPERTIES,
    **fields: Any,
) -> Merge:
    """A Merge whose rule is written on a `Group`, so that it also runs on a mesh.

    rule(state, group, stats, op) -> (state, group). The merge's `apply` takes a tuple
    of replicas and an operation, `PUSH_FETCH` by default; `over_axis` passes it a Group
    along a mesh axis. `model(state)` is (state.center, state.model_state) by default.
    `fields` are the other fields of `Merge`.
    """
    name, requires = rule.__qualname__.split(".")[0], fields.get("requires", ())

    def apply(state, replicas, stats, op=PUSH_FETCH):
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
    properties |= MergeProperty.TAKES_GROUPS
    return Merge(init, apply, model, ops=ops, properties=properties, **fields)


def over_axis(
    merge: Merge,
    axis: str,
    *,
    axis_groups: tuple[tuple[int, ...], ...] | None = None,
    replicated_over: tuple[int, ...] | None = None,
) -> Merge:
    """The merge of the replicas along a mesh axis, for use inside `jax.shard_map`.

    Its `apply` takes a tuple of this device's replicas, the same number on every
    device, and returns them merged. The state and the statistics (of all members, in
    the order of the devices) are the same on all devices. A merge that is written for a
    `Group` needs one `psum`; any other merge runs on all replicas, gathered on every
    device, which takes n times the memory. `shard_map` needs `check_vma=False`.

    `axis_groups` divide the devices among several nodes that merge at the same time,
    and with `replicated_over` several devices hold copies of one member (see `Group`).
    The state and the statistics are then the same on the devices of a group, and
    members of other groups are absent from the statistics.
    """
    takes_groups = MergeProperty.TAKES_GROUPS in merge.properties
    properties = merge.properties & ~MergeProperty.TAKES_GROUPS

    def apply(state, replicas, stats, op=PUSH_FETCH):
        group = Group(tuple(replicas), axis, axis_groups, replicated_over)
        n = stats.local_steps.shape[0]
        if group.size != n:
            raise ValueError(
                f"over_axis: {group.size} replicas along {axis!r}, statistics of {n}: "
                "pass the statistics of all members on every device"
            )
        if takes_groups:
            return merge.apply(state, group, stats, op)
        check_op("over_axis", op, merge.ops)
        state, members = merge.apply(state, group.gathered(), stats, op)
        return state, group.scattered(members)

    apply.__doc__ = APPLY
    part = None
    if merge.part is not None:
        settings = {"axis_groups": axis_groups, "replicated_over": replicated_over}
        of = merge.part
        part = lambda name: over_axis(of(name), axis, **settings)  # noqa: E731
    return merge._replace(apply=apply, properties=properties, part=part)
