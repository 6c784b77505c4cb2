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
from tiny_problems import PROBLEMS, three_workers
from zoo import zoo

import hetjax

STRATEGIES = zoo(6)


@cache
def problem():
    return PROBLEMS["perceptron"]()


RUN = {"seconds": 0.04, "num_evals": 4, "progress": False}


def compare(names, seeds):
    """{(name, seed): result} of runs with shared programs."""
    chosen = {name: STRATEGIES[name] for name in names}
    machine = three_workers()
    runs = hetjax.compare(
        problem().task, problem().data, machine, chosen, seeds=seeds, **RUN
    )
    return {(h.strategy, h.seed): result(h) for h in runs.histories}


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


@cache
def alone(name):
    """The result of a run by itself, with seed 0."""
    task, data = problem().task, problem().data
    return result(hetjax.train(task, data, three_workers(), STRATEGIES[name], **RUN))


@cache
def together():
    return compare(STRATEGIES, (0, 1))


@pytest.fixture(scope="module")
def elsewhere():
    """The results of all strategies in reverse order, from a separate process."""
    root = Path(hetjax.__file__).parent.parent
    paths = os.pathsep.join([str(root), str(Path(__file__).parent)])
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


@pytest.mark.parametrize("name", STRATEGIES)
def test_twice_in_one_process(name):
    """Once alone, and once after other runs that share its programs."""
    assert together()[name, 0] == alone(name)


@pytest.mark.full
@pytest.mark.parametrize("name", STRATEGIES)
def test_in_another_process(name, elsewhere):
    # JSON writes the shortest decimal that reads back as the same float
    assert elsewhere[name] == alone(name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_another_seed_is_another_run(name):
    one, other = together()[name, 0], together()[name, 1]
    assert other["params"] != one["params"]
    assert other["num_evals"][0]["loss"] != one["num_evals"][0]["loss"]
    assert other["times"] != one["times"]


@pytest.mark.parametrize("seed", [0, 1])
def test_all_strategies_start_from_the_same_parameters(seed):
    starts = [together()[name, seed]["num_evals"][0] for name in STRATEGIES]
    common = ("seconds", "updates", "examples", "loss", "accuracy")
    starts = [{k: p[k] for k in common} for p in starts]  # common keys
    assert starts == [starts[0]] * len(STRATEGIES)
    assert (starts[0]["seconds"], starts[0]["updates"]) == (0.0, 0)
    ends = {together()[name, seed]["params"] for name in STRATEGIES}
    assert len(ends) == len(STRATEGIES)


if __name__ == "__main__":
    results = compare(reversed(STRATEGIES), (0,))
    print(json.dumps({name: results[name, 0] for name in STRATEGIES}))
