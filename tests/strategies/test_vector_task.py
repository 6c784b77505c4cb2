"""The vectors' problem as a task: two older strategies run it end to end."""

import gradient_server_oracle
import numpy as np
import outer_oracle
import pytest
from vector_task import PROBLEMS, centers_of, run
from vector_world import Workers

import hetjax as hj

S = {"batch_size": 1, "learning_rate": 0.5}
ATOL = 1e-6


def strategy_of(name):
    if name == "local_sgd":
        return hj.local_sgd(**S, local_steps=2, momentum=0.0)
    return hj.async_sgd(**S)


CASES = {
    "local_sgd": (outer_oracle.local_sgd, (1.0, 1.0), 6.5, (0.507812, -0.179688)),
    "async_sgd": (
        gradient_server_oracle.async_sgd,
        (2.0, 3.0, 7.0),
        7.5,
        (0.875, 0.125),
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_that_of_the_vectors(name, problem, compiled, monkeypatch):
    oracle, seconds, end, center = CASES[name]
    given = PROBLEMS[problem]
    workers = Workers(seconds, end, given.gradient, given.start)
    server = oracle(workers, learning_rate=0.5)
    watch = None if compiled else monkeypatch
    found = run(
        strategy_of(name), given, seconds, end, compiled=compiled, monkeypatch=watch
    )
    wanted = centers_of(server, found.times)
    np.testing.assert_allclose(found.centers, wanted, atol=ATOL)
    if problem.startswith("vectors"):
        np.testing.assert_allclose(found.centers[-1], center, atol=ATOL)
    assert (found.up, found.down) == (server.up, server.down)
    for i, model in found.given.items():
        np.testing.assert_allclose(model, server.given[i], atol=ATOL)
    assert len(found.given) == (0 if compiled else len(seconds))
