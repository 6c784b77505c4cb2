"""The laws of tapes, of every strategy, while workers are killed and join."""

import pytest
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from machines_with_faults import machines_with_faults
from tape_laws import Counting, check, written

import hetjax
from hetjax.engine.protocols import Traits

INSTANTS = tuple(float(t) for t in range(1, 41))
MASTERS = ("magma_async_sgd",)  # a master needs a slave


@pytest.mark.parametrize("name", hetjax.STRATEGIES)
@settings(deadline=None, derandomize=True, max_examples=10)
@given(data=st.data())
def test_laws(name, data):
    strategy = zoo.make(name, size=16)
    spared = 2 if name in MASTERS else 1
    measured = bool(strategy.merges[-1].required_metrics)
    entries = written(
        strategy.policy,
        data.draw(machines_with_faults(3, spared=spared)),
        play=Counting(INSTANTS),
        instants=INSTANTS,
        traits=Traits(num_bytes=1e8, measured=lambda node: measured),
        num_held_out=100,
    )
    check(entries)
