"""Whole runs of the newer strategies against their NumPy float64 oracles."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from new_case import replay, strategy_of
from new_cases import CASES
from quick import quick_if
from vector_task import PROBLEMS, centers_of, run


def assert_same(name, *, compiled, monkeypatch=None):
    """Run a case; its centers, models, bytes and staleness are those of the oracle."""
    case = CASES[name]
    server = replay(case)
    found = run(
        strategy_of(case),
        PROBLEMS[case.problem],
        case.seconds,
        case.end,
        compiled=compiled,
        monkeypatch=monkeypatch,
    )
    assert found.history.stopped == ""
    wanted = centers_of(server, found.times)
    atol = case.tolerance * max(1.0, np.abs(wanted).max())
    near = partial(np.testing.assert_allclose, rtol=0, atol=atol)
    near(found.centers, wanted, err_msg="centers")
    for i, model in found.given.items():
        near(model, server.given[i], err_msg=f"model given to worker {i}")
    assert (found.up, found.down) == (server.up, server.down), "bytes up, down"
    if case.strategy not in ("streaming_diloco", "decoupled_diloco"):  # parts
        stale = [dict(Counter(own)) for own in server.entered]
        assert [w.staleness for w in found.history.workers] == stale
    return found


@pytest.mark.parametrize("name", quick_if(lambda name: ", " not in name, CASES))
def test_reference_player(name, monkeypatch):
    found = assert_same(name, compiled=False, monkeypatch=monkeypatch)
    assert len(found.given) == len(CASES[name].seconds)


@pytest.mark.full
@pytest.mark.parametrize("name", CASES)
def test_compiled_player(name):
    assert_same(name, compiled=True)
