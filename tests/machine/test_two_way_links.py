"""Links with another bandwidth on the way back, and merges of other sizes each way."""

import pytest

from hetjax.machine import Cost, Link, Machine, MergeAction, Profile, SimulatedClock
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import MergeOp

# three members with 100 B each: 1 s + 3 * 100 / 10 s there, 1 s + 3 * 100 / 40 s back
LINK = Link(latency=1.0, bandwidth=10.0, topology="central", down_bandwidth=40.0)
THERE, BACK = 31.0, 8.5
FETCH = {"op": MergeOp.FETCH, "transfers": 1}


@pytest.mark.parametrize(
    ("topology", "there", "back"),
    [
        ("central", THERE, BACK),
        ("ring", 2 * 1.0 + 2 / 3 * 10, 2 * 1.0 + 2 / 3 * 2.5),
        ("tree", 2 * (1.0 + 10), 2 * (1.0 + 2.5)),
    ],
)
def test_each_way_has_its_bandwidth(topology, there, back):
    link = Link(latency=1.0, bandwidth=10.0, topology=topology, down_bandwidth=40.0)
    assert link.one_way(3, 100.0, down=False) == pytest.approx(there)
    assert link.one_way(3, 100.0, down=True) == pytest.approx(back)
    assert link.seconds(3, 100.0) == pytest.approx(there + back)
    same = Link(latency=1.0, bandwidth=10.0, topology=topology)
    assert same.one_way(3, 100.0, down=True) == pytest.approx(there)
    assert same.seconds(3, 100.0) == pytest.approx(2 * there)


def seconds(num_bytes, **fields):
    """The seconds of a merge of three workers over the link."""
    workers = tuple(Profile(f"w{k}", "gpu", Cost(1.0, 0.0)) for k in range(3))
    clock = SimulatedClock(Machine("m", workers, {"": LINK}), seed=0)
    start, finish = clock.merge(MergeAction((0, 1, 2), **fields), num_bytes, 0.0, ())
    assert start == 0
    return finish


def test_a_merge_takes_both_ways_and_a_fetch_the_way_back():
    assert seconds(100.0) == THERE + BACK
    assert seconds(100.0, **FETCH) == BACK
    assert seconds(100.0, op=MergeOp.PUSH, transfers=1) == THERE


def test_each_way_has_its_bytes():
    """Half as much there, twice as much back."""
    traffic = Traffic(50.0, 200.0)
    assert seconds(traffic) == (1 + 3 * 5) + (1 + 3 * 5)
    assert seconds(traffic, **FETCH) == 1 + 3 * 5
    assert seconds(Traffic(100.0, 100.0)) == seconds(100.0)


def test_a_bandwidth_of_zero_is_refused():
    with pytest.raises(ValueError, match="down_bandwidth=0: pass a number above 0"):
        Link(latency=1.0, bandwidth=1.0, down_bandwidth=0)
