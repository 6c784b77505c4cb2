"""The records of merges: those that end within the run, and the bytes they move."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_runs import (
    ENDLESS,
    averaging,
    column,
    counting_data,
    counting_task,
    machine,
    one_by_one,
    train,
)

import hetjax as hj
from hetjax import schedule
from hetjax.machine import Link, MergeOp

BYTES = 4  # of the model w, one float32 number


@pytest.mark.parametrize("blocking", [True, False])
def test_bytes_of_simulated_workers(blocking):
    """Every worker pushes its model to every merge, and fetches the result."""
    strategy = averaging(blocking=blocking)
    history = train(machine(1.0, 1.5, link=0.25), strategy, 20.25, num_evals=5)
    assert history.merges > 5
    for worker in history.workers:
        assert worker.bytes_received == BYTES * history.merges
        assert worker.bytes_sent == BYTES * history.merges


def test_bytes_of_merges_that_only_push():
    """Each worker makes one round and merges alone; b's merge ends after the run."""
    actions = one_by_one((1.0, 1.0))

    def react(state, event):
        state, found = actions.react(state, event)
        pushes = tuple(m._replace(op=MergeOp.PUSH) for m in found.merges)
        return state, found._replace(merges=pushes)

    policy = schedule.Policy(actions.init, react)
    history = train(machine(1.0, 2.0, link=0.5), averaging(policy=policy), 2.25)
    moved = [(w.bytes_received, w.bytes_sent) for w in history.workers]
    assert moved == [(BYTES, 0), (0, 0)]
    assert history.merges == 1


def test_a_merge_without_a_link_moves_no_bytes():
    actions = one_by_one((1.0,))

    def react(state, event):
        state, found = actions.react(state, event)
        merges = tuple(m._replace(transfers=0) for m in found.merges)
        return state, found._replace(merges=merges)

    policy = schedule.Policy(actions.init, react)
    history = train(machine(1.0), averaging(policy=policy), 2.0)
    assert [(w.bytes_received, w.bytes_sent) for w in history.workers] == [(0, 0)]
    assert history.merges == 1


def test_a_merge_that_ends_after_the_run_does_not_count():
    """Rounds of 1 s, merges of 0.5 s: 1 to 1.5 s, 2.5 to 3 s, 4 to 4.5 s."""
    for seconds, done in ((2.75, [1.5]), (3.0, [1.5, 3.0]), (4.25, [1.5, 3.0])):
        history = train(machine(1.0, 1.0, link=0.5), averaging(), seconds)
        assert column(history, "w")[-1] == history.params["w"] == len(done)
        assert history.merges == len(done)
        np.testing.assert_allclose(history.merge_times, done)
        last = history.evals[-1]
        assert (last["merges"], last["bytes"]) == (len(done), 4 * BYTES * len(done))


def test_a_link_on_which_no_merge_ends():
    history = train(machine(1.0, 1.0, link=1e9), averaging(), 10.0, num_evals=4)
    assert history.merges == 0
    assert list(history.merge_times) == []
    assert "the first merge takes until 1e+09 s, beyond the run's 10 s" in repr(history)
    assert [w.bytes_received for w in history.workers] == [0, 0]


def nodes(top):
    """Four workers on two nodes, whose merges reach each other in 2 x `top` seconds."""
    whole = machine(1.0, 1.0, 1.0, 1.0)
    workers = tuple(
        replace(w, place=(node,))
        for w, node in zip(whole.workers, ("n", "n", "m", "m"), strict=True)
    )
    fast = Link(latency=0.05, bandwidth=ENDLESS)
    root = Link(latency=top, bandwidth=ENDLESS)
    return replace(whole, workers=workers, links={"": root, "n": fast, "m": fast})


@pytest.mark.parametrize(
    ("top", "seconds", "note"),
    [
        (1e9, 10.0, "the first merge at the root takes until 2e+09 s, beyond"),
        (0.5, 1.5, "nothing was merged at the root in 1.5 s"),
        (0.5, 10.0, ""),
    ],
)
def test_a_run_whose_nodes_alone_have_merged(top, seconds, note, tmp_path):
    """Members of a node merge after one step, the nodes after two."""
    strategy = hj.hier_sgd(batch_size=2, learning_rate=1.0, local_steps=(1, 2))
    runs = hj.compare(
        counting_task(),
        counting_data(),
        nodes(top),
        {"hier_sgd": strategy},
        seconds=seconds,
        num_evals=2,
        progress=False,
    )
    runs.to_json(tmp_path / "results.json")
    for found in (runs, hj.Comparison.from_json(tmp_path / "results.json")):
        (history,) = found.histories
        assert history.merges > 0
        assert history.unmerged.startswith(note)
        assert ("the model is the initial one" in str(found.table())) == bool(note)
        assert bool(history.unmerged) == bool(note)


def test_evaluations_workers_and_events_are_read_the_same_way():
    history = train(machine(1.0), averaging(), 3.0)
    point, worker = history.evals[-1], history.workers[0]
    assert point.seconds == point["seconds"] == 3.0
    assert point.w == point["w"] == worker.updates == worker["updates"] == 3
    with pytest.raises(AttributeError, match="has seconds, updates, .*, but no 'x'"):
        _ = point.x
    with pytest.raises(KeyError):
        _ = worker["x"]
