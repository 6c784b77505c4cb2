"""The buffer "round_start" holds the model that a worker last received."""

import jax
import jax.numpy as jnp
import pytest
from tiny_runs import counting_data, machine

import hetjax as hj


def parabola():
    """0.5 (w - 1)^2 for every example, from w = 0."""

    def loss(params, model_state, batch, key):
        return 0.5 * (params["w"] - 1) ** 2 * jnp.ones_like(batch.weight), model_state

    def metrics(params, model_state, batch):
        losses, _ = loss(params, model_state, batch, None)
        return {"loss": losses}

    return hj.Task(lambda key: ({"w": jnp.zeros(())}, ()), loss, metrics, "loss")


TASK = parabola()


def own_average(properties):
    """As the how-to page writes a merge: it only replaces the parameters."""

    def apply(state, replicas, stats, op):
        mean = jax.tree.map(lambda *w: sum(w) / len(w), *[r.params for r in replicas])
        return (mean, state[1]), tuple(r._replace(params=mean) for r in replicas)

    return hj.merge.Merge(
        lambda *model: model, apply, lambda state: state, properties=properties
    )


def deltas():
    """FedBuff's rule: the server's model plus the mean change of the rounds."""

    def apply(state, replicas, stats, op):
        moves = [
            jax.tree.map(jnp.subtract, r.params, r.carry["round_start"])
            for r in replicas
        ]
        new = jax.tree.map(lambda w, *d: w + sum(d) / len(d), state[0], *moves)
        return (new, state[1]), tuple(r._replace(params=new) for r in replicas)

    return hj.merge.Merge(
        lambda *model: model, apply, lambda state: state, requires=("round_start",)
    )


MERGES = {
    "average": hj.merge.average(),
    "own": own_average(hj.merge.MergeProperty.BROADCASTS),
    "own without the flag": own_average(hj.merge.MergeProperty(0)),
    "deltas": deltas(),
}
ROUNDS = 12


def check_halving(merge, on, seconds):
    """w <- w - 0.5 (w - 1 + w - w_start), twice: each round halves 1 - w.

    The first step leads from w_start to (1 + w_start) / 2, and the second stays there.
    """
    policy = hj.schedule.rounds(local_steps=2, batch_size=2)
    strategy = hj.Strategy(policy, hj.local.proximal(proximal=1.0), merge, 2, 0.5)
    history = hj.train(
        TASK,
        counting_data(),
        on,
        strategy,
        seconds=seconds,
        epochs=2 * ROUNDS * 4 / 24,
        num_evals=600,  # epochs are counted there
        progress=False,
    )
    assert history.merges >= ROUNDS
    assert history.params["w"] == pytest.approx(1 - 0.5**history.merges, abs=1e-6)


@pytest.mark.parametrize("name", MERGES)
def test_the_proximal_term_pulls_to_the_last_model(name):
    check_halving(MERGES[name], machine(1.0, 1.0), 100.0)


@pytest.mark.parametrize("name", ["own without the flag", "deltas"])
def test_on_a_mesh_likewise(name):
    devices = jax.devices("cpu")[:2]
    on = hj.local_machine(devices, placement="mesh", step_mode="fused")
    check_halving(MERGES[name], on, 60.0)
