"""Draws ahead: they save time, and change nothing."""

import dataclasses
import itertools
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_runs import DATA, TASK, assert_replays, merged, real

import hetjax as hj
from hetjax.engine import step_runner
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.expected_draws import LONGEST_PAUSE, RoundRows
from hetjax.engine.player_parts import Assignment
from hetjax.engine.step_runner import RoundOutcome, StepRunner, StepSettings
from hetjax.machine import LocalRound, WorkerInfo
from hetjax.sampling.by_weight import by_weight
from hetjax.sampling.sharded import sharded
from hetjax.sampling.types import Sampler
from hetjax.sampling.uniform import uniform

N, WORKERS = 23, 3
INFOS = tuple(WorkerInfo(k, f"w{k}", "cpu", (), 1.0, 0.0) for k in range(WORKERS))
SAMPLERS = {
    "shuffled": uniform(),
    "sequential": uniform("sequential"),
    "with_replacement": uniform("with_replacement"),
    "by_weight": by_weight(np.arange(N)),
    "sharded": sharded(np.array_split(np.arange(N), WORKERS)),
}
ROUND = LocalRound(2, 3)  # two steps of three examples


def examples_of(sampler):
    return Examples(sampler, INFOS, N, 0, lambda rows: [int(r.sum()) for r in rows])


def expected_by(examples):
    """Let them expect rounds; the function that draws a worker's next one."""
    examples.expect()
    return examples.expected_rows


SIZES = [(2, 3)] * 4 + [(0, 3), (1, 3), (4, 3), (3, 4)]
rounds = st.sampled_from([LocalRound(*steps_and_size) for steps_and_size in SIZES])
requests = st.one_of(
    st.tuples(st.just("draw"), st.integers(0, WORKERS - 1), rounds),
    st.tuples(st.just("ahead"), st.integers(0, WORKERS - 1)),
    st.tuples(st.just("ahead"), st.integers(0, WORKERS - 1)),
    st.tuples(st.just("discard"), st.integers(0, WORKERS - 1)),
    st.tuples(st.just("load")),
)


@pytest.mark.parametrize("name", SAMPLERS)
@given(st.lists(requests, max_size=40))
def test_rounds_have_the_rows_that_they_would_have_anyway(name, wanted):
    plain, expecting = examples_of(SAMPLERS[name]), examples_of(SAMPLERS[name])
    ahead, saved = expected_by(expecting), plain.save()
    for what, *about in wanted:
        if what == "ahead":
            ahead(*about)
        elif what == "load":
            expecting.load(saved), plain.load(saved)
        elif what == "discard":
            expecting.discard(*about)
        else:
            found, drawn = expecting.draw(*about), plain.draw(*about)
            chex.assert_trees_all_equal([list(found[0]), found[1]], [*drawn])
            chex.assert_trees_all_equal(expecting.save(), plain.save())


def expected(draws, examples):
    """For each draw of (worker, local round), whether it was drawn ahead."""
    return [isinstance(examples.draw(*one)[0], RoundRows) for one in draws]


@pytest.mark.parametrize("name", SAMPLERS)
def test_rounds_in_the_same_order_are_all_expected(name):
    """Also of unlike sizes, whichever worker asks first."""
    examples = examples_of(SAMPLERS[name])
    ahead = expected_by(examples)
    rounds = [(k, LocalRound(1, 2 + k)) for k in range(WORKERS)]
    assert expected(rounds, examples) == [False] * 3
    for order in itertools.permutations(range(WORKERS)):
        rows = {k: ahead(k) for k in order}
        assert [len(rows[k][0]) for k in range(WORKERS)] == [2, 3, 4]
        assert all(ahead(k) is rows[k] for k in order)
        for k, local_round in rounds:
            assert examples.draw(k, local_round)[0] is rows[k]


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize(
    "begun", [(1, (4, 3)), (0, (3, 4)), (0, (2, 3)), (0, (0, 3))], ids=str
)
def test_another_round_is_drawn_anew(name, begun):
    """Of another worker, of other batches, of fewer steps, of none."""
    plain, examples = (examples_of(SAMPLERS[name]) for _ in range(2))
    ahead = expected_by(examples)
    for worker in (0, 1):
        plain.draw(worker, LocalRound(4, 3)), examples.draw(worker, LocalRound(4, 3))
    assert ahead(1) is not None
    worker, (steps, size) = begun
    rows, nonzeros = examples.draw(worker, LocalRound(steps, size))
    assert not isinstance(rows, RoundRows)
    chex.assert_trees_all_equal(
        (rows, nonzeros), plain.draw(worker, LocalRound(steps, size))
    )


def test_a_worker_that_is_lost_is_not_expected():
    examples = examples_of(uniform())
    ahead = expected_by(examples)
    rounds = [(k, ROUND) for k in range(WORKERS)]
    expected(rounds, examples)
    assert ahead(2) is not None
    examples.discard(1)
    assert ahead(1) is None
    assert ahead(2) is not None
    assert expected([(0, ROUND), (2, ROUND)], examples) == [True, True]


def test_after_errors_there_is_a_pause_that_doubles():
    """Until a round was expected rightly."""
    examples = examples_of(uniform())
    ahead = expected_by(examples)

    def drew(size):
        examples.draw(0, LocalRound(1, size))
        return ahead(0) is not None

    tried = [k for k in range(400) if drew(1 + k % 7)]
    pauses = np.diff(tried) - 1
    assert pauses.tolist() == [2, 4, 8, 16, 32, *[LONGEST_PAUSE] * (len(pauses) - 5)]
    while not drew(5):
        pass
    assert drew(5)
    assert [drew(k) for k in (1, 2, 3, 4)] == [False, False, True, False]


def test_a_sampler_that_sees_losses_is_not_asked_ahead():
    """What it draws depends on them."""
    sampler = uniform()._replace(observe=lambda state, worker, rows, losses: state)
    examples = examples_of(sampler)
    ahead = expected_by(examples)
    expected([(0, ROUND)] * 3, examples)
    assert ahead(0) is None


@dataclasses.dataclass
class Counted:
    rng: np.random.Generator
    draws: int = 0


IMPURE = {  # (init, draw)
    "generator": (
        lambda *job: np.random.default_rng(0),
        lambda rng, worker, n: (rng, rng.integers(N, size=n)),
    ),
    "within": (
        lambda *job: {"parts": [Counted(np.random.default_rng(0))]},
        lambda state, worker, n: (
            dict(state),
            state["parts"][0].rng.integers(N, size=n),
        ),
    ),
    "hidden": (
        lambda *job: SimpleNamespace(rng=np.random.default_rng(0)),
        lambda state, worker, n: (state, state.rng.integers(N, size=n)),
    ),
}


@pytest.mark.parametrize("name", IMPURE)
def test_a_sampler_that_changes_its_state_is_not_asked_ahead(name):
    """Its draws, and what a checkpoint holds, are those of the rounds so far."""
    init, draw = IMPURE[name]
    plain, examples = (examples_of(Sampler(init, draw)) for _ in range(2))
    ahead = expected_by(examples)
    for _ in range(4):
        assert ahead(0) is None
        chex.assert_trees_all_equal(examples.draw(0, ROUND), plain.draw(0, ROUND))


def test_an_error_of_a_draw_ahead_is_raised_for_the_round_itself():
    def draw(state, worker, n):
        if state == 2:
            raise RuntimeError("no more examples")
        return state + 1, np.arange(n)

    examples = examples_of(Sampler(lambda *job: 0, draw))
    ahead = expected_by(examples)
    expected([(0, ROUND)] * 2, examples)
    assert ahead(0) is None
    with pytest.raises(RuntimeError, match="no more examples"):
        examples.draw(0, ROUND)


# -- batches ---------------------------------------------------------------------------

STRATEGY = hj.local_sgd(batch_size=4, learning_rate=0.1, local_steps=3)


def runner_and_replica(job):
    settings = StepSettings.of(STRATEGY)
    begin = job.programs.replica(settings.local_update, settings.buffers)
    return StepRunner(settings, job), begin(*job.programs.init(jax.random.key(0)))


def rows_of(steps):
    return list(np.random.default_rng(1).integers(60, size=(steps, 4)))


@pytest.mark.parametrize("mode", ["dispatch", "fused", "unrolled"])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("case", ["fits", "other device", "other mode", "too large"])
def test_gathered_batches_give_the_same_round(mode, steps, case, job, monkeypatch):
    """Those for another device or program are gathered again."""
    device, other = jax.devices()[:2]
    outcomes, calls = [], []
    gathered = StepRunner._gathered
    monkeypatch.setattr(
        StepRunner,
        "_gathered",
        lambda self, *about: calls.append(about[1:]) or gathered(self, *about),
    )
    if case == "too large":
        monkeypatch.setattr(step_runner, "MOST_AHEAD", 3)
    for ahead in (False, True):
        runner, replica = runner_and_replica(job)
        calls.clear()
        rows = RoundRows(rows_of(steps)) if ahead else rows_of(steps)
        if ahead:
            how = {"fused": "dispatch"}.get(mode, "fused")
            chosen = how if case == "other mode" else mode
            runner.gather(rows, chosen, other if case == "other device" else device)
        work = Assignment(0, replica, rows, np.float32(0.1), 3)
        outcomes.append(runner.run(work, mode, device))
        if ahead:
            assert rows.gathered is None  # its memory is free
            single = steps == 1
            again = case == "other device" or (case == "other mode" and not single)
            assert len(calls) == 1 + again
    found, plain = (o.wait()._asdict() for o in outcomes)
    chex.assert_trees_all_equal(found, plain)


def test_what_cannot_be_gathered_ahead_fails_in_the_round(job):
    runner, replica = runner_and_replica(job)
    device = jax.devices()[0]
    rows = RoundRows([np.array([0, 1, 2, 10**6])])
    runner.gather(rows, "dispatch", device)
    with pytest.raises(IndexError):
        runner.run(Assignment(0, replica, rows, np.float32(0.1), 0), device=device)


@pytest.fixture(scope="module")
def job():
    machine = hj.local_machine(["cpu:0", "cpu:1"])
    config = hj.api.run_config.RunConfig(seconds=1.0, num_evals=1)
    session = hj.api.session.Session(TASK, DATA, machine, config)
    return session.job("local_sgd", STRATEGY, 0)


RUNS = {  # strategy, workers, whether rounds can be expected
    "one worker": (hj.async_sgd(batch_size=4, learning_rate=0.05), 1, True),
    "arrivals": (hj.async_sgd(batch_size=4, learning_rate=0.05), 3, False),
    "rounds": (hj.local_sgd(batch_size=4, learning_rate=0.05, local_steps=2), 3, True),
}


@pytest.mark.parametrize("name", RUNS)
def test_real_workers_gather_while_they_compute(name, monkeypatch):
    """Their trace replays to the same bits without that."""
    strategy, number, expected = RUNS[name]
    taken = []
    batches = StepRunner._batches

    def seen(self, rows, how, device):
        gathered = getattr(rows, "gathered", None)
        taken.append(gathered is not None)
        return batches(self, rows, how, device)

    monkeypatch.setattr(StepRunner, "_batches", seen)
    monkeypatch.setattr(RoundOutcome, "done", False)  # they always seem to compute
    machine = hj.local_machine([f"cpu:{k}" for k in range(number)])
    history = real(strategy, machine, until=(merged,) * 60)
    assert any(taken) == expected
    monkeypatch.undo()
    assert_replays(history, strategy)
