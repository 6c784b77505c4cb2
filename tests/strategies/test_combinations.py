"""Combinations of parts that no paper has: they train, and every part is used."""

import copy
from functools import cache, partial

import pytest
from tiny_problems import ten_groups

import hetjax
from hetjax import local, merge, sampling, schedule
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.machine import Cost, Link, Machine, Profile

SECONDS = 0.5
FACTORS = (1, 1.3, 1.7, 2.5)


def unlike():
    """Four workers that need 1 ms to 2.5 ms per step on 16 examples."""
    cost = Cost(fixed=2e-4, per_example=5e-5)
    workers = tuple(
        Profile(f"w{k}", "cpu", cost, factor=f) for k, f in enumerate(FACTORS)
    )
    return Machine(
        "unlike", workers, {"": Link(latency=1e-5, bandwidth=1e9)}, noise=0.05
    )


@cache
def session():
    """An MLP 64-16-10 on ten groups; runs share their compiled programs."""
    data = ten_groups()
    task = hetjax.classification(hetjax.models.mlp(hidden=16), data)
    return Session(task, data, unlike(), RunConfig(seconds=SECONDS, num_evals=4))


def train(strategy):
    run = copy.copy(session()).run
    return run(strategy.name, strategy, 0, ProgressBar(SECONDS, shown=False))


def scaling(batch_size):
    # few sizes, because each is a program to compile
    return partial(
        schedule.linear_scaling, min_batch_size=8, batch_size=batch_size, beta=2.0
    )


def mega_batch(examples, batch_size=16):
    return schedule.mega_batch(
        examples=examples, batch_size=batch_size, scaling=scaling(batch_size)
    )


def counted(sampler, seen):
    """The sampler, and a count of the losses that it was told."""

    def observe(state, worker, indices, losses):
        seen.append(worker)
        return sampler.observe(state, worker, indices, losses)

    return sampler._replace(observe=observe)


def test_biased_sampling_with_adaptive_batches_and_momentum():
    """Slow workers get small batches of hard examples; the merge has momentum."""
    heard = []
    # as many steps as a worker's speed allows, which tells slow workers
    sampler = sampling.biased(local_steps=schedule.equal_time(8, 16))
    strategy = hetjax.Strategy(
        mega_batch(16 * 16),
        local.sgd(),
        merge.average(weights="local_steps", momentum=0.5),
        batch_size=16,
        learning_rate=0.5,
        sampler=counted(sampler, heard),
        name="biased and adaptive",
    )
    history = train(strategy)
    assert history.evals[0]["accuracy"] < 0.3
    assert history.evals[-1]["accuracy"] > 0.9
    assert set(heard) == {0, 1, 2, 3}
    sizes = [w.batch_size_over_time[-1][1] for w in history.workers]
    assert sizes[3] < sizes[0] == 16


def test_a_tree_of_adaptive_groups():
    """Adaptive SGD within groups of two; groups merge every second mega-batch."""
    policy = schedule.hierarchical(mega_batch(8 * 16), sizes=2, every=2)
    strategy = hetjax.Strategy(
        policy,
        local.sgd(),
        (merge.normalized(), merge.average()),
        batch_size=16,
        learning_rate=0.2,
        name="adaptive groups",
    )
    history = train(strategy)
    assert history.evals[-1]["accuracy"] > 0.9
    # two groups, two merges each, and one above: of five merges one is the root's
    assert 3 * len(history.merge_times) <= history.merges
    assert history.merges // 5 <= len(history.merge_times) <= history.merges // 5 + 1
    sizes = [w.batch_size_over_time[-1][1] for w in history.workers]
    assert sizes[1] < sizes[0]
    assert sizes[3] < sizes[2]
    assert all(set(w.staleness) == {0} for w in history.workers)


def test_asynchronous_elastic_averaging_with_adaptive_batches():
    """No worker waits; slower workers get smaller batches until all push equally."""
    policy = schedule.asynchronous(
        batch_size=16, local_steps=2, scaling=scaling(16), window=512
    )
    strategy = hetjax.Strategy(
        policy,
        local.sgd(),
        merge.easgd(),
        batch_size=16,
        learning_rate=0.5,
        name="scaled easgd",
    )
    history = train(strategy)
    assert history.evals[-1]["accuracy"] > 0.9
    sizes = [w.batch_size_over_time[-1][1] for w in history.workers]
    assert sizes[3] < sizes[0]
    assert all(w.waiting == pytest.approx(0, abs=1e-9) for w in history.workers)
    assert any(max(w.staleness) > 1 for w in history.workers)
