"""Loss-biased sampling: how many examples workers get, which ones, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import preset
from hetjax.sampling import POOL_FORMULAS, biased

N = 640
SEEDS = (0, 1, 2)


def start(tau, *, num_examples=N, seed=0, **settings):
    """A sampler for workers that do `tau` steps, and its initial state."""
    workers = preset(f"uniform:{len(tau)}").worker_infos(0.0)
    sampler = biased(local_steps=lambda workers: tau, **settings)
    return sampler, sampler.init(workers, num_examples, seed)


def with_losses(sampler, state, losses, worker=0):
    return sampler.observe(state, worker, np.arange(len(losses)), losses)


# How many: N = 640, tau = (32, 8, 24), so |S| = 2, m = 3


@pytest.mark.parametrize(
    ("formula", "slow"),
    [
        ("steps", 640 * 32 / (3 * 32)),  # N (8 + 24) / (m tau_f); of equals N |S| / m r
        ("work", 640 * 32 / 64),  # N (8 + 24) / (32 + 8 + 24)
        ("ratio", 640 * 24 / 32),  # N tau_s / tau_f, of the largest tau_s
    ],
)
def test_formulas(formula, slow):
    _, state = start((32, 8, 24), pool_formula=formula, pool_factor=1.25)
    # the slow ones share by their steps, 8 : 24; the fast one has N / m
    assert state.counts == (round(640 / 3), round(slow / 4), round(slow * 3 / 4))
    assert state.pool == round(1.25 * slow)
    assert state.slow == (1, 2)


@pytest.mark.parametrize(
    ("tau", "expected"),
    [((32, 16), 160), ((32, 4), 40), ((32, 1), 10)],  # N / 4, N / 16, N / 64
)
def test_the_papers_settings(tau, expected):
    """docs/algorithms E.3: n_S = N |S| / m * tau_s / tau_f."""
    _, state = start(tau)
    assert state.counts == (320, expected)
    assert state.pool == 2 * expected


@pytest.mark.parametrize(
    ("tau", "valid"),
    [((32, 16), {2}), ((32, 4), {2, 4, 8}), ((32, 1), {2, 4, 8, 16, 32})],
)
def test_the_papers_na_cells(tau, valid):
    """Tables 4, 9 and 10: N/A where the pool is all of the data, or more."""
    for d in (2, 4, 8, 16, 32):
        if d in valid:
            assert start(tau, pool_factor=d)[1].pool < N
            continue
        with pytest.raises(ValueError, match="pass a smaller pool_factor"):
            start(tau, pool_factor=d)


@pytest.mark.parametrize("formula", ["work", "ratio"])
@pytest.mark.parametrize(("tau", "number"), [((32, 16), 1), ((32, 4), 3), ((32, 1), 5)])
def test_the_other_formulas_have_as_many_cells(formula, tau, number):
    """docs/algorithms E.3: they fit the tables if a pool of all examples is allowed."""
    for k, d in enumerate((2, 4, 8, 16, 32)):
        if k < number:
            assert start(tau, pool_factor=d, pool_formula=formula)[1].pool <= N
            continue
        with pytest.raises(ValueError, match="pass a smaller pool_factor"):
            start(tau, pool_factor=d, pool_formula=formula)


def test_without_d_the_pool_is_two_if_that_fits():
    assert start((32, 4))[1].pool == 80
    # n_S = 640 * 31 / 64 = 310 of 640: 2 n_S fits; by "ratio" it is 620
    assert start((32, 31))[1].pool == 620
    assert start((32, 31), pool_formula="ratio")[1].pool == N - 1
    assert start((32, 32))[1].pool == 0


def test_equal_workers_are_all_fast():
    sampler, state = start((8, 8, 8))
    assert (state.slow, state.counts) == ((), (213, 213, 213))
    _, drawn = sampler.draw(state, 1, 213)
    assert len(set(drawn.tolist())) == 213


# Which ones


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("unified", [False, True])
def test_a_slow_worker_gets_the_highest_losses_of_a_pool(seed, unified):
    """Loss = row number. The 40 highest of a random pool of 160 rows out of 640."""
    sampler, state = start((32, 4), pool_factor=4, seed=seed, unified=unified)
    state = with_losses(sampler, state, np.arange(N, dtype=np.float32))
    _, drawn = sampler.draw(state, 1, 40)
    assert len(set(drawn.tolist())) == 40
    # the k-th highest of 160 of 640 without replacement has mean 641 (161 - k) / 161
    assert drawn.min() == pytest.approx(641 * 121 / 161 - 1, abs=60)
    assert drawn.mean() == pytest.approx(641 * 140.5 / 161 - 1, abs=40)
    assert drawn.max() > 600


def test_a_pool_of_all_but_one_gives_nearly_the_highest():
    """d n_S = 639 of 640: the highest 40, or all but one of the highest 41."""
    sampler, state = start((32, 4), pool_factor=639 / 40)
    state = with_losses(sampler, state, np.arange(N, dtype=np.float32))
    _, drawn = sampler.draw(state, 1, 40)
    assert set(drawn.tolist()) <= set(range(599, 640))


def test_losses_never_seen_come_first_and_in_random_order():
    """32 of 640 were never seen, and the pool is all but one: 31 of them at least."""
    sampler, state = start((32, 4), pool_factor=639 / 40)
    seen = np.arange(32, N)
    state = sampler.observe(state, 0, seen, np.full(len(seen), 1e30, np.float32))
    _, drawn = sampler.draw(state, 1, 40)
    unseen = drawn[drawn < 32]
    assert len(unseen) in (31, 32)
    assert unseen.tolist() != sorted(unseen.tolist())


def test_ties_are_random():
    """With all losses equal the draw is uniform: no end of the rows is preferred."""
    means = []
    for seed in range(30):
        sampler, state = start((32, 4), pool_factor=8, seed=seed)
        state = with_losses(sampler, state, np.ones(N, np.float32))
        means.append(sampler.draw(state, 1, 40)[1].mean())
    # of 40 uniform rows: standard deviation 640 / sqrt(12 * 40) = 29, / sqrt(30) = 5.3
    assert np.mean(means) == pytest.approx(319.5, abs=4 * 5.3)


def test_a_slow_worker_s_examples_are_shuffled():
    sampler, state = start((32, 16))
    state = with_losses(sampler, state, np.arange(N, dtype=np.float32))
    _, drawn = sampler.draw(state, 1, 160)
    correlation = np.corrcoef(drawn, np.arange(160))[0, 1]
    assert abs(correlation) < 0.3  # 1 / sqrt(160) = 0.08; sorted, it is -1


def test_losses_count_from_the_next_pool_on():
    sampler, state = start((32, 4))
    _, untouched = sampler.draw(state, 1, 40)
    state, first = sampler.draw(state, 1, 10)
    state = with_losses(sampler, state, np.arange(N, dtype=np.float32))
    state, rest = sampler.draw(state, 1, 30)
    assert [*first, *rest] == untouched.tolist()
    _, second = sampler.draw(state, 1, 40)
    assert second.mean() > 400  # the half of the pool with higher row numbers


def test_the_last_loss_counts():
    sampler, state = start((32, 4))
    state = sampler.observe(state, 0, np.array([3, 5]), np.array([1.0, 2.0]))
    state = sampler.observe(state, 1, np.array([5, 6]), np.array([9.0, 4.0]))
    assert state.losses[[3, 5, 6]].tolist() == [1.0, 9.0, 4.0]
    assert np.isinf(state.losses).sum() == N - 3


# Groups


@pytest.mark.parametrize("seed", SEEDS)
def test_slow_workers_split_one_pool(seed):
    sampler, state = start((8, 32, 16), seed=seed)
    state, first = sampler.draw(state, 0, state.counts[0])
    state, second = sampler.draw(state, 2, state.counts[2])
    assert state.draws == 1
    assert not set(first.tolist()) & set(second.tolist())


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pass_of_a_fast_worker_has_no_repeats(seed):
    sampler, state = start((32, 32, 4), seed=seed)
    passes = {0: [], 1: []}
    for _ in range(3):
        for worker in (0, 1):
            pieces = []
            for n in (100, 100, 13):  # N / 3 = 213
                state, rows = sampler.draw(state, worker, n)
                pieces.append(rows)
            passes[worker].append(np.concatenate(pieces))
    for rows in passes[0] + passes[1]:
        assert len(set(rows.tolist())) == 213
    # each pass is a new one, apart from the other worker's
    assert len({tuple(rows) for rows in passes[0] + passes[1]}) == 6
    assert set(passes[0][0].tolist()) & set(passes[1][0].tolist())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tau", [(32, 16), (32, 32, 8, 8), (32, 4, 16)])
@pytest.mark.parametrize("first", [0, -1])
def test_unified_passes_are_disjoint(seed, tau, first):
    """In any order of draws, slow workers get the highest losses, fast ones others."""
    sampler, state = start(tau, unified=True, seed=seed)
    state = with_losses(sampler, state, np.arange(N, dtype=np.float32))
    workers = list(range(len(tau)))
    rows = {}
    for worker in workers[first:] + workers[:first]:
        state, rows[worker] = sampler.draw(state, worker, state.counts[worker])
    drawn = np.concatenate(list(rows.values()))
    assert state.draws == 1
    assert len(set(drawn.tolist())) == len(drawn) == sum(state.counts)
    slow = np.concatenate([rows[k] for k in state.slow])
    assert slow.mean() > np.concatenate([rows[k] for k in (0,)]).mean() + 50


def test_separated_groups_overlap():
    sampler, state = start((32, 16))
    state, fast = sampler.draw(state, 0, 320)
    _, slow = sampler.draw(state, 1, 160)
    assert set(fast.tolist()) & set(slow.tolist())


# Small and unusual data: no draw may wait for ever

TAUS = st.lists(st.sampled_from((1, 4, 16, 31, 32)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    tau=TAUS,
    spare=st.integers(0, 40),
    unified=st.booleans(),
    formula=st.sampled_from(tuple(POOL_FORMULAS)),
    draws=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 30)), max_size=15),
    seed=st.integers(0, 3),
)
def test_every_draw_is_answered(tau, spare, unified, formula, draws, seed):
    """Each draw has the requested number of valid rows; an old state gives the same."""
    settings = {"unified": unified, "pool_formula": formula, "seed": seed}
    sampler, state = start(tau, num_examples=len(tau) + spare, **settings)
    for worker, n in draws:
        worker %= len(tau)
        after, rows = sampler.draw(state, worker, n)
        assert rows.shape == (n,)
        assert rows.dtype.kind == "i"
        assert set(rows.tolist()) <= set(range(len(tau) + spare))
        kept = state.losses.copy()
        later = sampler.observe(after, worker, rows, np.full(n, 0.5, np.float32))
        np.testing.assert_array_equal(state.losses, kept)
        rows_before = rows.copy()
        rows[:] = -1  # the caller may overwrite the rows
        np.testing.assert_array_equal(sampler.draw(state, worker, n)[1], rows_before)
        state = later


def test_a_thousand_workers_of_a_small_data_set():
    """N / m = 1.5 is rounded to 2 for each: the last fast workers share the rest."""
    tau = (8,) * 999 + (4,)
    sampler, state = start(tau, num_examples=1500, unified=True)
    drawn = []
    for worker in range(1000):
        state, rows = sampler.draw(state, worker, 1)
        drawn.extend(rows)
    assert len(set(drawn)) == 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_one_seed_one_order(seed):
    def rows(seed):
        sampler, state = start((32, 8), seed=seed)
        drawn = []
        for worker in (0, 1, 1, 0):
            state, piece = sampler.draw(state, worker, 50)
            drawn.extend(piece)
        return drawn

    assert rows(seed) == rows(seed)
    assert rows(seed) != rows(seed + 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pool_formula": "half"}, "pool_formula='half': choose one of steps, work"),
        ({"pool_factor": 0.5}, "pool_factor=0.5: pass a number of at least 1"),
        ({"pool_factor": float("inf")}, "pool_factor=inf: pass"),
        ({"pool_factor": float("nan")}, "pool_factor=nan: pass"),
        (
            {"pool_factor": 4, "tau": (32, 16)},
            "a pool of 640, which is not below the 640",
        ),
        ({"tau": (32, 0)}, "local_steps=.*: pass a number above 0"),
        ({"num_examples": 1}, "biased: 1 examples for 2 workers"),
        ({"num_examples": 0}, "biased: 0 examples for 2 workers"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ValueError, match=message):
        start(**({"tau": (32, 4)} | settings))
