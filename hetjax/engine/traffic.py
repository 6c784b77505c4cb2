"""The bytes that the merges of a strategy move, by action."""

from collections.abc import Callable, Sequence
from typing import Any

from hetjax import tree
from hetjax.machine.merge_times import Traffic
from hetjax.machine.merge_tree import Topology
from hetjax.machine.types import MergeAction, MergeOp
from hetjax.merge.types import Merge


def traffic_of_actions(
    merges: Sequence[Merge], topology: Topology, model: tuple[Any, Any]
) -> Callable[[MergeAction], Traffic]:
    """Return f(action) -> what each of its members sends and receives [bytes].

    `merges` are by level; `model` is (params, model state), or their shapes. A merge
    without `Merge.traffic` moves whole models.
    """
    whole = Traffic(tree.num_bytes(model), tree.num_bytes(model))
    known: dict[tuple[str, str, MergeOp], Traffic] = {}

    def found(action: MergeAction) -> Traffic:
        merge = merges[topology.merge_level(action.node, len(merges))]
        if action.part:
            merge = part_of(merge, action.part)
        return merge.traffic(*model, action.op) if merge.traffic else whole

    def traffic_of(action: MergeAction) -> Traffic:
        key = action.node, action.part, action.op
        if key not in known:
            known[key] = found(action)
        return known[key]

    return traffic_of


def part_of(merge: Merge, name: str) -> Merge:
    """Return the merge of a part of the model; a ValueError if it has no parts."""
    if merge.part is None:
        raise ValueError(
            f"the policy merges the part {name!r} of the model, but the strategy's "
            "merge has no parts: use merge.in_parts(...)"
        )
    return merge.part(name)
