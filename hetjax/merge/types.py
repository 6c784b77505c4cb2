"""The `Merge` interface: pure functions from a group's replicas to a common model."""

import enum
from collections.abc import Callable
from typing import NamedTuple

import jax

from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.replica import Replica, Requires
from hetjax.summaries import html_of, maker, two_lines
from hetjax.tree import MergeState, ModelState, Params


class MergeProperty(enum.Flag):
    """Declared properties of a merge: a combination of these flags.

    >>> MergeProperty.BROADCASTS in MergeProperty.BROADCASTS | MergeProperty.MASKS
    True
    """

    BROADCASTS = enum.auto()  # members continue from the merged model
    TAKES_GROUPS = enum.auto()  # `apply` takes a `Group` of replicas (`group_merge`)
    MASKS = enum.auto()  # `apply` leaves out members without local steps (`masked`)
    UPDATES_BUSY_WORKERS = enum.auto()  # it changes partners, which may be working

    # merges are keys of compiled programs: Enum's own hash is a function in Python
    __hash__ = object.__hash__


NO_PROPERTIES = MergeProperty(0)


class Merge(NamedTuple):
    """The pure functions and properties that define a merging algorithm.

    init(params, model_state=()) -> state          one state per node of the tree
    apply(state, replicas, stats, op) -> (state, replicas)         a tuple of replicas
    model(state) -> (params, model_state)          the model to evaluate, in float32
    requires: buffers of `Replica.carry`: names of known ones, or custom `Buffer`s
    report(state) -> {name: scalar}                counters, for every evaluation
    required_metrics: measured by the loop for `WorkerStats`: "accuracy"
    as_member(state) -> replica                    the node as a member of its parent
    from_parent(state, replica) -> state           the node after the parent's merge
    ops: the operations that the merge supports
    properties: flags such as `MergeProperty.BROADCASTS`
    traffic(params, model_state, op) -> Traffic    the bytes that a member sends and
                                                   receives; None: whole models
    fetch(state, replica) -> replica               what FETCH alone does; None: the
                                                   member takes `model(state)`
    part(name) -> merge                            of a part of the model, on the same
                                                   state (`MergeAction.part`)
    """

    init: Callable[..., MergeState]
    apply: Callable[..., tuple[MergeState, tuple[Replica, ...]]]
    model: Callable[[MergeState], tuple[Params, ModelState]]
    requires: Requires = ()
    report: Callable[[MergeState], dict[str, jax.Array]] | None = None
    required_metrics: tuple[str, ...] = ()
    as_member: Callable[[MergeState], Replica] | None = None
    from_parent: Callable[[MergeState, Replica], MergeState] | None = None
    ops: MergeOp = PUSH_FETCH
    properties: MergeProperty = NO_PROPERTIES
    traffic: Callable[[Params, ModelState, MergeOp], Traffic] | None = None
    fetch: Callable[[MergeState, Replica], Replica] | None = None
    part: Callable[[str], "Merge"] | None = None

    _repr_html_ = html_of

    @property
    def updates_busy_workers(self) -> bool:
        """Whether it may change a replica during its worker's round."""
        return MergeProperty.UPDATES_BUSY_WORKERS in self.properties

    def __repr__(self) -> str:
        broadcasts = MergeProperty.BROADCASTS in self.properties
        buffers = ", ".join(b if isinstance(b, str) else b.name for b in self.requires)
        return two_lines(
            f"Merge {maker(self.apply)}",
            (
                "replicas continue from the merged model" * broadcasts,
                "replicas keep their own models" * (not broadcasts),
                f"needs of each replica: {buffers}" * bool(buffers),
                f"weights by {', '.join(self.required_metrics)}"
                * bool(self.required_metrics),
                "may be a node of a tree" * (self.as_member is not None),
            ),
        )


APPLY = """Merges replicas: (state, replicas, stats, op) -> (state, replicas).

`state` is the result of `init` or of the last `apply`. `replicas` are a sequence of
`hetjax.Replica`, one for each worker, with the buffers in the merge's `requires`.
`stats` describe each worker's work since the last merge: `hetjax.merge.stats(...)`.
`op` is one of the merge's `ops`, by default to push all replicas and fetch the result.
"""
