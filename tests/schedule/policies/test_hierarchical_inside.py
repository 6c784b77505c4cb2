"""Groups: their members, the policies inside them, and names inside and outside."""

import pytest
from policy_driver import follow, infos

from hetjax.machine import (
    Evaluated,
    EvaluationDue,
    LocalRound,
    Merged,
    Timer,
    WorkerInfo,
)
from hetjax.machine.merge_tree import Node
from hetjax.schedule import (
    ROOT,
    Actions,
    MergeAction,
    MergeOp,
    Policy,
    asynchronous,
    hierarchical,
    magma_async,
    mega_batch,
    on_plateau,
    rounds,
    sma_restarts,
    tuned_workers,
)

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"
TWO_AND_ONE = "merge group0+group1 merge group0: 01 fetch merge group1: 2 fetch"


# Members of groups


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
        # by place, whatever their numbers
        (None, [("a",), ("b",), ("a",), ("b",)], ["group0: 02", "group1: 13"]),
        (None, [("a", "x"), ("a", "y"), ("b",), ()], ["group0: 01", "2", "3"]),
        (None, [()] * 4, ["group0: 0123"]),
    ],
)
def test_members(sizes, places, merges):
    policy = hierarchical(rounds(batch_size=8), sizes=sizes, every=2)
    text = " ".join(follow(policy, in_places(*places), range(4)))
    for merge in merges:
        assert merge in text


def test_places_within_places():
    """The outer groups are the first names of the places, the inner ones the second."""
    places = [("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]
    policy = hierarchical(hierarchical(rounds(batch_size=8)), every=2)
    table = follow(policy, in_places(*places), (0, 3, 2, 1))
    assert table[2] == "merge group0/group0: 03"
    assert table[3].startswith("merge group0/group1: 2 merge group0:")
    assert table[4].startswith("merge group1/group0: 1 merge group1: group1/group0 ")


def test_places_within_consecutive_workers():
    """Workers grouped by number keep their places: nodes a, b | c."""
    places = [("a",), ("a",), ("b",), ("c",)]
    policy = hierarchical(hierarchical(rounds(batch_size=8)), sizes=(3, 1), every=2)
    table = follow(policy, in_places(*places), (0, 1, 2))
    assert table[2] == "merge group0/group0: 01"
    assert table[3].startswith("merge group0/group1: 2 merge group0:")


# The tree as a value


def test_the_topology_of_one_level():
    tree = hierarchical(rounds(batch_size=8), sizes=(2, 1)).topology(WORKERS)
    assert tree.nodes == {
        ROOT: Node(("group0", "group1"), 1, frozenset({0, 1, 2})),
        "group0": Node((0, 1), 0, frozenset({0, 1})),
        "group1": Node((2,), 0, frozenset({2})),
    }


def test_the_topology_of_places_within_places():
    """Nodes have the machine's worker numbers and the names that the merges use."""
    places = [("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")]
    policy = hierarchical(hierarchical(rounds(batch_size=8)))
    tree = policy.topology(in_places(*places))
    assert tree.nodes == {
        ROOT: Node(("group0", "group1"), 2, frozenset(range(4))),
        "group0": Node(("group0/group0", "group0/group1"), 1, frozenset({0, 2, 3})),
        "group0/group0": Node((0, 3), 0, frozenset({0, 3})),
        "group0/group1": Node((2,), 0, frozenset({2})),
        "group1": Node(("group1/group0",), 1, frozenset({1})),
        "group1/group0": Node((1,), 0, frozenset({1})),
    }


def test_a_roots_level_is_above_the_highest_of_unequal_groups():
    inner = [hierarchical(rounds(batch_size=8), sizes=1), rounds(batch_size=8)]
    tree = hierarchical(inner, sizes=(2, 1)).topology(WORKERS)
    assert tree.level(ROOT) == 2
    assert tree.level("group0") == 1
    assert tree.level("group1") == 0


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda inner: sma_restarts(inner, on_plateau()),
        tuned_workers,
    ],
)
def test_a_policy_around_another_has_its_topology(wrapped):
    inner = hierarchical(rounds(batch_size=8), sizes=(2, 1))
    assert wrapped(inner).topology(WORKERS) == inner.topology(WORKERS)


def test_a_topology_refuses_what_the_policy_refuses():
    with pytest.raises(
        ValueError, match="sizes=2: 3 workers cannot be divided into groups"
    ):
        hierarchical(rounds(batch_size=8), sizes=2).topology(WORKERS)
    with pytest.raises(ValueError, match="2 policies for 3 groups"):
        hierarchical([rounds(batch_size=8)] * 2, sizes=1).topology(WORKERS)


# Other policies within groups


def test_mega_batches_within_hierarchical():
    policy = hierarchical(mega_batch(examples=24, batch_size=8), sizes=(2, 1))
    assert follow(policy, WORKERS, (0, 0, 2, 2, 2, 1)) == [
        ALL,
        "0:1x8",  # group0: 24 of 24 examples
        "",
        "2:1x8",
        "2:1x8",
        "merge group1: 2",  # waits
        f"merge group0: 01 {TWO_AND_ONE} {ALL}",
    ]


def test_asynchronous_within_hierarchical():
    """After its node's second merge no worker of a group gets a round; busy ones still
    merge, and the root waits for them."""
    policy = hierarchical(asynchronous(batch_size=8), sizes=(2, 1), every=2)
    assert follow(policy, WORKERS, (0, 0, 2, 2, 1, 2)) == [
        ALL,
        "merge group0: 0 0:1x8",
        "merge group0: 0",  # the second merge
        "merge group1: 2 2:1x8",
        "merge group1: 2",
        f"merge group0: 1 {TWO_AND_ONE} 0:1x8 1:1x8 2:1x8",
        "merge group1: 2 2:1x8",
    ]


def test_a_worker_held_back_within_a_group_goes_on():
    policy = hierarchical(
        asynchronous(batch_size=8, max_staleness=0), sizes=(2, 1), every=4
    )
    assert follow(policy, WORKERS, (0, 1, 0, 2, 2, 2, 2, 1)) == [
        ALL,
        "merge group0: 0 push",  # ahead of 1
        "merge group0: 1 merge group0: 0 fetch 0:1x8 1:1x8",
        "merge group0: 0 push",
        *("merge group1: 2 2:1x8",) * 3,
        "merge group1: 2",
        f"merge group0: 1 {TWO_AND_ONE} {ALL}",
    ]


def test_only_merges_that_push_count():
    """A slave's gradient is a merge of its group, its copy is not. Masters: 1 and 3."""
    policy = hierarchical(magma_async(batch_size=8), sizes=2)
    assert follow(policy, infos(1.0, 2.0, 1.0, 2.0), (0, 0, 2, 2)) == [
        "0:0x8 2:0x8",
        "merge group0: 0 step+subtract+fetch 0:1x8",
        "merge group0: 0 step+push",
        "merge group1: 2 step+subtract+fetch 2:1x8",
        "merge group1: 2 step+push merge group0+group1 merge group0: 0 fetch "
        "merge group1: 2 fetch 0:0x8 2:0x8",
    ]


def test_a_masters_steps_are_not_a_merge_of_its_group():
    """No model is broadcast to the master for them: it has no replica."""
    policy = hierarchical(magma_async(batch_size=8), sizes=2)
    events = (0, EvaluationDue(2.0), 0, 2, 2)
    table = follow(policy, infos(1.0, 2.0, 1.0, 2.0), events)
    assert table[2] == "merge group0: 1 step merge group1: 3 step"
    assert table[-1] == (
        "merge group1: 2 step+push merge group0+group1 merge group0: 0 fetch "
        "merge group1: 2 fetch 0:0x8 2:0x8"
    )


# Names of events that go into groups, and of actions that come out


def spy(actions=None):
    """A policy whose workers each do one step; it records events and gives actions."""
    heard = []

    def init(infos, num_examples):
        return (), Actions(dispatch=tuple((w.index, LocalRound(1, 8)) for w in infos))

    def react(state, event):
        heard.append(event)
        return state, actions or Actions()

    return Policy(init, react), heard


def test_events_within_a_group_have_its_names():
    policy, heard = spy()
    state, _ = hierarchical(policy, sizes=(2, 1)).init(WORKERS, 1000)
    react = hierarchical(policy, sizes=(2, 1)).react
    sent = [
        Merged("group1", 1.0, (2,), MergeOp.PUSH),
        Merged("group0/group0", 1.0, (1,)),
        Merged("group0", 1.0, ("group0/group0",)),
        Timer("group1/late/r", 2.0),
        Evaluated({"loss": 1.0}, 3.0),
        EvaluationDue(3.5),
        Merged(ROOT, 4.0, ("group0", "group1")),  # a merge above: not for the groups
        Timer("mine", 5.0),
    ]
    for event in sent:
        state, actions = react(state, event)
        assert actions == Actions()
    assert heard == [
        Merged(ROOT, 1.0, (0,), MergeOp.PUSH),
        Merged("group0", 1.0, (1,)),
        Merged(ROOT, 1.0, ("group0",)),
        Timer("late/r", 2.0),
        Evaluated({"loss": 1.0}, 3.0),
        Evaluated({"loss": 1.0}, 3.0),  # one for each group
        EvaluationDue(3.5),
        EvaluationDue(3.5),
    ]


def test_actions_leave_a_group_with_the_machines_names():
    actions = Actions(
        merges=(MergeAction((0,), partners=(1,)), MergeAction((1,), node="other")),
        timers=(("late", 3.0),),
        start=(1,),
        stop=(0,),
    )
    policy, _ = spy(actions)
    tree = hierarchical(policy, sizes=(1, 2), every=9)
    state, _ = tree.init(WORKERS, 1000)
    _, given = tree.react(state, Timer("group1/x", 1.0))
    assert given == Actions(
        merges=(
            MergeAction((1,), node="group1", partners=(2,)),
            MergeAction((2,), node="group1/other"),
        ),
        timers=(("group1/late", 3.0),),
        start=(2,),
        stop=(1,),
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sizes": 2}, "sizes=2: 3 workers cannot be divided into groups"),
        ({"sizes": 0}, "sizes=0: pass a whole number of at le"),
        ({"sizes": (2, 2)}, r"sizes=\(2, 2\): pass positive numbers that sum to the 3"),
        ({"sizes": (3, 0)}, r"sizes=\(3, 0\): pass a whole num"),
        ({"sizes": ()}, r"sizes=\(\): pass positive"),
        ({"every": 0}, "every=0: pass a whole number of at least 1"),
        ({"every": 1.5}, "every=1.5: pass a whole number"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        hierarchical(rounds(batch_size=8), **settings).init(WORKERS, 1000)
