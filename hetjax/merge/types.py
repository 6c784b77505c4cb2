"""The `Merge` interface: pure functions from a group's replicas to a common model."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.replica import Replica, Requires
from hetjax.summaries import html_of, maker, two_lines
from hetjax.tree import MergeState, ModelState, Params


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
