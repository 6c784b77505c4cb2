"""Laws of the oracles of the newer algorithms: limits in which two are one."""

import async_outer_oracle as servers
import compression_oracle as compression
import fragments_oracle as pieces
import gradient_server_oracle as gradients
import numpy as np
import outer_oracle as outer
import pytest
from fragments_oracle import Syncer
from vector_task import PROBLEMS
from vector_world import Workers, rounds

STEP = {"learning_rate": 0.4}
PROBLEM = PROBLEMS["mixed"]
EQUAL, UNEQUAL, ALONE = (1.0, 1.0, 1.0), (2.0, 3.0, 7.0), (1.0,)


def ran(oracle, seconds, end=24.5, **settings):
    workers = Workers(seconds, end, PROBLEM.gradient, PROBLEM.start)
    return oracle(workers, **STEP, **settings)


def sgd_of_outer(g):
    return {"outer_optimizer": ("sgd", g)}


def decoupled_in_step(workers, *, learning_rate):
    """All learners answer, then all take the merged model."""
    syncer = Syncer(workers, learning_rate=learning_rate)
    for draws, eta in rounds(workers, 2, learning_rate):
        for m in draws:
            syncer.work(m, draws[m], eta)
            syncer.answer(m, 0)
        syncer.merge(0)
        for m in draws:
            syncer.take(m, 0)
    return syncer.server


LAWS = {
    "outer SGD is local SGD": (
        ran(outer.diloco, UNEQUAL, **sgd_of_outer(1.0)),
        ran(outer.local_sgd, UNEQUAL),
    ),
    "SlowMo at a constant rate is FedAvgM": (
        ran(outer.slow_mo, EQUAL, slow_momentum=0.6),
        ran(outer.fed_opt, EQUAL, server="avgm", beta1=0.6, server_learning_rate=1.0),
    ),
    "FedAdam with b1 0, b2 1 is outer SGD": (
        ran(outer.fed_opt, EQUAL, server="adam", beta1=0.0, beta2=1.0, tau=0.2),
        ran(outer.diloco, EQUAL, **sgd_of_outer(0.1 / 0.4)),
    ),
    "one worker of async DiLoCo is DiLoCo": (
        ran(servers.async_diloco, ALONE),
        ran(outer.diloco, ALONE),
    ),
    "async DiLoCo with SGD and one step is async SGD": (
        ran(
            servers.async_diloco,
            UNEQUAL,
            local_steps=1,
            scale=1.0,
            **sgd_of_outer(1.0),
        ),
        ran(gradients.async_sgd, UNEQUAL),
    ),
    "an endless window is local SGD": (
        ran(
            servers.async_diloco,
            UNEQUAL,
            56.5,
            scale=1 / 3,
            grace=1e9,
            **sgd_of_outer(1.0),
        ),
        ran(outer.local_sgd, UNEQUAL, 56.5),
    ),
    "N 1 is Nesterov on every report": (
        ran(servers.delayed_nesterov, UNEQUAL, every=1),
        ran(servers.async_diloco, UNEQUAL, scale=1.0),
    ),
    "the first k reports are a round of DiLoCo": (
        ran(servers.delayed_nesterov, EQUAL, 2.5),
        ran(outer.diloco, EQUAL, 2.5),
    ),
    "MLA without momentum is async outer SGD": (
        ran(servers.mla, UNEQUAL, outer_momentum=0.0),
        ran(servers.async_diloco, UNEQUAL, scale=1.0, **sgd_of_outer(0.7)),
    ),
    "one worker of FedAsync is outer SGD": (
        ran(servers.fed_async, ALONE, staleness="constant"),
        ran(outer.diloco, ALONE, **sgd_of_outer(0.6)),
    ),
    "FedBuff with K 1 is async outer SGD": (
        ran(servers.fed_buff, UNEQUAL, buffer_size=1, staleness="none"),
        ran(servers.async_diloco, UNEQUAL, scale=1.0, **sgd_of_outer(1.0)),
    ),
    "Ringmaster without a bound is async SGD": (
        ran(gradients.ringmaster_asgd, UNEQUAL, max_delay=10**9),
        ran(gradients.async_sgd, UNEQUAL),
    ),
    "Ringmaster with R 1 is Rennala with B 1": (
        ran(gradients.ringmaster_asgd, UNEQUAL, max_delay=1),
        ran(gradients.rennala_sgd, UNEQUAL, batches=1),
    ),
    "and so when they ignore": (
        ran(gradients.ringmaster_asgd, UNEQUAL, max_delay=1, stop="ignore"),
        ran(gradients.rennala_sgd, UNEQUAL, batches=1, stop="ignore"),
    ),
    "one worker of Ringleader is SGD": (
        ran(gradients.ringleader_asgd, ALONE),
        ran(gradients.async_sgd, ALONE),
    ),
    "Rescaled at equal speeds is async SGD": (
        ran(gradients.rescaled_asgd, EQUAL),
        ran(gradients.async_sgd, EQUAL),
    ),
    "one worker of DC-ASGD is async SGD": (
        ran(gradients.dc_asgd, ALONE, strength=0.4),
        ran(gradients.async_sgd, ALONE),
    ),
    "Decoupled DiLoCo of one learner is DiLoCo": (
        ran(pieces.decoupled_diloco, ALONE),
        ran(outer.diloco, ALONE),
    ),
    "Decoupled DiLoCo in step is DiLoCo": (
        ran(decoupled_in_step, EQUAL),
        ran(outer.diloco, EQUAL),
    ),
    "streaming one fragment is DiLoCo": (
        ran(pieces.streaming_diloco, UNEQUAL, 56.5),
        ran(outer.diloco, UNEQUAL, 56.5),
    ),
    "all kept with Nesterov is DiLoCo": (
        ran(compression.compressed_diloco, EQUAL, top_k=99, feedback=0.3),
        ran(outer.diloco, EQUAL),
    ),
    "one worker of SCAFFOLD is SGD": (
        ran(outer.scaffold, ALONE),
        ran(outer.local_sgd, ALONE),
    ),
    "the first round of SCAFFOLD is local SGD": (
        ran(outer.scaffold, EQUAL, 2.5),
        ran(outer.local_sgd, EQUAL, 2.5),
    ),
    "FedProx without its term is local SGD": (
        ran(outer.fed_prox, EQUAL, proximal=0.0),
        ran(outer.local_sgd, EQUAL),
    ),
}


@pytest.mark.parametrize("law", LAWS)
def test_law(law):
    one, other = LAWS[law]
    assert np.abs(one.center - one.workers.start).max() > 0.1  # it moved
    np.testing.assert_allclose(one.center, other.center, rtol=0, atol=1e-12)
