"""Runs whose results are known by hand: (oracle, settings, seconds) -> numbers.

Three machines: SYNC has workers of one second per step, CLOCK and GRAD of 2, 3 and 7.
A run ends half a second after the last report that counts. `given` are the models that
workers were last given, where known, `more` what else an oracle returns.
"""

from typing import Any, NamedTuple

import async_outer_oracle as servers
import compression_oracle as compression
import fragments_oracle as pieces
import gradient_server_oracle as gradients
import numpy as np
import outer_oracle as outer
from vector_world import Workers

S = {"learning_rate": 0.5}
SYNC, CLOCK = (1.0, 1.0), (2.0, 3.0, 7.0)
TWO = [np.array([0]), np.array([1])]  # fragments or tensors of one number


class Vector(NamedTuple):
    """An oracle with its settings, a machine, and what it must return."""

    oracle: Any
    settings: dict[str, Any]
    seconds: tuple[float, ...]
    end: float
    center: tuple[float, float]
    given: dict[int, tuple[float, float]] = {}
    more: dict[str, Any] = {}
    reports: str = ""  # "time/worker ..."

    def run(self):
        """The server after the run."""
        return self.oracle(Workers(self.seconds, self.end), **self.settings)


def sync(oracle, center, *, end=6.5, more=None, **settings):
    return Vector(oracle, S | settings, SYNC, end, center, more=more or {})


def clock(oracle, center, given=None, *, end=14.5, reports="", more=None, **settings):
    given = given or {}
    more = more or {}
    return Vector(oracle, S | settings, CLOCK, end, center, given, more, reports)


def grad(oracle, center, given=None, *, end=7.5, reports="", more=None, **settings):
    return clock(oracle, center, given, end=end, reports=reports, more=more, **settings)


def slower(examples):
    """The third round of two workers with two steps is at half the rate."""
    return 0.5 if examples < 8 else 0.25


FIRST = {  # L.1, L.12
    "outer SGD": sync(
        outer.diloco, (0.507812, -0.179688), outer_optimizer=("sgd", 1.0)
    ),
    "local SGD": sync(outer.local_sgd, (0.507812, -0.179688)),
    "DiLoCo": sync(outer.diloco, (0.307574, 0.154043)),
    "DiLoCo, momentum kept": sync(outer.diloco, (0.452842, -0.087945), momentum=0.5),
    "DiLoCo, momentum reset": sync(
        outer.diloco, (0.413991, 0.172017), momentum=0.5, reset_momentum=True
    ),
    "DiLoCo, unequal steps": sync(
        outer.diloco, (0.441038, 0.806850), end=9.5, local_steps=(3, 1)
    ),
    "FedAvgM": sync(
        outer.fed_opt, (0.035312, 0.607812), server="avgm", server_learning_rate=1.0
    ),
    "FedAdagrad": sync(
        outer.fed_opt,
        (0.540357, -0.433402),
        server="adagrad",
        beta1=0.0,
        server_learning_rate=0.3,
    ),
    "FedAdam": sync(outer.fed_opt, (0.624909, -0.616464), server="adam"),
    "FedYogi": sync(outer.fed_opt, (0.626259, -0.617736), server="yogi"),
    "SlowMo": sync(
        outer.slow_mo, (0.245234, 0.299609), slow_momentum=0.7, learning_rate=slower
    ),
    "SCAFFOLD": sync(
        outer.scaffold,
        (0.524170, 0.154541),
        end=9.5,
        local_steps=(3, 1),
        more={
            "c": (0.473036, -0.850857),
            "c_i": [(-0.557834, -0.650933), None],
        },
    ),
    "SCAFFOLD, some members": sync(
        outer.scaffold,
        (0.460938, -0.179688),
        members=((0,), (0, 1), (1,)),
        more={"c": (0.144531, 0.214844)},
    ),
    "FedProx": sync(
        outer.fed_prox,
        (0.564594, 0.194157),
        end=9.5,
        local_steps=(3, 1),
        proximal=0.5,
    ),
    "local SGD, unequal steps": sync(
        outer.local_sgd, (0.598389, 0.322510), end=9.5, local_steps=(3, 1)
    ),
}
MODELS = {  # L.2 to L.5
    "async DiLoCo": clock(
        servers.async_diloco,
        (-1.234110, 1.562257),
        {0: (0.145599, 1.374250), 1: (0.074891, 0.923010)},
        reports="4/0 6/1 8/0 12/0 12/1 14/2",
    ),
    "async DiLoCo, decay": clock(
        servers.async_diloco,
        (-0.409292, 1.507272),
        {0: (0.277045, 1.272859), 1: (0.173865, 1.138380)},
        staleness="sqrt",
    ),
    "async DiLoCo, grace": clock(  # the sixth report's window is still open
        servers.async_diloco,
        (-0.774986, 1.214888),
        {1: (-1.217883, 1.224641), 2: (-1.217883, 1.224641)},
        end=18.5,
        reports="4/0 6/1 11/0 13/1 14/2 18/0",
        grace=3.0,
    ),
    "delayed Nesterov": clock(
        servers.delayed_nesterov,
        (-0.458439, 0.951339),
        {0: (0.591918, 0.126034), 1: (0.505877, 0.074992)},
        every=3,
    ),
    "delayed Nesterov, spread": clock(
        servers.delayed_nesterov, (-0.246027, 0.734110), every=3, spread=0.2
    ),
    "DyLU": clock(
        servers.delayed_nesterov,
        (-0.984329, 1.051237),
        {0: (-0.025271, 0.288391), 1: (0.037500, -0.026745)},
        end=28.5,
        reports="12/1 14/0 14/2 24/1 28/0 28/2",
        local_steps="measured:7",
    ),
    "MLA": clock(
        servers.mla,
        (-0.869614, 0.883032),
        {0: (0.462861, 0.681552), 1: (0.394170, 0.181404)},
    ),
    "MLA, look-ahead": clock(
        servers.mla,
        (-0.805833, 0.753525),
        {2: (-0.928174, 0.835063)},
        send="lookahead",
    ),
    "HeLoCo": clock(
        servers.heloco,
        (-0.265848, 0.662034),
        {0: (0.610840, 0.445796), 1: (0.446997, 0.282197), 2: (-0.351923, 0.744407)},
    ),
    "HeLoCo, two tensors": clock(
        servers.heloco, (-0.289306, 0.600879), tensors=[slice(0, 1), slice(1, 2)]
    ),
    "FedAsync": clock(
        servers.fed_async,
        (0.297886, -0.154303),
        {0: (0.688394, 0.222166), 1: (0.597282, -0.163810)},
    ),
    "FedAsync, hinge": clock(
        servers.fed_async, (0.642594, 0.218973), staleness="hinge", a=10.0, h=1.0
    ),
    "FedBuff": clock(
        servers.fed_buff,
        (0.005800, 0.544429),
        {0: (0.552237, 0.457567), 1: (0.552237, 0.457567)},
        buffer_size=2,
        more={"staleness": [0, 0, 1, 0, 1, 2]},
    ),
}
GRADIENTS = {  # L.6 to L.8, L.13
    "async SGD": grad(
        gradients.async_sgd,
        (0.875, 0.125),
        {0: (0.875, 0.625), 1: (1.125, -0.625)},
        reports="2/0 3/1 4/0 6/0 6/1 7/2",
    ),
    "Ringmaster, ignoring": grad(
        gradients.ringmaster_asgd,
        (0.4375, 0.8125),
        {1: (0.875, 0.625), 2: (0.875, 0.625)},
        end=8.5,
        max_delay=2,
        stop="ignore",
        more={"applied": 5},
    ),
    "Ringmaster, cancelling": grad(
        gradients.ringmaster_asgd,
        (-0.5, 1.0),
        {0: (0.4375, 0.8125)},
        end=9.5,
        reports="2/0 3/1 4/0 6/0 8/0 9/1",
        max_delay=2,
    ),
    "Ringmaster, cancelling seldom": grad(
        gradients.ringmaster_asgd,
        (0.6875, -0.4375),
        {1: (1.125, -0.625), 2: (0.875, 0.625)},
        end=8.5,
        max_delay=4,
    ),
    "delay-adaptive": grad(gradients.async_sgd, (0.975, -0.175), delay_adaptive=True),
    "Rennala, cancelling": grad(
        gradients.rennala_sgd,
        (0.8125, -0.0625),
        end=9.5,
        reports="2/0 3/1 5/0 6/1 8/0 9/1",
        batches=2,
    ),
    "Rennala, ignoring": grad(
        gradients.rennala_sgd,
        (1.125, -0.625),
        {0: (0.75, -0.25)},
        batches=2,
        stop="ignore",
        more={"applied": 4},
    ),
    "Malenia": grad(
        gradients.malenia_sgd,
        (0.805556, -0.444444),
        batches=3,
        more={"version": 1},
    ),
    "Ringleader": grad(
        gradients.ringleader_asgd,
        (0.25, 0.805556),
        {0: (0.555556, 0.138889), 1: (0.25, 0.805556), 2: (0.805556, -0.444444)},
        end=10.5,
        more={"version": 3},
    ),
    "Ringleader, refresh": grad(
        gradients.ringleader_asgd,
        (0.25, 0.805556),
        {0: (0.25, 0.805556)},
        end=10.5,
        refresh=True,
    ),
    "Rescaled": grad(gradients.rescaled_asgd, (0.343631, 1.155990)),
    "DC-ASGD-c": grad(
        gradients.dc_asgd,
        (1.031029, -0.210169),
        {0: (0.99, 0.29), 1: (1.295820, -0.927580)},
        strength=0.4,
    ),
    "DC-ASGD-a": grad(
        gradients.dc_asgd, (1.018516, -0.220058), strength=0.2, decay=0.95
    ),
}
PARTS = {  # L.10, L.11
    "streaming": sync(
        pieces.streaming_diloco,
        (0.358669, 0.187703),
        end=4.5,
        fragments=TWO,
        more={"workers": [(0.179334, 0.187703), (0.679334, 0.187703)]},
    ),
    "streaming, delay and blend": sync(
        pieces.streaming_diloco,
        (0.400231, 0.042234),
        end=4.5,
        fragments=TWO,
        delay=1,
        blend=0.5,
        more={"workers": [(0.538709, 0.489063), (0.398084, -1.042188)]},
    ),
    "SparseLoCo": sync(
        compression.sparse_loco,
        (0.527, -0.01),
        top_k=1,
        chunk=2,
        outer_learning_rate=0.8,
        more={"residual": [(0.420625, 0.0), (0.0, 0.525)], "up": [15, 15]},
    ),
    "SparseLoCo, senders": sync(
        compression.sparse_loco,
        (0.6, -0.14),
        top_k=1,
        chunk=2,
        outer_learning_rate=0.8,
        average="senders",
    ),
    "DiLoCo, int4": sync(
        compression.compressed_diloco, (0.337793, 0.154043), exchange="int4"
    ),
}
VECTORS = FIRST | MODELS | GRADIENTS | PARTS
