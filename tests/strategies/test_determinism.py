"""Same seed, same result, bit for bit: again in this process, and in another one."""

import hashlib
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from quick import quick
from tiny_problems import PROBLEMS, three_workers
from zoo import FORMS, zoo

import hetjax
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

STRATEGIES = zoo(6)
SECONDS, EVALS = 0.04, 4


@cache
def problem():
    return PROBLEMS["perceptron"]()


@cache
def session():
    """One for all runs: they share their compiled programs."""
    task, data = problem().task, problem().data
    return Session(
        task, data, three_workers(), RunConfig(seconds=SECONDS, num_evals=EVALS)
    )


def run(name, seed):
    bar = ProgressBar(SECONDS, shown=False)
    return result(session().run(name, STRATEGIES[name], seed, bar))


first = cache(run)


def result(history):
    """All measurements as JSON-ready data, and the parameters' bits."""
    bits = b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(history.params))
    return {
        "num_evals": history.evals,
        "merges": history.merges,
        "updates": [worker.updates for worker in history.workers],
        "times": [s.finish for s in history.timeline],
        "params": hashlib.sha256(bits).hexdigest(),
    }


def alone(name):
    """The result of a run by itself, with seed 0."""
    task, data = problem().task, problem().data
    options = {"seconds": SECONDS, "num_evals": EVALS, "progress": False}
    return result(
        hetjax.train(task, data, three_workers(), STRATEGIES[name], **options)
    )


@pytest.fixture(scope="module")
def elsewhere():
    """The results of strategies in reverse order, from a separate process."""
    here = Path(__file__).parent
    folders = (Path(hetjax.__file__).parents[1], here.parent, here)
    paths = os.pathsep.join(map(str, folders))
    # one device instead of four, and another order of strings in sets
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONHASHSEED": "17"}
    environment["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # compiled once more
    run = subprocess.run(
        [sys.executable, __file__],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_every_strategy_is_tested():
    assert STRATEGIES.keys() == hetjax.STRATEGIES.keys()


def start_of(name, seed):
    """The first evaluation; other metrics are not common to all strategies."""
    common = ("seconds", "updates", "examples", "loss", "accuracy")
    return {k: first(name, seed)["num_evals"][0][k] for k in common}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_seed_decides_a_run(name):
    """In one test, so that one process compiles a strategy's programs."""
    one, other = first(name, 0), first(name, 1)
    # twice in one process; the second time all programs are there
    assert run(name, 0) == one
    # another seed is another run
    assert other["params"] != one["params"]
    assert other["num_evals"][0]["loss"] != one["num_evals"][0]["loss"]
    assert other["times"] != one["times"]
    # all strategies start from the same parameters
    for seed in (0, 1):
        start = start_of(name, seed)
        assert (start["seconds"], start["updates"]) == (0.0, 0)
        assert start == start_of("sync_sgd", seed)


@pytest.mark.parametrize("name", quick(FORMS, "sync_sgd", "async_sgd"))
def test_alone_or_with_programs_of_other_runs(name):
    assert alone(name) == first(name, 0)


@pytest.mark.full  # another process, which compiles all programs again
@pytest.mark.parametrize("name", FORMS)
def test_in_another_process(name, elsewhere):
    # JSON writes the shortest decimal that reads back as the same float
    assert elsewhere[name] == first(name, 0)


@pytest.mark.full  # all strategies in one process
@pytest.mark.parametrize("seed", [0, 1])
def test_all_strategies_end_elsewhere(seed):
    ends = {first(name, seed)["params"] for name in STRATEGIES}
    assert len(ends) == len(STRATEGIES)


if __name__ == "__main__":
    print(json.dumps({name: run(name, 0) for name in reversed(FORMS)}))
