"""Runs of every strategy on actors in this process: threads, replay, checkpoints."""

import os
import signal
import sys
from functools import cache

import chex
import jax
import numpy as np
import pytest
from checkpointed_runs import Memory, load, run, session
from in_process import InProcessCluster, three_actors
from quick import quick
from real_runs import (
    DATA,
    ENOUGH,
    TASK,
    arrived,
    ending,
    joined,
    lost,
    merged,
    merged_root,
    real,
    rounds,
    three_workers,
)
from test_real_strategies import EPOCHS, SOON, strategy
from zoo import FORMS, WAYS

import hetjax as hj
from hetjax.data import from_arrays
from hetjax.data.portable import MappedFile, MappedRows, Portable, portable
from hetjax.engine.split_merges import SplitMergeStore
from hetjax.runtimes.cluster import actor
from hetjax.runtimes.cluster.cluster_machine import make_machine
from hetjax.runtimes.cluster.node_slots import (
    ClusterNode,
    find_slot,
    node_names,
    slots_on,
)

CHOSEN = ("biased_local_sgd", "hier_sgd", "ad_psgd", "adaptive_sgd")
# speed decides neither who merges when nor, as in sequential_sgd, who works at all
SYNCHRONOUS = [
    name
    for name in FORMS
    if strategy(name).policy.bulk_synchronous and name != "sequential_sgd"
]


pytestmark = pytest.mark.usefixtures("patient")


@cache
def machine_of_actors():
    return three_actors()[1]


@pytest.mark.parametrize("name", quick(FORMS, *CHOSEN))
def test_a_run_is_replayed_in_one_process(name):
    history = real(strategy(name), machine_of_actors(), epochs=EPOCHS, **SOON)
    assert "as asked" in history.stopped
    assert history.merges > 3
    again = hj.replay(history.trace, progress=False)
    assert again.replayed == "equal"
    chex.assert_trees_all_equal(again.params, history.params)
    end = history.duration
    # a replay counts the models that merges move, not what crossed a network
    seen, before = (
        [{**e, "bytes": 0} for e in h.evals if e["seconds"] <= end]
        for h in (again, history)
    )
    assert seen == before
    for worker in history.workers:
        kinds = (worker.busy, worker.waiting, worker.merging, worker.transfer)
        assert sum(kinds) + worker.idle == pytest.approx(history.duration, abs=1e-6)
        assert min(kinds) >= 0
        if worker.updates:
            assert worker.bytes_received > 0
            assert worker.bytes_sent > 0
    assert not history.events


@pytest.mark.parametrize("threads", [False, True])
def test_a_replay_runs_merges_in_the_parts_that_a_cluster_ran(monkeypatch, threads):
    """One program in place of two could round differently; threads have one."""
    inner, changed = SplitMergeStore._change, []

    def change(self, worker, *given):
        changed.append(worker)
        return inner(self, worker, *given)

    machine = three_workers() if threads else machine_of_actors()
    history = real(strategy("sma"), machine, until=3 * [merged_root])
    assert not changed
    monkeypatch.setattr(SplitMergeStore, "_change", change)
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    assert len(changed) == (0 if threads else 3 * history.merges)


def done(lines):
    """The orders of the rounds that arrived; speed decides which begin at the end."""
    given, orders = {}, []
    for line in lines:
        if "dispatch" in line:
            about = (line["local_steps"], line["batch_size"])
            given[line["dispatch"]] = (line["dispatch"], *about)
        if "arrival" in line:
            orders.append(given[line["arrival"]])
    return orders


@pytest.mark.parametrize("name", quick(SYNCHRONOUS, "sma", "fed_acc"))
def test_three_actors_equal_three_threads(name, cpu_alone):
    """The same orders, and parameters bit for bit on the same kind of device."""
    found = []
    chosen = strategy(name)
    if name == "hier_sgd":  # who draws first from a common pass depends on speed there
        shards = [np.arange(k, len(DATA.train), 3) for k in range(3)]
        chosen = chosen._replace(sampler=hj.sampling.sharded(shards))
    for machine in (machine_of_actors(), three_workers()):
        history = real(chosen, machine, until=6 * [merged_root])
        orders = done(history.trace.load().lines)
        found.append((history.params, sorted(orders), history.merges))
    assert found[0][1:] == found[1][1:]
    chex.assert_trees_all_equal(found[0][0], found[1][0])


@pytest.mark.parametrize("step_mode", ["fused", "unrolled", None])
def test_other_step_modes(step_mode):
    _, machine = three_actors(step_mode=step_mode)
    history = real(rounds(local_steps=4), machine, until=4 * [merged])
    assert hj.replay(history.trace, progress=False).replayed == "equal"


# -- checkpoints -----------------------------------------------------------------------


def interrupted(folder, name, machine, stop_at=None):
    """A run that SIGTERM interrupts at its n-th evaluation."""
    calls = []

    def on_eval(point):
        calls.append(point)
        if len(calls) == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    return hj.train(
        TASK,
        DATA,
        machine,
        strategy(name),
        seconds=0.8,
        num_evals=16,
        checkpoint=folder,
        every="1 eval",
        on_eval=on_eval,
        progress=False,
    )


@pytest.mark.parametrize("name", quick(WAYS, "sma", "ad_psgd"))
def test_a_run_is_resumed_and_the_whole_trace_replays(tmp_path, name):
    first = interrupted(tmp_path, name, machine_of_actors(), stop_at=4)
    assert first.stopped == "interrupted"
    last = interrupted(tmp_path, name, three_actors()[1])  # of another driver
    assert (last.stopped, last.duration) == ("", 0.8)
    assert len(last.evals) == 17
    done = [p for p in first.evals if p["seconds"] <= last.interruptions[0].seconds]
    assert done
    assert done == last.evals[: len(done)]
    assert not [e for e in last.events if e.what != "joined"]
    replayed = hj.replay(
        tmp_path / "trace.jsonl", TASK, DATA, strategy(name), progress=False
    )
    assert replayed.replayed == "equal"
    moved = [p["bytes"] for p in last.evals]
    assert moved == sorted(moved)
    assert moved[-1] > 0
    if name == "decoupled_diloco":
        # its syncer answers with a quorum, not each report: a worker may have had no
        # answer yet, and an answer behind the cut need not come again in these seconds
        return
    for before, after in zip(first.workers, last.workers, strict=True):
        assert after.bytes_received >= before.bytes_received > 0 or not before.updates


def test_workers_that_were_lost_at_a_snapshot_join_again(tmp_path):
    """The run continues with all workers: new processes join."""
    cluster, machine = three_actors()

    def interrupt(point):
        if point["seconds"] == pytest.approx(0.2):
            cluster.leave("b")
        if point["seconds"] >= 0.5:
            os.kill(os.getpid(), signal.SIGTERM)

    given = {"seconds": 60.0, "num_evals": 600, "every": "1 eval", "progress": False}
    given |= {"checkpoint": tmp_path, "strategy": rounds()}
    first = hj.train(TASK, DATA, machine, on_eval=interrupt, **given)
    assert [e.what for e in first.events] == ["lost"]
    cluster, machine = three_actors()

    def stop(point):
        given_to_b = cluster.actors[1].calls.count(("call_run", "run_round"))
        return hj.STOP if given_to_b >= 3 else ""

    last = hj.train(TASK, DATA, machine, on_eval=stop, **given)
    whats = [e.what for e in last.events if e.worker == "b/cpu:0"]
    assert whats[0] == "lost"
    assert whats[-1] == "joined"
    assert last.workers[1].updates > first.workers[1].updates
    replayed = hj.replay(tmp_path / "trace.jsonl", TASK, DATA, rounds(), progress=False)
    assert replayed.replayed == "equal"


def test_a_worker_that_was_unreachable_at_a_snapshot_is_absent_from_a_merge():
    """It waited for the others, which arrive before the policy learns of its loss."""
    saver, chosen = Memory(every=5), rounds()
    runs = [session(TASK, DATA, three_actors()[1], 60.0, 600) for _ in range(2)]
    run(runs[0], ending(chosen, 20 * [merged]), saver=saver)
    saved = next(
        cut
        for cut in map(load, saver.cuts)
        if cut["run"]["clock"]["now"] and 0 < len(waiting_in(cut)) < 3
    )
    (gone, *_), player = waiting_in(saved), saved["run"]["player"]
    del player["replicas"][gone]
    player["gone"] = [gone]
    now = saved["run"]["clock"]["now"]
    for name in [name for name in saved if name != "run"]:
        arrival = saved[name]["arrival"]
        saved[name]["arrival"] = arrival._replace(start=now / 4, finish=now / 2)
    _, inner = saved["run"]["writer"]["_state"]
    saved["run"]["writer"]["_state"] = 0, inner
    more = ending(chosen, [lost(gone), joined(gone), arrived(gone), merged])
    history = run(runs[1], more, saved=saved, continues=True)
    assert history.stopped == ENOUGH
    (merge,) = (x for x in history.trace.load().lines if "missing" in x)
    assert (merge["members"], merge["missing"]) == ([0, 1, 2], [gone])


@pytest.mark.parametrize("threads", [False, True])
def test_the_lines_of_a_run_are_in_its_file_when_the_loop_ends(threads):
    """Few rounds wait for the next evaluation; nothing else closes the file here."""
    machine = three_workers() if threads else machine_of_actors()
    given = ending(rounds(), [merged])
    history = run(session(TASK, DATA, machine, 60.0, 1), given)
    kinds = [next(iter(line)) for line in history.trace.load().lines]
    assert kinds.count("merge") == history.merges == 1
    assert kinds.count("arrival") == 3


def waiting_in(cut):
    """The workers that have a replica and no round in flight."""
    player = cut["run"]["player"]
    return sorted(set(player["replicas"]) - set(player["working"]))


def test_data_that_could_not_be_loaded_are_loaded_the_next_time(tmp_path):
    _, machine = three_actors()
    data = mapped(tmp_path)
    (tmp_path / "x.npy").rename(tmp_path / "elsewhere.npy")
    with pytest.raises(OSError, match="all nodes must have the same files"):
        real(rounds(), machine, data=data)
    (tmp_path / "elsewhere.npy").rename(tmp_path / "x.npy")
    history = real(rounds(), machine, until=[merged], data=data)
    assert history.merges > 0


def test_a_run_of_threads_is_resumed_with_actors(tmp_path):
    """The root, the totals and the history continue; the workers are others."""
    first = interrupted(tmp_path, "local_sgd", three_workers(), stop_at=4)
    last = interrupted(tmp_path, "local_sgd", three_actors()[1])
    assert last.evals[: len(first.evals) - 1] == first.evals[:-1]
    assert {e.what for e in last.events} == {"left", "joined"}


# -- data ------------------------------------------------------------------------------


@pytest.fixture
def shared(monkeypatch):
    """The values that are put for actors to fetch."""
    values, inner = [], InProcessCluster.share
    monkeypatch.setattr(
        InProcessCluster, "share", lambda self, x: values.append(x) or inner(self, x)
    )
    return values


def test_a_data_set_with_a_recipe_is_loaded_by_every_actor(monkeypatch, shared):
    """Nothing of it is sent, and it is loaded once for all runs."""
    _, machine = three_actors()
    loaded, inner = [], actor.WorkerActor._load
    monkeypatch.setattr(
        actor.WorkerActor, "_load", lambda self, x: loaded.append(x) or inner(self, x)
    )
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    for seed in (0, 1):
        options = {"task": task, "data": data, "seed": seed}
        real(rounds(), machine, until=[merged], **options)
    assert len(loaded) == 3
    assert not any(isinstance(value, Portable) for value in shared)


def test_a_data_set_without_one_is_put_once_for_all_actors(shared):
    _, machine = three_actors()
    real(rounds(), machine, until=[merged])
    real(rounds(batch_size=8), machine, until=[merged])
    assert len([value for value in shared if isinstance(value, Portable)]) == 1


def mapped(folder, name="x.npy"):
    """The data, with the inputs in files."""
    np.save(folder / name, DATA.train.x)
    x = np.load(folder / name, mmap_mode="r")
    y = np.asarray(DATA.train.y)
    return from_arrays((x, y), (DATA.test.x, DATA.test.y), num_classes=3)


@pytest.mark.parametrize("shards", [None, [np.arange(k, 60, 3) for k in range(3)]])
def test_the_path_of_a_memory_map_is_sent(tmp_path, shards, shared):
    _, machine = three_actors()
    strategy = rounds()
    if shards:
        strategy = strategy._replace(sampler=hj.sampling.sharded(shards))
    data = mapped(tmp_path)
    history = real(strategy, machine, until=3 * [merged], data=data)
    assert hj.replay(history.trace, progress=False).replayed == "equal"
    sent = [p.leaves[0] for p in shared if isinstance(p, Portable)]
    assert len(sent) == (3 if shards else 1)
    assert all(isinstance(x, MappedRows if shards else MappedFile) for x in sent)


def test_a_memory_map_that_differs_on_a_node_is_refused(tmp_path, monkeypatch):
    _, machine = three_actors()
    data = mapped(tmp_path)

    def another(split):
        found = portable(split)
        np.save(tmp_path / "new.npy", DATA.train.x + 1)
        (tmp_path / "new.npy").replace(tmp_path / "x.npy")  # the driver's map stays
        return found

    monkeypatch.setattr("hetjax.runtimes.cluster.actor_pool.portable", another)
    with pytest.raises(ValueError, match=r"a/cpu:0 on .* has other content here"):
        hj.train(TASK, data, machine, rounds(), seconds=0.3, progress=False)


def test_a_memory_map_that_is_not_on_a_node_is_named(tmp_path, monkeypatch):
    _, machine = three_actors()
    data = mapped(tmp_path)

    def moved(split):
        (tmp_path / "x.npy").rename(tmp_path / "elsewhere.npy")
        return portable_of(split)

    portable_of = portable
    monkeypatch.setattr("hetjax.runtimes.cluster.actor_pool.portable", moved)
    with pytest.raises(OSError, match=r"a/cpu:0 on .*x\.npy.*all nodes must"):
        hj.train(TASK, data, machine, rounds(), seconds=0.3, progress=False)


def other_digits():
    """Digits, but other ones at every call."""
    other_digits.calls += 1
    data = hj.data.digits()
    y = np.roll(data.train.y, other_digits.calls)
    return from_arrays((data.train.x, y), (data.test.x, data.test.y), num_classes=10)


other_digits.calls = 0


def test_actors_that_read_other_data_are_refused():
    from hetjax.recipes import by_name

    _, machine = three_actors()
    data = by_name(other_digits)()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    with pytest.raises(ValueError, match="reads other data from .*other_digits"):
        hj.train(task, data, machine, rounds(), seconds=0.2, progress=False)


# -- slots -----------------------------------------------------------------------------


def node(name, number=0, **resources):
    return ClusterNode(f"{name} {number}", name, {"memory": 1e9, **resources})


NODES = [
    node("a", CPU=16.0, GPU=2.0),
    node("b", CPU=8.0),
    node("b", 1, CPU=4.0),
    node("c", GPU=1.0),
    node("d"),
]


def test_every_gpu_is_a_worker_and_the_cpu_of_a_node_without_one():
    found = slots_on(NODES, None)
    assert [(p.name, dict(p.resources)) for p in found] == [
        ("a/gpu:0", {"GPU": 1, "CPU": 1}),
        ("a/gpu:1", {"GPU": 1, "CPU": 1}),
        ("b/cpu:0", {"CPU": 8}),
        ("b-2/cpu:0", {"CPU": 4}),
        ("c/gpu:0", {"GPU": 1}),
    ]


def test_as_many_workers_as_fit():
    found = slots_on(NODES, {"CPU": 4})
    assert [p.name for p in found] == [
        *(f"a/cpu:{k}" for k in range(4)),
        "b/cpu:0",
        "b/cpu:1",
        "b-2/cpu:0",
    ]


def test_a_gpu_and_the_cpu_of_its_node():
    found = slots_on(NODES, [{"GPU": 1, "CPU": 1}, {"CPU": 8}, {"CPU": 8}])
    assert [p.name for p in found] == ["a/gpu:0", "a/cpu:0", "b/cpu:0"]
    with pytest.raises(ValueError, match=r"resources\[1\] is .* a has 16 CPU, 2 GPU"):
        slots_on(NODES, [{"CPU": 1}, {"CPU": 32}])


def test_room_for_a_worker_is_what_others_have_not_taken():
    wanted = {"CPU": 8.0}
    full = [("b 0", {"CPU": 8.0})]
    assert find_slot(wanted, None, NODES, [], prefer="b").node.id == "b 0"
    # of another node it takes what is usual there
    found = find_slot(wanted, None, NODES, full, prefer="b")
    assert (found.node.id, found.resources) == ("b 1", {"CPU": 4})
    assert find_slot(wanted, wanted, NODES, full, prefer="b").node.id == "a 0"
    assert find_slot({"GPU": 1, "CPU": 1}, None, NODES[1:3], [], prefer="a") is None


def test_names_of_nodes_are_unique():
    assert list(node_names(NODES).values()) == ["a", "b", "b-2", "c", "d"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 4}, "no room for 4 workers .* a has 1 CPU; b has 1 CPU"),
        ({"resources": {"GPU": 1}}, "no room for any worker"),
        ({"slowdown": (1, 2)}, "slowdown has 2 entries for 3 workers"),
        ({"slowdown": 0.5}, "slowdown=0.5: pass a number of at least 1"),
        ({"step_mode": "vmapped"}, "choose one of dispatch, fused, unrolled"),
        (
            {"faults": (hj.machine.ScriptedFault(1.0, "kill", "gpu"),)},
            "the workers are a/cpu:0",
        ),
    ],
)
def test_requests_that_cannot_be_met(settings, message):
    cluster = InProcessCluster("a", "b", "c")
    with pytest.raises(ValueError, match=message):
        make_machine(cluster, **settings)
    # what was started ends
    assert all(actor._dead.is_set() for actor in cluster.actors)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 0}, "workers=0: pass a whole number of at least 1"),
        ({"local_workers": 2.5}, "local_workers=2.5"),
        ({"joiners": -1}, "joiners=-1: pass a whole number of at least 0"),
        ({"address": 5}, "address=5: pass a string"),
        ({"resources": {}}, "must be positive numbers by name"),
        ({"resources": []}, r"resources=\[\]: must be"),
        ({"resources": {"CPU": 0}}, "must be positive numbers by name"),
        ({"resources": [{"CPU": 1}, {}]}, "must be positive numbers by name"),
        (
            {"resources": [{"CPU": 1}] * 3, "workers": 2},
            "resources has 3 entries for 2 workers",
        ),
        (
            {"resources": [{"CPU": 1}], "local_workers": 2},
            "entries for 2 workers: pass",
        ),
        ({"step_mode": "vmapped"}, "choose one of dispatch, fused, unrolled"),
        ({"slowdown": 0.5}, "slowdown=0.5: pass a number of at least 1"),
        ({"slowdown": {"a": 0.5}}, "slowdown=0.5: pass"),
        ({"slowdown": [1, 0.5]}, r"slowdown=\[1, 0.5\]: pass"),
    ],
)
def test_requests_that_mean_nothing(monkeypatch, settings, message):
    """They are refused before a cluster is started."""
    monkeypatch.delitem(sys.modules, "hetjax.runtimes.cluster.ray_cluster", False)
    monkeypatch.setitem(sys.modules, "ray", None)  # its import would fail
    with pytest.raises(ValueError, match=message):
        hj.cluster_machine(**settings)


def test_a_gpu_that_jax_does_not_see_is_an_error():
    if jax.default_backend() != "cpu":
        pytest.skip("JAX sees a GPU")
    cluster = InProcessCluster("a")
    cluster._nodes[0].resources["GPU"] = 1.0
    with pytest.raises(ValueError, match="JAX finds only a CPU on a"):
        make_machine(cluster)


def test_a_machine_shows_what_it_has(cpu_alone):
    _, machine = three_actors(joiners=1, slowdown=(1, 1, 2, 1))
    assert repr(machine).startswith("Machine: 4 workers on a cluster of 3 nodes")
    assert "c/cpu:0 (cpu) slowed 2 times" in repr(machine)
    some = machine.subset(["a/cpu:0", "c/cpu:0"])
    assert [w.slowdown for w in some.workers] == [1, 2]
    assert some.record()["call"] == (
        "hetjax.cluster_machine(slowdown={'c/cpu:0': 2.0})"
    )
    history = real(rounds(), some, until=[merged])
    assert [w.name for w in history.workers] == ["a/cpu:0", "c/cpu:0"]
    with machine:
        pass
    assert machine.pool.cluster.closed
