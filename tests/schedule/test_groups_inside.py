"""Groups: who belongs together, other policies in them, and the names of each side."""

import pytest
from policy_driver import follow, infos

from hetjax.machine import Alarm, Evaluated, Merged, Work, WorkerInfo
from hetjax.schedule import (
    ROOT,
    MergeOrder,
    Orders,
    Policy,
    free_running,
    groups,
    mega_batch,
    rounds,
    ticking,
)

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"
TWO_AND_ONE = "merge group0+group1 merge group0: 01 fetch merge group1: 2 fetch"


# Who belongs together


def in_places(*places):
    return tuple(
        WorkerInfo(k, f"w{k}", "gpu", place, 0.5, 0.5) for k, place in enumerate(places)
    )


@pytest.mark.parametrize(
    ("sizes", "places", "merges"),
    [
        # 4 workers, consecutive
        (2, [()] * 4, ["group0: 01", "group1: 23"]),
        ((1, 3), [()] * 4, ["group0: 0", "group1: 123"]),
        (4, [()] * 4, ["group0: 0123"]),
        # by place, wherever they are
        (None, [("a",), ("b",), ("a",), ("b",)], ["group0: 02", "group1: 13"]),
        (None, [("a", "x"), ("a", "y"), ("b",), ()], ["group0: 01", "2", "3"]),
        (None, [()] * 4, ["group0: 0123"]),
    ],
)
def test_members(sizes, places, merges):
    policy = groups(rounds(batch_size=8), sizes=sizes, every=2)
    text = " ".join(follow(policy, in_places(*places), range(4)))
    for merge in merges:
        assert merge in text


def test_places_within_places():
    """The outer groups are the first names of the places, the inner ones the second."""
    places = [("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]
    policy = groups(groups(rounds(batch_size=8)), every=2)
    table = follow(policy, in_places(*places), (0, 3, 2, 1))
    assert table[2] == "merge group0/group0: 03"
    assert table[3].startswith("merge group0/group1: 2 merge group0:")
    assert table[4].startswith("merge group1/group0: 1 merge group1: group1/group0 ")


def test_places_within_consecutive_workers():
    """Grouped by number, workers still know their place: nodes a, b | c."""
    places = [("a",), ("a",), ("b",), ("c",)]
    policy = groups(groups(rounds(batch_size=8)), sizes=(3, 1), every=2)
    table = follow(policy, in_places(*places), (0, 1, 2))
    assert table[2] == "merge group0/group0: 01"
    assert table[3].startswith("merge group0/group1: 2 merge group0:")


# Other policies within groups


def test_mega_batches_within_groups():
    policy = groups(mega_batch(examples=24, b_max=8), sizes=(2, 1))
    assert follow(policy, WORKERS, (0, 0, 2, 2, 2, 1)) == [
        ALL,
        "0:1x8",  # group0: 24 of 24 examples
        "",
        "2:1x8",
        "2:1x8",
        "merge group1: 2",  # waits
        f"merge group0: 01 {TWO_AND_ONE} {ALL}",
    ]


def test_free_running_within_groups():
    """After its node's second merge nobody of a group gets work; who is at work still
    merges, and the root waits for that."""
    policy = groups(free_running(batch_size=8), sizes=(2, 1), every=2)
    assert follow(policy, WORKERS, (0, 0, 2, 2, 1, 2)) == [
        ALL,
        "merge group0: 0 0:1x8",
        "merge group0: 0",  # the second
        "merge group1: 2 2:1x8",
        "merge group1: 2",
        f"merge group0: 1 {TWO_AND_ONE} 0:1x8 1:1x8 2:1x8",
        "merge group1: 2 2:1x8",
    ]


def test_who_is_held_within_a_group_goes_on_in_time():
    policy = groups(free_running(batch_size=8, max_staleness=0), sizes=(2, 1), every=4)
    assert follow(policy, WORKERS, (0, 1, 0, 2, 2, 2, 2, 1)) == [
        ALL,
        "merge group0: 0 push",  # ahead of 1
        "merge group0: 1 merge group0: 0 fetch 0:1x8 1:1x8",
        "merge group0: 0 push",
        *("merge group1: 2 2:1x8",) * 3,
        "merge group1: 2",
        f"merge group0: 1 {TWO_AND_ONE} {ALL}",
    ]


def test_only_merges_that_give_count():
    """A slave's copy is no merge of its group, its gradient is. 1 and 3 are masters."""
    policy = groups(ticking(batch_size=8), sizes=2)
    assert follow(policy, infos(1.0, 2.0, 1.0, 2.0), (0, 0, 2, 2)) == [
        "0:0x8 2:0x8",
        "merge group0: 0 fetch+subtract 0:1x8",
        "merge group0: 0 push",
        "merge group1: 2 fetch+subtract 2:1x8",
        "merge group1: 2 push merge group0+group1 merge group0: 0 fetch "
        "merge group1: 2 fetch 0:0x8 2:0x8",
    ]


# Events pass in and orders out under the names of each side


def spy(orders=None):
    """A policy whose workers each do one step; what it hears, and answers with."""
    heard = []

    def init(infos, num_examples):
        return (), Orders(dispatch=tuple((w.index, Work(1, 8)) for w in infos))

    def react(state, event):
        heard.append(event)
        return state, orders or Orders()

    return Policy(init, react), heard


def test_events_within_a_group_have_its_names():
    policy, heard = spy()
    state, _ = groups(policy, sizes=(2, 1)).init(WORKERS, 1000)
    react = groups(policy, sizes=(2, 1)).react
    sent = [
        Merged("group1", 1.0, (2,), "push"),
        Merged("group0/group0", 1.0, (1,)),
        Merged("group0", 1.0, ("group0/group0",)),
        Alarm("group1/late/r", 2.0),
        Evaluated({"loss": 1.0}, 3.0),
        Merged(ROOT, 4.0, ("group0", "group1")),  # above: not for them
        Alarm("mine", 5.0),
    ]
    for event in sent:
        state, orders = react(state, event)
        assert orders == Orders()
    assert heard == [
        Merged(ROOT, 1.0, (0,), "push"),
        Merged("group0", 1.0, (1,)),
        Merged(ROOT, 1.0, ("group0",)),
        Alarm("late/r", 2.0),
        Evaluated({"loss": 1.0}, 3.0),
        Evaluated({"loss": 1.0}, 3.0),  # one for each group
    ]


def test_orders_leave_a_group_with_the_machines_names():
    orders = Orders(
        merges=(MergeOrder((0,), passive=(1,)), MergeOrder((1,), node="other")),
        alarms=(("late", 3.0),),
        start=(1,),
        stop=(0,),
    )
    policy, _ = spy(orders)
    tree = groups(policy, sizes=(1, 2), every=9)
    state, _ = tree.init(WORKERS, 1000)
    _, given = tree.react(state, Alarm("group1/x", 1.0))
    assert given == Orders(
        merges=(
            MergeOrder((1,), node="group1", passive=(2,)),
            MergeOrder((2,), node="group1/other"),
        ),
        alarms=(("group1/late", 3.0),),
        start=(2,),
        stop=(1,),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": 2}, "sizes=2: 3 workers do not make whole groups"),
        ({"sizes": 0}, "sizes=0: 3 workers do not make"),
        ({"sizes": (2, 2)}, r"sizes=\(2, 2\): give positive numbers that sum to the 3"),
        ({"sizes": (3, 0)}, r"sizes=\(3, 0\): give positive"),
        ({"sizes": ()}, r"sizes=\(\): give positive"),
        ({"every": 0}, "every=0: give a whole number of at least 1"),
        ({"every": 1.5}, "every=1.5: give a whole number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        groups(rounds(batch_size=8), **settings).init(WORKERS, 1000)
