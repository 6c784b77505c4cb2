"""Sampling by weight: light and heavy examples, for measurements."""

import numpy as np
import pytest

from hetjax.sampling.by_weight import by_weight

WEIGHTS = [5, 1, 9, 2, 8, 3, 7]


def draws(count, n=4, seed=0):
    sampler = by_weight(WEIGHTS)
    state, found = sampler.init((), len(WEIGHTS), seed), []
    for _ in range(count):
        state, rows = sampler.draw(state, 0, n)
        found.append(rows)
    return found


def test_every_draw_is_of_one_half():
    light, heavy = {1, 3, 5, 0}, {6, 4, 2}
    seen = set()
    for rows in draws(60):
        assert len(rows) == 4
        half = light if set(rows) <= light else heavy
        assert set(rows) <= half
        seen |= {(len(half), int(row)) for row in rows}
    assert seen == {(4, k) for k in light} | {(3, k) for k in heavy}


def test_a_seed_repeats_and_another_does_not():
    first, again, other = draws(5), draws(5), draws(5, seed=1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_weights_of_other_examples_are_refused():
    with pytest.raises(ValueError, match="7 weights for 8 examples"):
        by_weight(WEIGHTS).init((), 8, 0)
