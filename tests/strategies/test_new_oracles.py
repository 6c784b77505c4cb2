"""Whole runs of the newer strategies against their NumPy float64 oracles."""

from collections import Counter

import numpy as np
import pytest
from new_cases import CASES, replay, strategy_of
from quick import quick_if
from vector_task import PROBLEMS, centers_of, run

# float32 against float64, relative to the largest number: tens of steps and merges
# round by 6e-8 each. A wrong term is of the order of 1e-2 and more.
TOLERANCE = 1e-5


def assert_near(found, wanted, what):
    scale = max(1.0, np.abs(wanted).max())
    np.testing.assert_allclose(
        found, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=what
    )


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
    assert_near(found.centers, centers_of(server, found.times), "centers")
    for i, model in found.given.items():
        assert_near(model, server.given[i], f"model given to worker {i}")
    assert (found.up, found.down) == (server.up, server.down), "bytes up, down"
    if case.strategy not in ("streaming_diloco", "decoupled_diloco"):
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
