"""Merges of nodes, partners and transfers: when they start, and what they block."""

from weakref import WeakKeyDictionary

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import (
    Cost,
    Link,
    LocalRound,
    Machine,
    MergeAction,
    Merged,
    Profile,
    SimulatedClock,
)
from hetjax.machine.types import PUSH_FETCH, MergeOp

# n members with 100 B each take 2 * 1 + 2 n * 10 s; one transfer is half of that
LINK = Link(latency=1.0, bandwidth=10.0, topology="central")
TWO = 42.0  # [s] of a merge of two members
STEP = LocalRound(1, 1)  # 1 s


NODES = WeakKeyDictionary()


def clock(*places, devices=None):
    """A clock with a worker at each place; every place has a link."""
    devices = devices or ("",) * len(places)
    workers = tuple(
        Profile(f"w{k}", "gpu", Cost(1.0, 0.0), place=place, device=device)
        for k, (place, device) in enumerate(zip(places, devices, strict=True))
    )
    links = {"/".join(place): LINK for place in places} | {"": LINK}
    return SimulatedClock(Machine("m", workers, links), seed=0)


def two_nodes():
    """Four workers, two in each node."""
    return clock(("a",), ("a",), ("b",), ("b",))


def merge(c, members, node="root", num_bytes=100.0, seconds=0.0, **settings):
    action = MergeAction(members, node, **settings)
    known = NODES.setdefault(c, {})  # the members that merged at each node
    below = tuple(w for m in members for w in known.get(m, (m,) * isinstance(m, int)))
    known[node] = below
    return tuple(c.merge(action, num_bytes, seconds, below))


# Nodes


def test_nodes_merge_over_the_link_that_their_workers_share():
    c = two_nodes()
    assert merge(c, (0, 1), "A") == (0.0, TWO)
    assert merge(c, (2, 3), "B") == (0.0, TWO)  # another link
    # two models, one from each node, when both have arrived
    assert merge(c, ("A", "B")) == (TWO, 2 * TWO)
    # and downwards, half a merge over each node's own link
    assert merge(c, (0, 1), "A", op=MergeOp.FETCH, transfers=1) == (2 * TWO, 2.5 * TWO)
    assert merge(c, (2, 3), "B", op=MergeOp.FETCH, transfers=1) == (2 * TWO, 2.5 * TWO)
    assert c.dispatch(0, STEP, (0,)).start == 2.5 * TWO


def test_nodes_of_one_place_stay_there():
    """Two nodes of workers in place a merge over its link, not over the root's."""
    c = clock(*(("a",),) * 4, ("b",))
    merge(c, (0, 1), "A")
    merge(c, (2, 3), "B")
    assert merge(c, ("A", "B"), "AB") == (2 * TWO, 3 * TWO)
    assert merge(c, (0, 4), "other") == (TWO, 2 * TWO)  # 0 is free since TWO


def test_a_node_is_where_all_its_workers_are():
    """Worker 2 of node A is in place b, so A meets B, of place a, at the root."""
    c = two_nodes()
    merge(c, (0, 2), "A", transfers=0)
    merge(c, (1,), "B", transfers=0)
    merge(c, ("A", "B"), "AB")
    assert merge(c, (1,), "C") == (0.0, 22.0)  # the link of a is free
    assert merge(c, (0, 3), "between", num_bytes=0.0) == (TWO, TWO + 2.0)


def test_a_node_waits_for_the_slowest_below_it():
    c = two_nodes()
    merge(c, (0, 1), "A")
    merge(c, (2, 3), "B", num_bytes=0.0)
    assert merge(c, ("A", "B")) == (TWO, 2 * TWO)


def test_a_node_is_busy_while_it_is_a_member():
    c = two_nodes()
    merge(c, (0, 1), "A", transfers=0)
    merge(c, (2, 3), "B", transfers=0)
    assert merge(c, ("A", "B")) == (0.0, TWO)
    assert merge(c, (0,), "A", transfers=0) == (TWO, TWO)
    assert merge(c, (2, 3), "C", transfers=0) == (0.0, 0.0)  # they are free


def test_a_node_that_does_not_wait_is_free_when_its_merge_starts():
    c = two_nodes()
    merge(c, (0, 1), "A")
    merge(c, (2, 3), "B")
    merge(c, ("A", "B"), blocking=False)
    assert merge(c, (0, 1), "A") == (TWO, 2 * TWO)


def test_nodes_above_nodes():
    c = two_nodes()
    merge(c, (0, 1), "A", transfers=0)
    merge(c, (2, 3), "B", transfers=0)
    merge(c, ("A",), "A2", transfers=0)
    merge(c, ("B",), "B2", transfers=0)
    assert merge(c, ("A2", "B2")) == (0.0, TWO)  # over the root's link
    assert [c.next().node for _ in range(5)] == ["A", "B", "A2", "B2", "root"]


def test_merged_names_members_and_op():
    c = two_nodes()
    merge(c, (1, 0), "A", op=MergeOp.PUSH)
    merge(c, ("A", 2), op=MergeOp.PUSH | MergeOp.FETCH)
    assert c.next() == Merged("A", TWO, (1, 0), MergeOp.PUSH)
    assert c.next() == Merged("root", 2 * TWO, ("A", 2), PUSH_FETCH)


@pytest.mark.parametrize("member_ids", [("A", "B"), ("A", 0), ("A",)])
def test_a_node_that_has_nothing(member_ids):
    c = two_nodes()
    with pytest.raises(ValueError, match="node 'A' has no model yet: nothing was"):
        merge(c, member_ids)


def test_the_roots_server_is_where_all_can_reach_it():
    """A worker that merges alone at the root takes the link that all share; at another
    node, the link of its own place."""
    c = two_nodes()
    assert merge(c, (0,)) == (0.0, 22.0)
    assert merge(c, (0, 2), "other") == (22.0, 22.0 + TWO)  # queued on that link
    assert merge(c, (1,), "A") == (0.0, 22.0)  # node a's is free
    inside = clock(("a",), ("a",))
    merge(inside, (0, 1), "A")
    assert merge(inside, (0,)) == (TWO, TWO + 22.0)  # all share the link of a


# Partners


def test_partners_go_on_and_count_on_the_link():
    c = two_nodes()
    at_work = c.dispatch(1, LocalRound(50, 1), (0,) * 50)  # until 50 s
    assert merge(c, (0,), partners=(1,)) == (0.0, TWO)  # of two, in place a
    assert c.next().members == (0,)
    assert c.next() == at_work
    assert c.dispatch(1, STEP, (0,)).start == 50.0
    assert c.dispatch(0, STEP, (0,)).start == 50.0  # later than TWO


def test_a_partner_elsewhere_takes_the_link_between():
    c = two_nodes()
    merge(c, (2,), partners=(3,))  # node b's
    assert merge(c, (0,), "other", partners=(2,)) == (0.0, TWO)  # the root's
    assert merge(c, (1, 3), "third") == (TWO, 2 * TWO)


def test_partners_do_not_have_to_wait():
    c = clock((), ())
    merge(c, (0,), partners=(1,))
    assert c.dispatch(1, STEP, (0,)).start == 0.0
    assert c.dispatch(0, STEP, (0,)).start == TWO


# Transfers


@pytest.mark.parametrize(
    ("transfers", "finish"), [(2, TWO), (1, TWO / 2), (0, 0.0), (4, 2 * TWO)]
)
def test_a_transfer_is_half_a_merge(transfers, finish):
    assert merge(clock((), ()), (0, 1), transfers=transfers) == (0.0, finish)


def test_without_transfers_no_link_is_needed():
    c = clock((), ())
    merge(c, (0,), "A")  # occupies the link until 22 s
    assert merge(c, (1,), "B", transfers=0, num_bytes=1e9) == (0.0, 0.0)
    assert merge(c, (1,), "B", transfers=1) == (22.0, 33.0)


def test_a_merge_without_transfers_waits_for_its_node_and_members():
    c = clock((), ())
    merge(c, (0,), "A")
    assert merge(c, (1,), "A", transfers=0) == (22.0, 22.0)
    assert merge(c, (0,), "B", transfers=0) == (22.0, 22.0)


def test_a_merge_without_blocking_and_transfers_waits_for_no_node():
    c = clock((), ())
    merge(c, (0,), "A")  # until 22 s
    assert merge(c, (1,), "A", transfers=0, blocking=False) == (0.0, 0.0)
    # the node is still busy
    assert merge(c, (1,), "A", transfers=0) == (22.0, 22.0)
    # and the merge waits for a member that is not free
    assert merge(c, (0,), "A", transfers=0, blocking=False) == (22.0, 22.0)


def test_the_members_own_seconds_are_added():
    c = clock((), ())
    assert merge(c, (0,), seconds=3.0) == (0.0, 25.0)
    assert merge(c, (1,), "B", seconds=3.0, transfers=0) == (0.0, 3.0)
    assert merge(c, (1,), "C") == (25.0, 47.0)  # the link was occupied all the time


@pytest.mark.parametrize("transfers", [-1, float("nan"), float("inf")])
def test_invalid_transfers(transfers):
    with pytest.raises(ValueError, match="pass 0, 1 or 2"):
        merge(clock((), ()), (0, 1), transfers=transfers)


# Workers of one device


def test_transfers_within_a_device_are_free():
    c = clock((), (), (), devices=("x", "x", "y"))
    assert merge(c, (0, 1)) == (0.0, 0.0)
    # two workers of it and one of another: one model per device
    assert merge(c, (0, 1, 2)) == (0.0, TWO)


def test_a_worker_alone_goes_to_the_server_although_its_device_is_shared():
    c = clock((), (), devices=("x", "x"))
    assert merge(c, (0,)) == (0.0, 22.0)
    assert merge(c, (0,), partners=(1,)) == (22.0, 22.0)


def test_a_merge_within_a_device_needs_no_link():
    c = clock((), (), (), devices=("x", "x", "y"))
    merge(c, (2,), "server")  # occupies the link until 22 s
    assert merge(c, (0, 1), "A") == (0.0, 0.0)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (("A", "A"), "names a member twice"),
        ((), "at least one member"),
        ((0, 7), "no worker 7; they are 0 to 3"),
    ],
)
def test_refusals(members, message):
    c = two_nodes()
    merge(c, (0, 1), "A", transfers=0)
    with pytest.raises(ValueError, match=message):
        merge(c, members)


@pytest.mark.parametrize(
    ("partners", "message"), [((0,), "names a member twice"), ((-1,), "no worker -1")]
)
def test_partner_refusals(partners, message):
    with pytest.raises(ValueError, match=message):
        merge(two_nodes(), (0,), partners=partners)


# Laws


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    actions=st.lists(
        st.tuples(
            st.sets(st.integers(0, 3), min_size=1).map(tuple),
            st.sampled_from(("A", "B")),
            st.sampled_from((0, 1, 2)),
            st.booleans(),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_links_and_nodes_do_one_thing_at_a_time(actions):
    c = two_nodes()
    links, nodes = {}, {}
    for members, node, transfers, blocking in actions:
        start, finish = merge(c, members, node, transfers=transfers, blocking=blocking)
        assert 0.0 <= start <= finish
        if transfers:
            link = "root" if len({k // 2 for k in members}) > 1 else members[0] // 2
            assert start >= links.get(link, 0.0)
            links[link] = finish
        if transfers or blocking:
            assert start >= nodes.get(node, 0.0)
        nodes[node] = max(finish, nodes.get(node, 0.0))
        for k in members:
            assert c._merges.worker_free(k) >= start
    times = [event.time for event in iter(c.next, None)]
    assert times == sorted(times)
    assert len(times) == len(actions)
