"""Trees of groups: the barriers of workers, and the order of merges. Tables."""

from policy_driver import ByHand, follow, infos, machine, timeline

from hetjax.engine.decisions import decisions
from hetjax.schedule import PUSH_FETCH, MergeOp, hierarchical, rounds

WORKERS = infos(1.0, 3.0, 2.0)
ALL = "0:1x8 1:1x8 2:1x8"
TWO_AND_ONE = "merge group0+group1 merge group0: 01 fetch merge group1: 2 fetch"


def test_groups_wait_for_each_other_after_their_rounds():
    """Children, root, then fetches downwards; only then do workers go on."""
    policy = hierarchical(rounds(batch_size=8), sizes=(2, 1), every=2)
    assert follow(policy, WORKERS, (2, 1, 2, 0, 1, 0, 2)) == [
        ALL,
        "merge group1: 2 2:1x8",  # its first round
        "",  # 1 waits for 0
        "merge group1: 2",  # its second round: 2 waits for group0
        "merge group0: 01 0:1x8 1:1x8",
        "",
        f"merge group0: 01 {TWO_AND_ONE} {ALL}",
        "merge group1: 2 2:1x8",  # it counts from 0 again
    ]


def test_the_times_of_a_tree():
    """A transfer takes 0.25 s of a link. One worker's group needs no link; a last round
    only goes up, because the model that comes down is the root's."""
    places = (("a",), ("a",), ("b",))
    policy = hierarchical(rounds(batch_size=8), every=2)
    m = machine(1.0, 2.0, 3.0, places=places, latency=0.25)
    assert timeline(policy, m, 15) == [
        ALL,
        "1 w0 from 0",
        "2 w1 from 0 > merge group0: 01 0:1x8 1:1x8",
        "2.5 merged group0: 01",
        "3 w2 from 0 > merge group1: 2 2:1x8",
        "3 merged group1: 2",
        "3.5 w0 from 2.5",
        "4.5 w1 from 2.5 > merge group0: 01",
        "4.75 merged group0: 01",
        f"6 w2 from 3 > merge group1: 2 {TWO_AND_ONE} {ALL}",
        "6 merged group1: 2",
        "6.5 merged group0+group1",
        "6.5 merged group1: 2",
        "6.75 merged group0: 01",
        "7.75 w0 from 6.75",
        "8.75 w1 from 6.75 > merge group0: 01 0:1x8 1:1x8",
    ]


def test_without_broadcast_nothing_goes_down():
    policy = hierarchical(rounds(batch_size=8), sizes=(2, 1), broadcast=False)
    assert follow(policy, WORKERS, (0, 1, 2)) == [
        ALL,
        "",
        "merge group0: 01",
        f"merge group1: 2 merge group0+group1 {ALL}",
    ]


def transfers(policy, workers, arrivals):
    """(node, op, transfers, level) of the merges at the last of the arrivals."""
    tree = policy.topology(workers)
    *_, (_, actions) = decisions(policy, ByHand(workers, arrivals), num_examples=1000)
    return [(m.node, m.op, m.transfers, tree.level(m.node)) for m in actions.merges]


def test_transfers_up_and_down_with_broadcast():
    policy = hierarchical(rounds(batch_size=8), sizes=(2, 2))
    assert transfers(policy, infos(*(1.0,) * 4), (0, 1, 2, 3)) == [
        ("group1", PUSH_FETCH, 1, 0),
        ("root", PUSH_FETCH, 2, 1),
        ("group0", MergeOp.FETCH, 1, 0),
        ("group1", MergeOp.FETCH, 1, 0),
    ]


def test_transfers_without_broadcast():
    policy = hierarchical(rounds(batch_size=8), sizes=(2, 2), broadcast=False)
    assert transfers(policy, infos(*(1.0,) * 4), (0, 1, 2, 3)) == [
        ("group1", PUSH_FETCH, 2, 0),
        ("root", PUSH_FETCH, 2, 1),
    ]


def test_one_group_alone_has_no_one_to_send_to():
    policy = hierarchical(rounds(batch_size=8), sizes=2)
    assert transfers(policy, infos(1.0, 1.0), (0, 1)) == [
        ("group0", PUSH_FETCH, 1, 0),
        ("root", PUSH_FETCH, 0, 1),
        ("group0", MergeOp.FETCH, 1, 0),
    ]


# Deeper trees


def test_three_levels():
    """Nodes of 2 workers, racks of 2 nodes, 2 racks: nodes merge, then their rack,
    which sends its model down; the root's model replaces it on all levels."""
    policy = hierarchical(hierarchical(rounds(batch_size=8), sizes=2), sizes=4, every=2)
    workers = infos(*(1.0,) * 8)
    first, second = "0:1x8 1:1x8 2:1x8 3:1x8", "4:1x8 5:1x8 6:1x8 7:1x8"

    def rack(g, a, b, c, d):
        """The actions within rack g once all four workers have arrived."""
        nodes = f"group{g}/group0", f"group{g}/group1"
        merge = f"merge {nodes[1]}: {c}{d} merge group{g}: {'+'.join(nodes)}"
        down = f"merge {nodes[0]}: {a}{b} fetch merge {nodes[1]}: {c}{d} fetch"
        return merge, down

    (up0, down0), (up1, down1) = rack(0, 0, 1, 2, 3), rack(1, 4, 5, 6, 7)
    assert follow(policy, workers, (0, 1, 2, 3, 0, 1, 2, 3, *(4, 5, 6, 7) * 2)) == [
        f"{first} {second}",
        "",
        "merge group0/group0: 01",
        "",
        f"{up0} {down0} {first}",  # the rack's first merge
        "",
        "merge group0/group0: 01",
        "",
        up0,  # its second: the root's model is sent down later
        "",
        "merge group1/group0: 45",
        "",
        f"{up1} {down1} {second}",
        "",
        "merge group1/group0: 45",
        "",
        " ".join(
            (
                up1,
                "merge group0+group1",
                "merge group0: group0/group0+group0/group1 fetch",
                "merge group1: group1/group0+group1/group1 fetch",
                "merge group0/group0: 01 fetch merge group0/group1: 23 fetch",
                "merge group1/group0: 45 fetch merge group1/group1: 67 fetch",
                first,
                second,
            )
        ),
    ]


def test_levels_and_transfers_of_three_levels():
    policy = hierarchical(hierarchical(rounds(batch_size=8), sizes=2), sizes=4)
    assert transfers(policy, infos(*(1.0,) * 8), range(8)) == [
        ("group1/group1", PUSH_FETCH, 1, 0),
        ("group1", PUSH_FETCH, 1, 1),
        ("root", PUSH_FETCH, 2, 2),
        ("group0", MergeOp.FETCH, 1, 1),
        ("group1", MergeOp.FETCH, 1, 1),
        ("group0/group0", MergeOp.FETCH, 1, 0),
        ("group0/group1", MergeOp.FETCH, 1, 0),
        ("group1/group0", MergeOp.FETCH, 1, 0),
        ("group1/group1", MergeOp.FETCH, 1, 0),
    ]


def test_the_model_comes_down_once():
    """A transfer takes 0.25 s. At 1 s all models go up to node and rack; the root takes
    two transfers, then rack and node go down: 1 + 6 * 0.25 s."""
    places = [(rack, f"{rack}{k // 2}") for rack in "ab" for k in range(4)]
    policy = hierarchical(hierarchical(rounds(batch_size=8)))
    table = timeline(policy, machine(*(1.0,) * 8, places=places, latency=0.25), 30)
    assert [line for line in table if "w0 from" in line] == [
        "1 w0 from 0",
        "3.5 w0 from 2.5",
    ]
