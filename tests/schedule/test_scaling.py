"""Batch-size scaling: the paper's numbers, bounds, Algorithm 1 literally."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetjax.schedule import linear_scaling

FULL = (1024.0,) * 4


def paper(sizes, updates, **changes):
    """The rule with the settings of the Adaptive SGD paper for Amazon-670k."""
    return linear_scaling(
        sizes,
        updates,
        **({"min_batch_size": 128, "batch_size": 1024, "beta": 64} | changes),
    )


def test_vector_of_the_algorithm():
    """docs/algorithms A.2: u = (28, 26, 24, 22), mean 25, from four batches of 1024."""
    sizes = paper(FULL, (28, 26, 24, 22))
    assert sizes == (1024.0, 1024.0, 960.0, 832.0)
    # lr_i / b_i = lr(b_max) / b_max, with lr(b_max) = 0.1
    learning_rates = [0.1 * b / 1024 for b in sizes]
    assert learning_rates == pytest.approx([0.1, 0.1, 0.09375, 0.08125])


@pytest.mark.parametrize(
    ("bound", "sizes", "updates", "expected"),
    [
        # mean 25: +3 * 64 = 192 would exceed 1024 from 900
        ("skip", (900, 500, 500, 500), (28, 24, 24, 24), (900, 436, 436, 436)),
        ("clip", (900, 500, 500, 500), (28, 24, 24, 24), (1024, 436, 436, 436)),
        # -3 * 64 = -192 would go below 128 from 300
        ("skip", (300, 500, 500, 500), (22, 26, 26, 26), (300, 564, 564, 564)),
        ("clip", (300, 500, 500, 500), (22, 26, 26, 26), (128, 564, 564, 564)),
        # a bound itself may be reached
        ("skip", (832, 320, 500, 500), (28, 22, 25, 25), (1024, 128, 500, 500)),
        # a worker at a bound may move away from it
        ("skip", (1024, 128, 500, 500), (22, 28, 25, 25), (832, 320, 500, 500)),
        # a worker that did nothing counts in the mean: u = (50, 50, 0, 0), +-25 * 64
        ("skip", (1024, 1024, 1024, 128), (50, 50, 0, 0), (1024, 1024, 1024, 128)),
        ("clip", (1024, 200, 1024, 128), (50, 50, 0, 0), (1024, 1024, 128, 128)),
    ],
)
def test_bounds(bound, sizes, updates, expected):
    assert paper(sizes, updates, bound=bound) == expected


def test_real_valued_steps():
    # mean of (3, 2, 2) is 7/3: + 2/3 beta, - 1/3 beta
    result = linear_scaling(
        (8, 8, 8), (3, 2, 2), min_batch_size=1, batch_size=16, beta=1
    )
    assert result == pytest.approx((8 + 2 / 3, 8 - 1 / 3, 8 - 1 / 3))


CASES = st.integers(1, 6).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(8, 64), min_size=n, max_size=n),
        st.lists(st.integers(0, 40), min_size=n, max_size=n),
    )
)
BETAS = st.floats(0, 20)


def algorithm_1(sizes, updates, min_batch_size, batch_size, beta):
    """The paper's two branches, literally."""
    mean, new = sum(updates) / len(updates), []
    for b, u in zip(sizes, updates, strict=True):
        if u > mean and b + beta * (u - mean) <= batch_size:
            b = b + beta * (u - mean)
        elif u < mean and b - beta * (mean - u) >= min_batch_size:
            b = b - beta * (mean - u)
        new.append(b)
    return new


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES, beta=BETAS)
def test_skip_is_the_paper_s_algorithm(case, beta):
    sizes, updates = case
    result = linear_scaling(sizes, updates, min_batch_size=8, batch_size=64, beta=beta)
    assert list(result) == pytest.approx(algorithm_1(sizes, updates, 8, 64, beta))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES, beta=BETAS)
def test_clip_takes_as_much_of_the_step_as_fits(case, beta):
    sizes, updates = case
    clip = linear_scaling(
        sizes, updates, min_batch_size=8, batch_size=64, beta=beta, bound="clip"
    )
    free = linear_scaling(
        sizes, updates, min_batch_size=-math.inf, batch_size=math.inf, beta=beta
    )
    assert list(clip) == [sorted((8, b, 64))[1] for b in free]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES, beta=BETAS, bound=st.sampled_from(("skip", "clip")))
def test_laws(case, beta, bound):
    sizes, updates = case
    rule = {"min_batch_size": 8, "batch_size": 64, "beta": beta, "bound": bound}
    result = linear_scaling(sizes, updates, **rule)
    assert all(8 <= b <= 64 for b in result)
    # worker order is irrelevant (a roll: a flip would hide a reversed index)
    rolled = linear_scaling(sizes[1:] + sizes[:1], updates[1:] + updates[:1], **rule)
    assert rolled == result[1:] + result[:1]
    # equal updates change nothing
    assert linear_scaling(sizes, [7] * len(sizes), **rule) == tuple(sizes)
    # no worker moves against its surplus
    mean = sum(updates) / len(updates)
    for old, new, u in zip(sizes, result, updates, strict=True):
        assert (new - old) * (u - mean) >= 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(case=CASES, beta=BETAS)
def test_without_bounds_the_sum_is_conserved(case, beta):
    sizes, updates = case
    new = linear_scaling(
        sizes, updates, min_batch_size=-math.inf, batch_size=math.inf, beta=beta
    )
    assert sum(new) == pytest.approx(sum(sizes))


def test_refusals():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        paper(FULL, (1, 2, 3))
    with pytest.raises(ValueError, match="bound='cut': choose one of"):
        paper(FULL, (1, 2, 3, 4), bound="cut")
    with pytest.raises(ValueError, match="no workers"):
        paper((), ())
