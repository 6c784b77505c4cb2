"""SCAFFOLD's control variates."""

import jax.numpy as jnp
import numpy as np
import pytest
from vector_cases import ETA, START, Workers, close

from hetjax import local, merge
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import PUSH_FETCH, MergeOp
from hetjax.merge.counters import counting, places_of


def trained(steps, merging=None, eta=ETA):
    """(model, c, the workers) after rounds of these steps [rounds][workers]."""
    merging = merging or merge.scaffold()
    update = local.scaffold() if "shift" in merging.requires else local.sgd()
    state, of = merging.init(START), Workers(update, merging, len(steps[0]))
    for each in steps:
        for worker, number in enumerate(each):
            of.works(worker, number, eta)
        stats = merge.stats(each, learning_rate=eta)
        state, of.replicas = merging.apply(state, tuple(of.replicas), stats)
        of.replicas = list(of.replicas)
    return merging.model(state)[0]["x"], state.memory, of


def control(of, worker):
    return of.replicas[worker].carry["control_variate"]["x"]


def test_the_vector():
    center, c, of = trained([(3, 1)] * 3)
    close(center, (0.524170, 0.154541))
    close(c["x"], (0.473036, -0.850857))
    close(control(of, 0), (-0.557834, -0.650933))
    average, *_ = trained([(3, 1)] * 3, merge.average())
    close(average, (0.598389, 0.322510))


def test_the_vector_with_absent_members():
    center, c, _ = trained([(2, 0), (2, 2), (0, 2)])
    close(center, (0.460938, -0.179688))
    close(c["x"], (0.144531, 0.214844))


def test_absent_members_that_fetch_when_they_begin():
    """The same, where a merge has only the members: `fetch` gives the shift."""
    merging = merge.scaffold()
    state, of = merging.init(START), Workers(local.scaffold(), merging, 2)
    for chosen in ((0,), (0, 1), (1,)):
        for worker in chosen:
            of.replicas[worker] = merging.fetch(state, of.replicas[worker])
            of.works(worker, 2)
        stats = merge.stats(
            [2] * len(chosen), learning_rate=ETA, num_workers=2, worker=chosen
        )
        members = tuple(of.replicas[k] for k in chosen)
        state, after = merging.apply(state, members, stats)
        for worker, replica in zip(chosen, after, strict=True):
            of.replicas[worker] = replica
    close(merging.model(state)[0]["x"], (0.460938, -0.179688))
    close(state.memory["x"], (0.144531, 0.214844))


def test_the_first_round_is_local_sgd():
    first, *_ = trained([(3, 1)])
    average, *_ = trained([(3, 1)], merge.average())
    close(first, average)


def test_one_worker_is_sgd():
    alone, *_ = trained([(2,), (3,), (1,)])
    sgd, *_ = trained([(2,), (3,), (1,)], merge.average())
    close(alone, sgd)


def test_the_server_s_learning_rate():
    """x <- x + g mean (y - x): twice the move of the first round."""
    once, *_ = trained([(3, 1)])
    twice, *_ = trained([(3, 1)], merge.scaffold(server_learning_rate=2.0))
    close(twice - START["x"], 2 * (once - START["x"]))


def test_controls_are_mean_gradients_at_any_learning_rate():
    """c_i' = c_i - c + (x - y) / (H eta) is the round's mean gradient."""
    merging, eta = merge.scaffold(), 0.2
    state, of = merging.init(START), Workers(local.scaffold(), merging, 1)
    y, seen = np.float64(START["x"]), []
    for target in ((2, 0), (0, 1), (2, 0)):
        seen.append(y - target)
        y = y - eta * seen[-1]
    of.works(0, 3, eta)
    stats = merge.stats([3], learning_rate=eta)
    _, of.replicas = merging.apply(state, tuple(of.replicas), stats)
    close(control(of, 0), np.mean(seen, 0))


def test_a_control_that_is_not_finite_counts_as_zero():
    merging = merge.scaffold()
    _, _, of = trained([(2, 2)], merging)
    state, replica = merging.init(START), of.replicas[0]
    carry = replica.carry | {"control_variate": {"x": jnp.full(2, jnp.nan)}}
    fetched = merging.fetch(state, replica._replace(carry=carry))
    close(fetched.carry["shift"]["x"], (0, 0))


def test_fetching_with_counters():
    model_state = {"steps": jnp.int32(3)}
    merging = counting(merge.scaffold(), places_of(model_state))
    replica = local.new_replica(
        local.scaffold(), START, model_state, requires=merging.requires
    )
    state = merging.init(START, {"steps": jnp.int32(7)})
    moved = {"x": jnp.float32([0, 2])}
    inner = state.inner._replace(center=moved, memory=moved)
    fetched = merging.fetch(state._replace(inner=inner), replica)
    assert fetched.model_state["steps"] == 7
    for found in (fetched.params, fetched.carry["round_start"], fetched.carry["shift"]):
        close(found["x"], (0, 2))


def test_twice_the_model_moves():
    traffic = merge.scaffold().traffic
    model_state = {"mean": jnp.zeros(3)}
    assert traffic(START, model_state, PUSH_FETCH) == Traffic(28, 28)
    assert traffic(START, model_state, MergeOp.FETCH) == Traffic(0, 28)


@pytest.mark.parametrize(
    ("update", "merging"),
    [(local.sgd(), merge.scaffold()), (local.scaffold(), merge.average())],
)
def test_merge_and_update_belong_together(update, merging):
    with pytest.raises(ValueError, match=r"merge.scaffold\(\) and local.scaffold\(\)"):
        local.check_buffers(update, merging.requires)
