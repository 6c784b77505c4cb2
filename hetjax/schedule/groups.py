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


class GroupsState(NamedTuple):
    """One entry per group in the tuples but the first."""

    group_of: tuple[int, ...]  # of every worker
    members: tuple[tuple[int, ...], ...]  # workers
    inner: tuple[Any, ...]  # states of the groups' own policies
    working: tuple[int, ...]  # workers at work
    merges: tuple[int, ...]  # of the group's node since the last one above it
    held: tuple[tuple[Dispatch, ...], ...]  # work that waits for the one above
    below: tuple[tuple[MergeOrder, ...], ...]  # the last merge at each of its nodes


def groups(
    inner: Policy,
    *,
    sizes: int | Sequence[int] | None = None,
    every: int = 1,
    restart: bool = True,
) -> Policy:
    """Every group follows the policy `inner` under its own node; then nodes merge.

    After `every` merges of a group's node, and when none of its workers is at work any
    more, the group waits; when all groups wait their nodes merge into the root, whose
    model goes down to all nodes and workers (unless `restart=False`), and all go on.
    `sizes`: workers per group, one number for all or one for each (consecutive
    workers); None: the workers of one place are a group. `inner` may be `groups` again:
    a tree of any depth. A merge's level is its node's height. Source: HierSGD,
    Algorithms 1 and 2; ALGORITHMS D.1.
    """
    if not (every >= 1 and every == int(every)):
        raise ValueError(f"every={every}: give a whole number of at least 1")

    def init(
        infos: tuple[WorkerInfo, ...], num_examples: int
    ) -> tuple[GroupsState, Orders]:
        members = _members(infos, sizes)
        group_of = [0] * len(infos)
        for g, workers in enumerate(members):
            for worker in workers:
                group_of[worker] = g
        n = len(members)
        state = GroupsState(
            tuple(group_of), members, (), (0,) * n, (0,) * n, ((),) * n, ((),) * n
        )
        orders = Orders()
        for g, workers in enumerate(members):
            group_infos = tuple(
                infos[worker]._replace(index=k, place=infos[worker].place[1:])
                for k, worker in enumerate(workers)
            )
            inner_state, given = inner.init(group_infos, num_examples)
            state = state._replace(inner=(*state.inner, inner_state))
            state, given = _passed_on(state, g, given)
            orders = _joined(orders, given)
        return state, orders

    def react(state: GroupsState, event: Event) -> tuple[GroupsState, Orders]:
        if isinstance(event, Evaluated):
            orders = Orders()
            for g in range(len(state.members)):
                state, given = _told(state, g, event)
                orders = _joined(orders, given)
            return state, orders
        found = _inside(state, event)
        if found is None:  # of the root, or of nobody here
            return state, Orders()
        g, event = found
        if isinstance(event, Arrival):
            state = _put(state, g, working=state.working[g] - 1)
        return _told(state, g, event)

    def _told(state: GroupsState, g: int, event: Event) -> tuple[GroupsState, Orders]:
        inner_state, given = inner.react(state.inner[g], event)
        return _passed_on(_put(state, g, inner=inner_state), g, given)

    def _passed_on(
        state: GroupsState, g: int, given: Orders
    ) -> tuple[GroupsState, Orders]:
        """A group's orders as the machine's, with what they lead to above it."""
        orders = _outside(g, state.members[g], given)
        counted = [m for m in orders.merges if m.node == _node(g)]
        counted = [m for m in counted if "push" in m.words]
        full = state.merges[g] + len(counted) >= every
        if full and restart:  # what comes down comes from above
            last = [m._replace(trips=min(m.trips, 1)) for m in orders.merges]
            orders = orders._replace(merges=tuple(last))
        state = _put(
            state,
            g,
            merges=state.merges[g] + len(counted),
            below=_remembered(state.below[g], orders.merges),
        )
        if full:
            held = (*state.held[g], *orders.dispatch)
            state, orders = _put(state, g, held=held), orders._replace(dispatch=())
        else:
            working = state.working[g] + len(orders.dispatch)
            state = _put(state, g, working=working)
        done = all(m >= every for m in state.merges) and not any(state.working)
        return _merged_above(state, orders) if done else (state, orders)

    def _merged_above(state: GroupsState, orders: Orders) -> tuple[GroupsState, Orders]:
        n = len(state.members)
        level = 1 + max(m.level for below in state.below for m in below)
        above = MergeOrder(
            tuple(map(_node, range(n))), trips=2 if n > 1 else 0, level=level
        )
        down = _downwards(state.below) if restart else ()
        dispatch = tuple(d for held in state.held for d in held)
        state = state._replace(
            merges=(0,) * n,
            held=((),) * n,
            working=tuple(len(held) for held in state.held),
        )
        merges = (*orders.merges, above, *down)
        return state, orders._replace(merges=merges, dispatch=dispatch)

    return Policy(init, react)


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
        g = state.group_of[event.worker]
        return g, event._replace(worker=state.members[g].index(event.worker))
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
        m.removeprefix(prefix) if isinstance(m, str) else state.members[g].index(m)
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


def _downwards(below: tuple[tuple[MergeOrder, ...], ...]) -> tuple[MergeOrder, ...]:
    """Every node's members take its model, from the top."""
    nodes = [m for group in below for m in group]
    return tuple(
        MergeOrder(m.members, m.node, "fetch", trips=min(1, m.trips), level=m.level)
        for m in sorted(nodes, key=lambda m: -m.level)
    )


def _put(state: GroupsState, g: int, **values: Any) -> GroupsState:
    """The state with other entries for group g."""
    changed = {
        name: (*getattr(state, name)[:g], value, *getattr(state, name)[g + 1 :])
        for name, value in values.items()
    }
    return state._replace(**changed)


def _joined(a: Orders, b: Orders) -> Orders:
    return Orders(*(x + y for x, y in zip(a, b, strict=True)))
