"""Trees: groups of workers under nodes of their own, and a node above (host world)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from hetjax.machine.types import (
    ROOT,
    Alarm,
    Arrival,
    Evaluated,
    Event,
    Join,
    Leave,
    Merged,
    MergeOrder,
    Work,
    WorkerInfo,
)
from hetjax.schedule.types import Orders, Policy

Dispatch = tuple[int, Work]


class Group(NamedTuple):
    """One group, and how far it is."""

    workers: tuple[int, ...]
    inner: Any = ()  # state of the group's own policy
    there: frozenset[int] = frozenset()  # of its workers
    working: frozenset[int] = frozenset()  # workers at work
    merges: int = 0  # of the group's node since the last one above it
    held: tuple[Dispatch, ...] = ()  # work that waits for the one above
    below: tuple[MergeOrder, ...] = ()  # the last merge at each of its nodes


class GroupsState(NamedTuple):
    """Who belongs where, and the groups."""

    seats: tuple[tuple[int, int], ...]  # of every worker: its group, its number there
    groups: tuple[Group, ...]
    waiting: int  # groups that are done until the one above, or empty


def groups(
    inner: Policy | Sequence[Policy],
    *,
    sizes: int | Sequence[int] | None = None,
    every: int = 1,
    restart: bool = True,
) -> Policy:
    """Every group follows a policy of its own under its own node; then nodes merge.

    After `every` merges of a group's node, and when none of its workers is at work any
    more, the group waits; when all groups wait their nodes merge into the root, whose
    model goes down to all nodes and workers (unless `restart=False`), and all go on.
    `sizes`: workers per group, one number for all or one for each (consecutive
    workers); None: the workers of one place are a group. `inner` is one policy for all
    groups or one for each, and may be `groups` again: a tree of any depth. A merge's
    level is its node's height. Nobody waits for a group that everybody left; what its
    node has of them still merges. Source: HierSGD, Algorithms 1 and 2; ALGORITHMS D.1.
    """
    if not (every >= 1 and every == int(every)):
        raise ValueError(f"every={every}: give a whole number of at least 1")

    def policy_of(g: int) -> Policy:
        return inner if isinstance(inner, Policy) else inner[g]

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[GroupsState, Orders]:
        members = _members(infos, sizes)
        if not isinstance(inner, Policy) and len(inner) != len(members):
            raise ValueError(f"{len(inner)} policies for {len(members)} groups")
        seats = {w: (g, k) for g, ws in enumerate(members) for k, w in enumerate(ws)}
        state = GroupsState(
            seats=tuple(seats[worker] for worker in range(len(infos))),
            groups=tuple(
                Group(ws, there=frozenset(w for w in ws if infos[w].present))
                for ws in members
            ),
            waiting=0,
        )
        state = state._replace(waiting=sum(map(_waits, state.groups)))
        orders = Orders()
        for g, group in enumerate(state.groups):
            chosen = [_info(infos[worker], k) for k, worker in enumerate(group.workers)]
            inner_state, given = policy_of(g).init(tuple(chosen), num_examples)
            group = group._replace(inner=inner_state)
            state, given = _passed_on(state, g, group, given)
            orders = _joined(orders, given)
        return state, orders

    def _info(info: WorkerInfo, index: int) -> WorkerInfo:
        """A worker as its group's policy sees it, which is below the group's place."""
        place = info.place[1:] if sizes is None else info.place
        return info._replace(index=index, place=place)

    def react(state: GroupsState, event: Event) -> tuple[GroupsState, Orders]:
        if isinstance(event, Evaluated):
            orders = Orders()
            for g in range(len(state.groups)):
                state, given = _told(state, g, event)
                orders = _joined(orders, given)
            return state, orders
        found = _inside(state, event)
        # None: of the root, or of nobody here
        return _told(state, *found) if found else (state, Orders())

    def _told(state: GroupsState, g: int, event: Event) -> tuple[GroupsState, Orders]:
        group = state.groups[g]
        inner_state, given = policy_of(g).react(group.inner, event)
        group = group._replace(inner=inner_state)
        if isinstance(event, Arrival | Join | Leave):
            group = _with_staff(group, event, group.workers[event.worker])
        return _passed_on(state, g, group, given)

    def _passed_on(
        state: GroupsState, g: int, group: Group, given: Orders
    ) -> tuple[GroupsState, Orders]:
        """A group's orders as the machine's, with what they lead to above it."""
        orders = _outside(g, group.workers, given)
        if orders.merges:
            counted = [m for m in orders.merges if m.node == _node(g)]
            counted = [m for m in counted if "push" in m.words]
            merges = group.merges + len(counted)
            below = _remembered(group.below, orders.merges)
            group = group._replace(merges=merges, below=below)
        if group.merges < every:
            working = group.working | {k for k, _ in orders.dispatch}
            group = group._replace(working=working)
        else:
            group = group._replace(held=group.held + orders.dispatch)
            orders = orders._replace(dispatch=())
            if restart:
                orders = orders._replace(merges=_only_up(orders.merges))
        waiting = state.waiting - _waits(state.groups[g]) + _waits(group)
        everybody = (*state.groups[:g], group, *state.groups[g + 1 :])
        state = state._replace(groups=everybody, waiting=waiting)
        if waiting < len(everybody) or not any(h.merges for h in everybody):
            return state, orders
        return _merged_above(state, orders)

    def _waits(group: Group) -> bool:
        done = group.merges >= every or not group.there
        return done and not group.working

    def _merged_above(state: GroupsState, orders: Orders) -> tuple[GroupsState, Orders]:
        did = [g for g, group in enumerate(state.groups) if group.merges]
        below = [m for group in state.groups for m in group.below]
        above = MergeOrder(
            tuple(map(_node, did)),
            trips=2 if len(did) > 1 else 0,
            level=1 + max(m.level for g in did for m in state.groups[g].below),
        )
        there = frozenset().union(*(group.there for group in state.groups))
        down = _downwards(below, there) if restart else ()
        dispatch = tuple(d for group in state.groups for d in group.held)
        going_on = tuple(
            group._replace(
                working=frozenset(k for k, _ in group.held), merges=0, held=()
            )
            for group in state.groups
        )
        merges = (*orders.merges, above, *down)
        waiting = sum(map(_waits, going_on))
        state = state._replace(groups=going_on, waiting=waiting)
        return state, orders._replace(merges=merges, dispatch=dispatch)

    return Policy(init, react)


def _with_staff(group: Group, event: Arrival | Join | Leave, worker: int) -> Group:
    """The group behind an event of one of its workers."""
    if isinstance(event, Arrival):
        return group._replace(working=group.working - {worker})
    if isinstance(event, Join):
        return group._replace(there=group.there | {worker})
    group = group._replace(there=group.there - {worker})
    if not event.lost:
        return group
    held = tuple(d for d in group.held if d[0] != worker)
    return group._replace(working=group.working - {worker}, held=held)


def _members(
    infos: tuple[WorkerInfo, ...], sizes: int | Sequence[int] | None
) -> tuple[tuple[int, ...], ...]:
    """The workers of each group."""
    n = len(infos)
    if sizes is None:
        places: dict[Any, list[int]] = {}
        for k, info in enumerate(infos):
            places.setdefault(info.place[:1], []).append(k)
        return tuple(tuple(workers) for workers in places.values())
    if isinstance(sizes, int):
        if sizes < 1 or n % sizes:
            raise ValueError(
                f"sizes={sizes}: {n} workers do not make whole groups; give one size "
                "for each group"
            )
        sizes = (sizes,) * (n // sizes)
    if min(sizes, default=0) < 1 or sum(sizes) != n:
        raise ValueError(
            f"sizes={tuple(sizes)}: give positive numbers that sum to the {n} workers"
        )
    ends = [sum(sizes[: g + 1]) for g in range(len(sizes))]
    return tuple(
        tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)
    )


def _node(g: int) -> str:
    return f"group{g}"


def _outside(g: int, workers: tuple[int, ...], orders: Orders) -> Orders:
    """A group's orders with the machine's numbers and names."""
    if not any(orders):
        return orders

    def member(m: int | str) -> int | str:
        return f"{_node(g)}/{m}" if isinstance(m, str) else workers[m]

    def merge(order: MergeOrder) -> MergeOrder:
        root = order.node == ROOT
        return order._replace(
            node=_node(g) if root else f"{_node(g)}/{order.node}",
            members=tuple(map(member, order.members)),
            passive=tuple(workers[k] for k in order.passive),
        )

    return Orders(
        merges=tuple(map(merge, orders.merges)),
        dispatch=tuple((workers[k], work) for k, work in orders.dispatch),
        alarms=tuple((f"{_node(g)}/{name}", time) for name, time in orders.alarms),
        start=tuple(workers[k] for k in orders.start),
        stop=tuple(workers[k] for k in orders.stop),
    )


def _inside(state: GroupsState, event: Event) -> tuple[int, Any] | None:
    """The group that an event is for, and the event with the group's own names."""
    if isinstance(event, Arrival | Join | Leave):
        g, k = state.seats[event.worker]
        return g, event._replace(worker=k)
    if isinstance(event, Alarm):
        name, _, rest = event.name.partition("/")
        g = _number(name)
        return None if g is None else (g, event._replace(name=rest))
    assert isinstance(event, Merged)
    name, _, rest = event.node.partition("/")
    g = _number(name)
    if g is None:
        return None
    prefix = f"{_node(g)}/"
    members = tuple(
        m.removeprefix(prefix) if isinstance(m, str) else state.seats[m][1]
        for m in event.members
    )
    return g, event._replace(node=rest or ROOT, members=members)


def _number(name: str) -> int | None:
    digits = name.removeprefix("group")
    return int(digits) if name.startswith("group") and digits.isdigit() else None


def _remembered(
    below: tuple[MergeOrder, ...], merges: tuple[MergeOrder, ...]
) -> tuple[MergeOrder, ...]:
    """One merge of every node: its members are what the node's model goes down to."""
    nodes = {m.node: m for m in below}
    for m in merges:
        known = nodes[m.node].members if m.node in nodes else ()
        both = tuple(dict.fromkeys((*known, *m.members)))  # one by one where they are
        nodes[m.node] = m._replace(members=both)
    return tuple(nodes.values())


def _only_up(merges: tuple[MergeOrder, ...]) -> tuple[MergeOrder, ...]:
    """Merges right before the one above: what comes down comes from there."""
    up = (m for m in merges if m.op != "fetch")
    return tuple(m._replace(trips=min(m.trips, 1)) for m in up)


def _downwards(
    below: Sequence[MergeOrder], there: frozenset[int]
) -> tuple[MergeOrder, ...]:
    """Every node's members take its model, from the top; but not who has left."""
    down = []
    for m in sorted(below, key=lambda m: -m.level):
        members = tuple(k for k in m.members if isinstance(k, str) or k in there)
        if members:
            trips = min(1, m.trips)
            order = MergeOrder(members, m.node, "fetch", trips=trips, level=m.level)
            down.append(order)
    return tuple(down)


def _joined(a: Orders, b: Orders) -> Orders:
    return Orders(
        merges=a.merges + b.merges,
        dispatch=a.dispatch + b.dispatch,
        alarms=a.alarms + b.alarms,
        start=a.start + b.start,
        stop=a.stop + b.stop,
    )
