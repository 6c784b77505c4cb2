"""Trees: groups of workers, each under a node, and a root above them (host world)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hetjax.arguments import Count, checked
from hetjax.machine.merge_times import moves_of
from hetjax.machine.merge_tree import Node, Topology
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    ROOT,
    Arrival,
    Evaluated,
    EvaluationDue,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    MergeOp,
)
from hetjax.schedule.policies.group_names import (
    GroupIndex,
    divide,
    index_all,
    inner_event,
    inner_infos,
    outer_actions,
    outer_node,
    outer_nodes,
)
from hetjax.schedule.types import Actions, Policy, with_entry


class GroupState(NamedTuple):
    """The state of a group, with the machine's numbers and names."""

    workers: tuple[int, ...]
    inner: Any  # state of its own policy
    roster: Roster  # of its workers
    merges: int = 0  # at its topmost node since the last merge of the root
    held: tuple[tuple[int, LocalRound], ...] = ()  # to dispatch after the root's merge
    merged: tuple[MergeAction, ...] = ()  # the last merge of each of its nodes


class TreeState(NamedTuple):
    """The groups, and the tree that they form."""

    topology: Topology
    index: tuple[GroupIndex, ...]  # of every worker
    groups: tuple[GroupState, ...]
    num_waiting: int  # groups that wait for the root's merge, or are empty


@checked
def hierarchical(
    inner: Policy | Sequence[Policy],
    *,
    sizes: Count | Sequence[Count] | None = None,
    every: Count = 1,
    broadcast: bool = True,
) -> Policy:
    """Each group follows its own policy under its own node; then the nodes merge.

    A group waits after `every` merges of its node, once none of its workers is
    computing. When all groups wait, their nodes merge into the root. The root's model
    is broadcast to all nodes and workers (unless `broadcast=False`), and all continue.

    `sizes` are the numbers of workers per group, one number for all groups or one for
    each (consecutive workers); None makes a group of the workers at each place. `inner`
    is one policy for all groups or one for each, and may itself be `hierarchical`: a
    tree of any depth, which the policy's `topology` describes. No group waits for a
    group without active workers; merges that its node already did still count. Source:
    HierSGD, Algorithms 1 and 2; docs/algorithms D.1.
    """

    def policy_of(g):
        return inner if isinstance(inner, Policy) else inner[g]

    def split(infos):
        """Each group's workers, and their infos as its policy sees them."""
        groups = divide(infos, sizes)
        if not isinstance(inner, Policy) and len(inner) != len(groups):
            raise ValueError(
                f"{len(inner)} policies for {len(groups)} groups: pass one policy per "
                "group, or one for all"
            )
        by_place = sizes is None
        return [(ws, inner_infos(infos, ws, by_place=by_place)) for ws in groups]

    def topology(infos):
        """Return the groups' trees, each under its node, and the root above them."""
        nodes: dict[str, Node] = {}
        names = []
        for g, (workers, own) in enumerate(split(infos)):
            names.append(outer_node(g))
            nodes |= outer_nodes(g, workers, policy_of(g).topology(own))
        level = 1 + max((nodes[name].level for name in names), default=-1)
        root = Node(tuple(names), level, frozenset(w.index for w in infos))
        return Topology({ROOT: root, **nodes})

    def init(infos, num_examples):
        groups = split(infos)
        begun = [
            policy_of(g).init(own, num_examples) for g, (_, own) in enumerate(groups)
        ]
        state = TreeState(
            topology=topology(infos),
            index=index_all([workers for workers, _ in groups]),
            groups=tuple(
                GroupState(workers, inner_state, Roster.of(infos[w] for w in workers))
                for (workers, _), (inner_state, _) in zip(groups, begun, strict=True)
            ),
            num_waiting=0,
        )
        state = state._replace(num_waiting=sum(map(is_waiting, state.groups)))
        total = Actions()
        for g, (_, actions) in enumerate(begun):
            state, actions = carry_up(state, g, state.groups[g], actions)
            total = _concatenate(total, actions)
        return state, total

    def react(state, event):
        if not isinstance(event, Evaluated | EvaluationDue):
            found = inner_event(state.index, event)
            return react_in_group(state, *found, event) if found else (state, Actions())
        total = Actions()
        for g in range(len(state.groups)):
            state, actions = react_in_group(state, g, event, event)
            total = _concatenate(total, actions)
        return state, total

    def react_in_group(state, g, inside, event):
        """Passes an event to a group; `inside` is the event in the group's names."""
        group = state.groups[g]
        inner_state, actions = policy_of(g).react(group.inner, inside)
        group = group._replace(inner=inner_state)
        if isinstance(event, Arrival | Join | Leave):
            group = _with_roster(group, event)
        return carry_up(state, g, group, actions)

    def carry_up(state, g, group, actions):
        """Rename a group's actions for the machine; add the root's merge if due."""
        actions = outer_actions(g, group.workers, actions)
        group = _with_merges(group, outer_node(g), actions.merges)
        if group.merges < every:
            dispatched = [worker for worker, _ in actions.dispatch]
            group = group._replace(roster=group.roster.dispatched(dispatched))
        else:
            group = group._replace(held=group.held + actions.dispatch)
            actions = actions._replace(dispatch=())
            if broadcast:
                actions = actions._replace(merges=_only_upwards(actions.merges))
        waiting = state.num_waiting - is_waiting(state.groups[g]) + is_waiting(group)
        groups = with_entry(state.groups, g, group)
        state = state._replace(groups=groups, num_waiting=waiting)
        if waiting < len(groups) or not any(each.merges for each in groups):
            return state, actions
        return merge_root(state, actions)

    def is_waiting(group):
        done = group.merges >= every or not group.roster.active
        return done and not group.roster.working

    def merge_root(state, actions):
        """Adds the root's merge and the broadcast; then all groups continue."""
        nodes = tuple(
            outer_node(g) for g, each in enumerate(state.groups) if each.merges
        )
        root = MergeAction(nodes, transfers=2 if len(nodes) > 1 else 0)
        down = _broadcast(state) if broadcast else ()
        dispatch = tuple(given for group in state.groups for given in group.held)
        groups = tuple(
            group._replace(
                roster=group.roster.dispatched(worker for worker, _ in group.held),
                merges=0,
                held=(),
            )
            for group in state.groups
        )
        waiting = sum(map(is_waiting, groups))
        merges = (*actions.merges, root, *down)
        state = state._replace(groups=groups, num_waiting=waiting)
        return state, actions._replace(merges=merges, dispatch=dispatch)

    each = (inner,) if isinstance(inner, Policy) else inner
    together = all(policy.bulk_synchronous for policy in each)
    return Policy(init, react, topology, together)


def _with_roster(group: GroupState, event: Arrival | Join | Leave) -> GroupState:
    """The group after an event of one of its workers."""
    group = group._replace(roster=group.roster.after(event))
    if not (isinstance(event, Leave) and event.lost):
        return group
    return group._replace(held=tuple(d for d in group.held if d[0] != event.worker))


def _with_merges(
    group: GroupState, top: str, merges: tuple[MergeAction, ...]
) -> GroupState:
    """The group after these merges of its nodes; `top` is its topmost node.

    For every node the group stores the last merge, with all members so far (workers may
    merge one by one); the node's model is broadcast to them. A node's own steps add no
    members, and only merges that change the node's model count.
    """
    if not merges:
        return group
    counted = sum(m.node == top and moves_of(m.op).changes for m in merges)
    last = {m.node: m for m in group.merged}
    for merge in merges:
        if merge.op == MergeOp.STEP:
            continue
        known = last[merge.node].members if merge.node in last else ()
        members = tuple(dict.fromkeys((*known, *merge.members)))
        last[merge.node] = merge._replace(members=members)
    return group._replace(merges=group.merges + counted, merged=tuple(last.values()))


def _only_upwards(merges: tuple[MergeAction, ...]) -> tuple[MergeAction, ...]:
    """The merges right before the root's, without transfers back to the members."""
    up = (m for m in merges if m.op != MergeOp.FETCH)
    return tuple(m._replace(transfers=min(m.transfers, 1)) for m in up)


def _broadcast(state: TreeState) -> tuple[MergeAction, ...]:
    """Fetches of each node's model by its active members, from the top down."""
    active = frozenset().union(*(group.roster.active for group in state.groups))
    merged = [m for group in state.groups for m in group.merged]
    down = []
    for m in sorted(merged, key=lambda m: -state.topology.level(m.node)):
        members = tuple(k for k in m.members if isinstance(k, str) or k in active)
        if members:
            transfers = min(1, m.transfers)
            down.append(
                MergeAction(members, m.node, MergeOp.FETCH, transfers=transfers)
            )
    return tuple(down)


def _concatenate(a: Actions, b: Actions) -> Actions:
    return Actions(
        merges=a.merges + b.merges,
        dispatch=a.dispatch + b.dispatch,
        timers=a.timers + b.timers,
        start=a.start + b.start,
        stop=a.stop + b.stop,
    )
