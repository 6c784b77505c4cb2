"""Supersteps: a tape that is played in other orders computes the same.

A player collects tapes of all policies, and tapes that no policy would write. Its
program is replaced by one that computes with names: what a round or a merge makes has a
name, which is made of the names of all that it was made from. So a merge that sees a
replica of its future, or misses one of its past, has another name than in the tape's
own order. Rounds of a superstep are played in any order, or side by side.
"""

from functools import cache

import numpy as np
import pytest
import zoo
from compiled_runs import IN_TURN, SIDE_BY_SIDE, runs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_with_faults import machines_with_faults
from policy_driver import infos
from tape_laws import written

import hetjax
from hetjax.data.device_rows import DeviceRows
from hetjax.engine import tape
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.protocols import EvaluatedModel, Traits
from hetjax.machine import Arrival, LocalRound, MergeAction
from hetjax.runtimes.compiled import stretch_collector
from hetjax.runtimes.compiled.compiled_player import CompiledPlayer
from hetjax.runtimes.compiled.stretch import FIELDS, Stretch
from hetjax.runtimes.compiled.stretch_types import WORKER
from hetjax.runtimes.compiled.tables import Buckets

BATCH = 6
MASTERS = ("magma_async_sgd",)  # a master needs a slave
ORDERS = {"in turn": IN_TURN, "side by side": SIDE_BY_SIDE}


@cache
def made(name):
    return zoo.make(name, size=BATCH)


@cache
def job_of(name):
    return runs_of("mlp").job(name, made(name), 0)


@cache
def source():
    return DeviceRows(runs_of("mlp").data.train, None)


def name_of(*parts):
    """The name of what is made of these."""
    return hash(tuple(parts))


def number_of(worker, first_step, steps, n):
    """A round's number, which stands for its loss."""
    return float(((worker * 1000 + first_step) * 10 + steps) * 10 + n)


class Names:
    """Makes programs that compute with names, in place of a task's."""

    def __init__(self, rng, *, exact):
        self.exact, self._rng = exact, rng

    def once(self, key, make):
        shape = key[2]
        return lambda state, arrays, tables: self._play(shape, dict(state), tables)

    def _play(self, shape, state, tables):
        means = np.zeros(tables.rates.shape)
        for merge, merges, first, last in tables.supersteps[: tables.number].tolist():
            for i in range(merge, merges):
                row, stats = tables.merges[i].tolist(), tables.stats[i]
                self._before(state, shape.kinds[row[0]], row[1:], stats)
            vmapped = tables.rounds.ndim == 3
            play = self._side_by_side if vmapped else self._in_any_order
            play(state, shape, tables.rounds[first:last].tolist(), means[first:last])
        every = np.ones(tables.rates.shape, bool)
        return state, (means, every, np.zeros((len(tables.rows), BATCH)))

    def _in_any_order(self, state, shape, rounds, means):
        """The rounds of one worker follow one another."""
        waiting = {}
        for i, (worker, *_) in enumerate(rounds):
            waiting.setdefault(worker, []).append(i)
        while waiting:
            worker = self._rng.choice(sorted(waiting))
            i = waiting[worker].pop(0)
            self._round(state, state, shape, rounds[i], means, i)
            if not waiting[worker]:
                del waiting[worker]

    def _side_by_side(self, state, shape, lines, means):
        for line, of_line in zip(lines, means, strict=True):
            before, absent = dict(state), len(state["replicas"])
            present = [r for r in line if r[0] != absent]
            assert len({worker for worker, *_ in present}) == len(present)
            assert len({r[5] for r in line}) == 1, "several buckets in one line"
            for slot, r in enumerate(line):
                if r[0] != absent:
                    self._round(before, state, shape, r, of_line, slot)

    def _round(self, before, state, shape, r, means, place):
        worker, _, steps, first, n, bucket = r
        if steps and self.exact:
            assert shape.buckets[bucket].size == n
        begun = before["replicas"][worker]
        if state["shared"] and before is not state:  # side by side: it has a copy
            begun = before["checked_out"][worker]
        elif state["shared"]:
            state["checked_out"] = {**state["checked_out"], worker: begun}
        after = name_of("round", begun, number_of(worker, first, steps, n))
        into = "finished" if state["shared"] else "replicas"
        state[into] = {**state[into], worker: after}
        means[place] = number_of(worker, first, steps, n)

    def _before(self, state, kind, row, stats):
        node, *members = row
        replicas, states = dict(state["replicas"]), dict(state["states"])
        state["replicas"], state["states"] = replicas, states
        if kind.what == "merge":
            n = len(kind.members)
            members = range(n) if kind.all_workers else members[:n]
            where = [
                (replicas, m) if of == WORKER else (states, (of, m))
                for of, m in zip(kind.members, members, strict=True)
            ]
            merged(where, states, (kind.level, node), stats[:, :n], kind.op)
            return
        (worker, *_) = members
        begun, done = state["checked_out"].get(worker), state["finished"].get(worker)
        if kind.what == "check_out":
            state["checked_out"] = {**state["checked_out"], worker: replicas[worker]}
        elif kind.what == "begin":
            replicas[worker] = name_of("begin", states[state["root"]])
        elif kind.what == "check_in":
            replicas[worker] = done
        else:
            assert kind.what == "check_in_merged"
            replicas[worker] = name_of("moved", replicas[worker], begun, done)


def merged(members, states, node, stats, op):
    """A merge in names: the node changes, and each member, which is in a dict."""
    before = [names[key] for names, key in members]
    stats = stats.astype(np.float32).tobytes()
    states[node] = after = name_of("merge", states[node], *before, stats, op.value)
    for i, (names, key) in enumerate(members):
        names[key] = name_of("member", names[key], after, i)


class InOrder:
    """The names that a tape makes in its own order."""

    def __init__(self, places, *, shared):
        self._places, self._shared = places, shared
        self.replicas, self.rounds, self.moved = {}, {}, set()
        counts = enumerate(places.num_nodes)
        self.states = {(level, k): level for level, n in counts for k in range(n)}
        self.root = places.of["root"]

    def begin(self, begin):
        self.replicas[begin.worker] = name_of("begin", self.states[self.root])

    def start(self, r):
        n = len(r.rows[0]) if len(r.rows) else 0
        number = number_of(r.worker, r.first_step, len(r.rows), n)
        self.rounds[r.worker] = self.replicas[r.worker], number
        self.moved.discard(r.worker)

    def finish(self, arrival):
        """The number of the round that arrives."""
        worker = arrival.worker
        begun, number = self.rounds.pop(worker)
        after = name_of("round", begun, number)
        if worker in self.moved:
            after = name_of("moved", self.replicas[worker], begun, after)
        self.replicas[worker] = after
        return number

    def merge(self, merge):
        action = merge.action
        every = [*action.members, *action.partners]
        self.moved |= {m for m in every if m in self.rounds}
        where = [
            (self.replicas, m)
            if isinstance(m, int)
            else (self.states, self._places.of[m])
            for m in every
        ]
        node = self._places.of[action.node]
        merged(where, self.states, node, merge.stats, action.op)


class Both:
    """A player and the order of the tape, which are given the same entries."""

    def __init__(self, name, workers, rng, *, side_by_side, exact=False):
        strategy, job = made(name), job_of(name)
        self.player = ours = CompiledPlayer(
            strategy,
            job,
            workers,
            source(),
            None,
            lanes=8 if side_by_side else 1,
            max_steps_ahead=np.inf,
        )
        names = Names(rng, exact=exact)
        ours._parts = ours._parts._replace(programs=names)
        launcher, self.collector = ours.launcher, ours._collector
        launcher.parts = self.collector.parts = ours._parts
        launcher.buckets = Buckets(job.buckets, source(), exact=exact)
        launcher.max_steps = 9  # of a stretch
        self.shared = ours._parts.shared
        self.expected = InOrder(ours._nodes, shared=self.shared)
        nothing = dict.fromkeys(range(len(workers)))
        launcher.run_state = {
            "replicas": nothing,
            "checked_out": nothing,
            "finished": nothing,
            "states": dict(self.expected.states),
            "root": self.expected.root,
            "shared": self.shared,
        }
        self._outcomes, self._rng = [], rng

    def play(self, entry):
        """The player's answer."""
        ours, expected, collector = self.player, self.expected, self.collector
        if self._rng.random() < 0.1:
            self.collector.launch()  # a cut anywhere changes nothing
        match entry:
            case tape.BeginReplica():
                collector.plays[type(entry)](entry)
                expected.begin(entry)
            case tape.StartRound():
                collector.start(entry, ours.synchronize)
                expected.start(entry)
            case Arrival():
                outcome = ours._finish(entry)
                self._outcomes.append((outcome, expected.finish(entry)))
                return outcome
            case tape.MergeReplicas():
                collector.merge(entry)
                expected.merge(entry)
            case tape.DiscardRound(worker):
                collector.running.pop(worker, None)
                expected.rounds.pop(worker, None)
            case tape.DiscardReplica(worker):
                expected.replicas.pop(worker)
            case tape.EvaluateRoot():
                self.check()
                return EvaluatedModel(None, {})
            case tape.MeasureMembers(action):
                self.check()
                return [0.5] * len((*action.members, *action.partners))
        return None

    def check(self):
        """Settle, and compare everything that can be seen now."""
        self.player.synchronize()
        state, expected = self.player.launcher.run_state, self.expected
        assert state["states"] == expected.states
        busy = () if self.shared else expected.rounds
        for worker, name in expected.replicas.items():
            assert worker in busy or state["replicas"][worker] == name
        for outcome, number in self._outcomes:
            assert outcome.known
            assert outcome.mean == number
        self._outcomes = []


@pytest.fixture(autouse=True)
def _short_stretches(monkeypatch):
    monkeypatch.setattr(stretch_collector, "MAX_MERGES", 7)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", hetjax.STRATEGIES)
@settings(deadline=None, derandomize=True, max_examples=6)
@given(data=st.data())
def test_tapes_of_strategies(name, order, data):
    strategy = made(name)
    spared = 2 if name in MASTERS else 1
    machine = data.draw(machines_with_faults(3, spared=spared))
    workers, train = machine.worker_infos(0.0), job_of(name).train
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    both = Both(name, workers, rng, side_by_side=ORDERS[order])
    measured = bool(strategy.merges[-1].required_metrics)
    written(
        strategy.policy,
        machine,
        num_events=120,
        play=both.play,
        instants=tuple(float(t) for t in range(1, 41)),
        traits=Traits(num_bytes=1e8, measured=lambda node: measured),
        num_held_out=100,
        examples=Examples(
            strategy.sampler, workers, len(train), 0, lambda rows: [0] * len(rows)
        ),
    )
    both.check()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["local_sgd", "hier_sgd", "ad_psgd"])
@settings(deadline=None, derandomize=True, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), num_workers=st.integers(2, 6))
def test_tapes_that_no_policy_writes(name, order, exact, seed, num_workers):
    """Rounds, arrivals and merges of any workers, in any order that is allowed."""
    rng = np.random.default_rng(seed)
    num_workers = 3 if name == "hier_sgd" else num_workers  # its tree has three
    workers = infos(*(1.0,) * num_workers)
    both = Both(name, workers, rng, side_by_side=ORDERS[order], exact=exact)
    for worker in range(num_workers):
        both.play(tape.BeginReplica(worker))
    steps = [0] * num_workers
    for _ in range(80):
        busy = sorted(both.expected.rounds)
        idle = [k for k in range(num_workers) if k not in busy]
        if rng.random() < 0.03:
            both.check()
        what = rng.choice(["round", "arrival", "merge"])
        if what == "round" and idle:
            worker = int(rng.choice(idle))
            both.play(any_round(rng, worker, steps))
        elif what == "arrival" and busy:
            both.play(Arrival(int(rng.choice(busy)), LocalRound(1, 1), 0.0, 1.0))
        elif what == "merge" and idle:
            both.play(any_merge(rng, both, idle, busy))
    both.check()


def any_round(rng, worker, steps):
    number, n = int(rng.integers(4)), int(rng.integers(1, BATCH + 1))
    rows = [rng.integers(70, size=n) for _ in range(number)]
    first, steps[worker] = steps[worker], steps[worker] + number
    rounds = LocalRound(number, n)
    return tape.StartRound(
        worker, rounds, rows, [0] * number, np.float32(0.1), first, 0.0
    )


def any_merge(rng, both, idle, busy):
    """Idle workers merge; a shared merge has partners that may be at work."""
    some = rng.permutation(idle)[: rng.integers(1, len(idle) + 1)].tolist()
    node, partners = "root", ()
    if both.shared:
        others = [k for k in (*idle, *busy) if k not in some]
        partners = tuple(rng.permutation(others)[:1].tolist())
    nodes = sorted(set(both.expected._places.of) - {"root"})
    if nodes and rng.random() < 0.7:
        node = str(rng.choice(nodes))
    elif nodes:
        some = [str(n) for n in rng.permutation(nodes)]
    elif rng.random() < 0.3 and not both.shared:
        some = sorted(idle)  # in their order: perhaps everyone
    action = MergeAction(tuple(some), node, partners=partners)
    stats = rng.normal(size=(FIELDS, len(some) + len(partners))).astype(np.float32)
    return tape.MergeReplicas(action, stats)


def test_rounds_of_all_workers_are_few_supersteps():
    """A merge ends a superstep only if one of its members has a round in it."""
    stretch = Stretch()
    for _ in range(5):
        for worker in range(3):
            stretch.add_round(worker, [np.arange(4)], 0, 0.1, None)
        stretch.add_merge(0, 0, (0, 1, 2), None, (0, 1, 2))
        stretch.add_merge(0, 0, (0, 1, 2), None, (0, 1, 2))
    assert len(list(stretch.supersteps())) == 6
    stretch.add_round(2, [np.arange(4)], 0, 0.1, None)
    stretch.add_merge(0, 0, (0, 1), None, (0, 1))  # nobody waits for worker 2
    assert len(list(stretch.supersteps())) == 6
    *_, (merges, rounds) = stretch.supersteps()
    assert (len(merges), len(rounds)) == (3, 1)
