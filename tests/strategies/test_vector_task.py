"""The vectors' problem as a task: two older strategies run it end to end."""

import gradient_server_oracle
import numpy as np
import optax
import outer_oracle
import pytest
from vector_task import PROBLEMS, centers_of, run
from vector_world import Workers

import hetjax as hj

ATOL = 2e-6  # tens of steps and merges in float32
# 1 - 0.999^n in float32 is known to 6e-8 / 1e-3, and a step of Adam to half of that
ADAM_ATOL = 3e-5
PAIR, TRIO, CLOCK = (1.0, 1.0), (1.0, 1.0, 1.0), (2.0, 3.0, 7.0)


def local_sgd(learning_rate, optimizer=None, **settings):
    if optimizer == "adamw":
        settings["optimizer"] = optax.adamw
    else:
        settings = {"momentum": 0.0} | settings
    return hj.local_sgd(batch_size=1, learning_rate=learning_rate, **settings)


def async_sgd(learning_rate):
    return hj.async_sgd(batch_size=1, learning_rate=learning_rate)


ROUNDS = local_sgd, outer_oracle.local_sgd
REPORTS = async_sgd, gradient_server_oracle.async_sgd
RATE, STEPS = {"learning_rate": 0.5}, {"local_steps": 2}
UNEQUAL = {"local_steps": (3, 1, 2), "momentum": 0.5}
ADAM = {"learning_rate": 0.1, "optimizer": "adamw", "local_steps": 2}
LOCAL, PLAIN = (0.507812, -0.179688), (0.875, 0.125)  # by hand
CASES = {
    "local_sgd": (*ROUNDS, "vectors", PAIR, 6.5, RATE | STEPS, LOCAL),
    "two leaves": (*ROUNDS, "vectors, two leaves", PAIR, 6.5, RATE | STEPS, LOCAL),
    "unequal steps": (*ROUNDS, "mixed", TRIO, 12.5, RATE | UNEQUAL, None),
    "AdamW": (*ROUNDS, "mixed", TRIO, 12.5, ADAM, None),
    "async_sgd": (*REPORTS, "vectors", CLOCK, 7.5, RATE, PLAIN),
    "async_sgd, mixed": (*REPORTS, "mixed", CLOCK, 20.5, RATE, None),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_run_is_that_of_the_oracle(name, compiled, monkeypatch):
    factory, oracle, problem, seconds, end, settings, center = CASES[name]
    given = PROBLEMS[problem]
    server = oracle(Workers(seconds, end, given.gradient, given.start), **settings)
    watch = None if compiled else monkeypatch
    found = run(
        factory(**settings), given, seconds, end, compiled=compiled, monkeypatch=watch
    )
    wanted = centers_of(server, found.times)
    atol = ADAM_ATOL if name == "AdamW" else ATOL
    np.testing.assert_allclose(found.centers, wanted, atol=atol)
    if center is not None:
        np.testing.assert_allclose(found.centers[-1], center, atol=ATOL)
    assert (found.up, found.down) == (server.up, server.down)
    for i, model in found.given.items():
        np.testing.assert_allclose(model, server.given[i], atol=atol)
    assert len(found.given) == (0 if compiled else len(seconds))
    stale = [w.staleness for w in found.history.workers]
    assert stale == [{tau: own.count(tau) for tau in own} for own in server.entered]
