"""The uniform sampler: complete passes, and one order for all workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.machine import preset
from hetjax.sampling import uniform

WORKERS = preset("v100x4").worker_infos(0.0)
SEEDS = (0, 1, 2, 2**31)


def start(num_examples, seed=0):
    sampler = uniform()
    return sampler.draw, sampler.init(WORKERS, num_examples, seed)


def stream(num_examples, draws, seed=0):
    """The concatenated rows of these draws (worker, n)."""
    draw, state = start(num_examples, seed)
    pieces = [np.empty(0, np.int64)]
    for worker, n in draws:
        state, indices = draw(state, worker, n)
        assert len(indices) == n
        pieces.append(indices)
    return np.concatenate(pieces)


DRAWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 25)), max_size=30)
SIZES = st.integers(1, 20)  # of the data: draws are shorter, equal and longer


@settings(max_examples=100, deadline=None, derandomize=True)
@given(num_examples=SIZES, draws=DRAWS, seed=st.sampled_from(SEEDS))
def test_every_pass_is_a_permutation(num_examples, draws, seed):
    drawn = stream(num_examples, draws, seed)
    everything = set(range(num_examples))
    for begin in range(0, len(drawn), num_examples):
        piece = drawn[begin : begin + num_examples].tolist()
        assert len(set(piece)) == len(piece)  # none is seen twice in a pass
        assert set(piece) <= everything
        if len(piece) == num_examples:
            assert set(piece) == everything  # none is dropped


@settings(max_examples=100, deadline=None, derandomize=True)
@given(num_examples=SIZES, draws=DRAWS, seed=st.sampled_from(SEEDS))
def test_the_order_is_the_same_for_any_workers(num_examples, draws, seed):
    drawn = stream(num_examples, draws, seed)
    one_by_one = stream(num_examples, [(0, 1)] * len(drawn), seed)
    np.testing.assert_array_equal(drawn, one_by_one)


def test_in_the_order_of_the_file():
    sampler = uniform("sequential")
    state, drawn = sampler.init(WORKERS, 5, 3), []
    for worker, n in ((0, 3), (2, 4), (1, 0), (0, 6)):
        state, rows = sampler.draw(state, worker, n)
        drawn.extend(rows.tolist())
    assert drawn == [i % 5 for i in range(13)]


def test_with_replacement_rows_are_equally_likely_and_repeat():
    sampler = uniform("with_replacement")
    state = sampler.init(WORKERS, 20, 0)
    state, first = sampler.draw(state, 0, 20)
    state, second = sampler.draw(state, 1, 20)
    assert len(set(first)) < 20
    assert first.tolist() != second.tolist()
    _, many = sampler.draw(state, 0, 20_000)
    counts = np.bincount(many, minlength=20)
    # 1,000 each, standard deviation 31
    assert counts.min() > 850
    assert counts.max() < 1150


def test_an_unknown_order_is_an_error():
    with pytest.raises(ValueError, match="order='backwards': choose one of"):
        uniform("backwards")


@pytest.mark.parametrize("seed", SEEDS)
def test_same_seed_same_order(seed):
    draws = [(0, 70), (1, 80)]
    np.testing.assert_array_equal(stream(50, draws, seed), stream(50, draws, seed))


def test_other_seeds_and_other_passes_have_other_orders():
    # 4 seeds of 3 passes over 50 examples: two of 12 permutations out of 50! are equal
    # by chance about once in 10^62
    passes = [stream(50, [(0, 150)], seed).reshape(3, 50) for seed in SEEDS]
    actions = {tuple(order) for seed in passes for order in seed}
    assert len(actions) == 12
    assert tuple(range(50)) not in actions


def test_the_tail_of_a_pass_is_taken_and_the_next_pass_goes_on():
    whole = stream(10, [(0, 20)])
    draw, state = start(10)
    state, first = draw(state, 0, 7)
    state, across = draw(state, 1, 6)  # 3 of this pass and 3 of the next one
    state, rest = draw(state, 0, 7)
    assert first.tolist() == whole[:7].tolist()
    assert across.tolist() == whole[7:13].tolist()
    assert rest.tolist() == whole[13:].tolist()
    assert sorted([*first, *across[:3]]) == list(range(10))
    assert sorted([*across[3:], *rest]) == list(range(10))


def test_a_draw_may_span_several_passes():
    drawn = stream(4, [(0, 11)])
    assert sorted(drawn[:4]) == sorted(drawn[4:8]) == list(range(4))
    assert len(set(drawn[8:].tolist())) == 3


def test_a_draw_of_no_examples():
    draw, state = start(10)
    again, indices = draw(state, 0, 0)
    assert indices.shape == (0,)
    assert indices.dtype.kind == "i"
    assert draw(again, 0, 3)[1].tolist() == draw(state, 0, 3)[1].tolist()


def test_one_example():
    assert stream(1, [(0, 3), (1, 1)]).tolist() == [0, 0, 0, 0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(num_examples=SIZES, draws=DRAWS, n=st.integers(0, 25))
def test_old_states_stay_usable(num_examples, draws, n):
    """Draws are pure: a state gives the same indices before and after later draws."""
    draw, state = start(num_examples)
    kept = []
    for worker, count in draws:
        kept.append((state, draw(state, worker, n)[1].copy()))
        state, indices = draw(state, worker, count)
        indices[:] = -1  # the caller may overwrite the indices
    for old, expected in kept:
        np.testing.assert_array_equal(draw(old, 0, n)[1], expected)


@pytest.mark.parametrize("num_examples", [0, -1])
def test_there_must_be_examples(num_examples):
    with pytest.raises(ValueError, match=f"there are {num_examples} examples"):
        start(num_examples)
