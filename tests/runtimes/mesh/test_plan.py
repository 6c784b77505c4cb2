"""Merges as stages: merges that commute share a stage, and the others keep order."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import PUSH_FETCH, ROOT, MergeAction, MergeOp, Node, Topology
from hetjax.merge.worker_stats import WorkerStats
from hetjax.runtimes.mesh.merge_stages import RequestedMerge, StagePlanner
from hetjax.runtimes.mesh.mesh_layout import MeshLayout

FIELDS = WorkerStats._fields
STEPS, NODE_STEPS = FIELDS.index("local_steps"), FIELDS.index("server_steps")
FLAT = Topology({ROOT: Node(tuple(range(8)), 0, frozenset(range(8)))})


def tree(*sizes):
    """A root above one node of each size."""
    bounds = np.cumsum((0, *sizes))
    nodes = {
        f"n{i}": Node(tuple(range(a, b)), 0, frozenset(range(a, b)))
        for i, (a, b) in enumerate(zip(bounds, bounds[1:], strict=False))
    }
    everyone = frozenset(range(bounds[-1]))
    return Topology({**nodes, ROOT: Node(tuple(nodes), 1, everyone)})


def planner(topology, devices=8, workers_per_device=1):
    layout = MeshLayout(tuple(jax.devices("cpu")[:devices]), workers_per_device)
    return StagePlanner(layout, topology, 2)


def asked(node, members, number=1.0, op=PUSH_FETCH):
    """A merge that is identified by its statistics."""
    stats = np.zeros((len(FIELDS), len(members)), np.float32)
    stats[FIELDS.index("worker")] = [m if isinstance(m, int) else -1 for m in members]
    stats[STEPS] = number
    stats[NODE_STEPS] = 100 * number
    return RequestedMerge(MergeAction(tuple(members), node, op=op), stats)


def test_a_merge_of_all_workers_is_one_collective():
    plan = planner(FLAT).plan([asked(ROOT, range(8))])
    (stage,), (table,), (present,) = plan
    assert (stage.along_axis, stage.whole, stage.axis_groups) == (True, True, None)
    assert (stage.members, stage.replicated_over) == ((), None)
    assert table.shape == (8, len(FIELDS), 8)
    assert present.all()
    for device in table:
        assert device[FIELDS.index("worker")].tolist() == list(range(8))
        assert device[STEPS].tolist() == [1.0] * 8


def test_absent_workers_have_no_steps_and_keep_their_replicas():
    plan = planner(FLAT, 4, 2).plan([asked(ROOT, (0, 3, 6))])
    (stage,), (table,), (present,) = plan
    assert not stage.whole
    assert present[:, :2].tolist() == [[1, 0], [0, 1], [0, 0], [1, 0]]
    assert present[:, 2].all()  # the center moves everywhere
    assert table[2][STEPS].tolist() == [1, 0, 0, 1, 0, 0, 1, 0]


def test_siblings_merge_in_one_stage_and_their_parent_in_the_next():
    merges = [asked("n0", range(3), 1), asked("n1", range(3, 8), 2)]
    plan = planner(tree(3, 5)).plan([*merges, asked(ROOT, ("n0", "n1"), 3)])
    below, root = plan.stages
    assert below.axis_groups == ((0, 1, 2), (3, 4, 5, 6, 7))
    assert (below.state, below.members, root.state) == ("level 0", (), "level 1")
    # each device has the numbers of its own node: the others are absent
    assert plan.stats[0][0][STEPS].tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    assert plan.stats[0][7][STEPS].tolist() == [0, 0, 0, 2, 2, 2, 2, 2]
    assert plan.stats[0][:, NODE_STEPS, 0].tolist() == [100] * 3 + [200] * 5
    assert (root.members, root.replicated_over) == (
        ("level 0",),
        (0, 0, 0, 1, 1, 1, 1, 1),
    )
    assert plan.stats[1].shape == (8, len(FIELDS), 2)
    assert plan.stats[1][5][STEPS].tolist() == [3, 3]


def test_a_node_that_does_not_merge_is_absent():
    plan = planner(tree(4, 4)).plan([asked("n1", range(4, 8), 2)])
    (stage,), (table,), (present,) = plan
    assert not stage.whole
    assert present.tolist() == [[0, 0]] * 4 + [[1, 1]] * 4
    assert not table[:4, STEPS].any()


def test_nodes_that_are_not_whole_devices_merge_one_by_one():
    """Two workers on each device: nodes of 3 and 5 share the second device."""
    merges = [asked("n0", range(3), 1), asked("n1", range(3, 8), 2)]
    plan = planner(tree(3, 5), 4, 2).plan([*merges, asked(ROOT, ("n0", "n1"), 3)])
    assert [s.state for s in plan.stages] == ["n0", "n1", ROOT]
    assert not any(s.along_axis for s in plan.stages)
    assert plan.stages[2].members == ("n0", "n1")
    assert plan.taking_part[0][:, :2].tolist() == [[1, 1], [1, 0], [0, 0], [0, 0]]
    assert plan.stats[2][0][STEPS].tolist() == [3, 3]


def test_equal_merges_have_equal_stages():
    """So they share one program; only the numbers differ."""
    known = planner(tree(3, 5))
    first, again = (known.plan([asked("n0", range(3), i)]) for i in (1, 2))
    assert first.stages == again.stages
    assert hash(first.stages) == hash(again.stages)
    assert first.stats[0][0][STEPS].tolist() == [1] * 3 + [0] * 5
    assert again.stats[0][0][STEPS].tolist() == [2] * 3 + [0] * 5


@st.composite
def merges_of_a_tree(draw):
    """Any merges of the nodes of a tree, in any order, and the tree."""
    sizes = draw(st.sampled_from([(4, 4), (3, 5), (2, 2, 4), (8,)]))
    topology = tree(*sizes)
    merges = []
    for number in range(1, 1 + draw(st.integers(1, 6))):
        node = draw(st.sampled_from(sorted(topology.nodes)))
        children = topology.nodes[node].children
        members = draw(st.sets(st.sampled_from(children), min_size=1))
        op = draw(st.sampled_from([PUSH_FETCH, MergeOp.PUSH, MergeOp.FETCH]))
        merges.append(asked(node, sorted(members), number, op))
    return merges, topology


@pytest.mark.parametrize("workers_per_device", [1, 2, 8])
@given(merges_of_a_tree())
@settings(deadline=None)
def test_no_merge_overtakes_one_that_it_depends_on(workers_per_device, given_merges):
    """Every merge is in one stage, after all that touch the same members or nodes."""
    merges, topology = given_merges
    plan = planner(topology, 8 // workers_per_device, workers_per_device).plan(merges)
    stage_of = {}
    for i, (stage, table) in enumerate(zip(plan.stages, plan.stats, strict=True)):
        for number in set(table[:, STEPS].ravel()) - {0.0}:
            assert number not in stage_of
            stage_of[number] = i
            assert stage.op == merges[int(number) - 1].action.op
    assert set(stage_of) == set(range(1, len(merges) + 1))
    for later, b in enumerate(merges, start=1):
        for earlier, a in enumerate(merges[: later - 1], start=1):
            touched = ({m.action.node, *m.action.members} for m in (a, b))
            if set.intersection(*touched):
                assert stage_of[earlier] < stage_of[later]
