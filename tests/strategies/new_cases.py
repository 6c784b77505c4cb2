"""Cases of the newer strategies: each is a run, and the oracle's call that equals it.

The vectors of `second_vectors` are run end to end, and random quadratics ("mixed") for
longer.
"""

from typing import Any

import async_outer_oracle as servers
import compression_oracle as compression
import gradient_server_oracle as gradients
import optax
import outer_oracle as outer
from new_case import (
    CLOCK,
    FAR,
    PAIR,
    STEPS,
    TRIO,
    TWO_LEAVES,
    case,
    decoupled,
    leaves,
    named,
    reports_of,
    rounds_of,
    streaming,
)


def halved(examples):
    """The rate after the first eight examples is half of it."""
    return 0.5 if examples < 8 else 0.25


ROUNDS = named(
    {
        "diloco": rounds_of("diloco", outer.diloco),
        "diloco, inner momentum": rounds_of("diloco", outer.diloco, momentum=0.5),
        "diloco, inner AdamW": rounds_of(
            "diloco",
            outer.diloco,
            learning_rate=0.1,
            ours={"optimizer": optax.adamw},
            theirs={"optimizer": "adamw"},
        ),
        "diloco, outer SGD": rounds_of(
            "diloco",
            outer.diloco,
            ours={"outer_optimizer": optax.sgd(1.0)},
            theirs={"outer_optimizer": ("sgd", 1.0)},
        ),
        "diloco, outer heavy ball": rounds_of(
            "diloco",
            outer.diloco,
            ours={"outer_optimizer": optax.sgd(0.8, momentum=0.5)},
            theirs={"outer_optimizer": ("heavy ball", 0.8, 0.5)},
        ),
        "slow_mo": rounds_of("slow_mo", outer.slow_mo, slow_momentum=0.7),
        "slow_mo, falling rate": rounds_of(
            "slow_mo", outer.slow_mo, slow_momentum=0.7, learning_rate=halved
        ),
        "fed_opt, avgm": rounds_of(
            "fed_opt", outer.fed_opt, server="avgm", server_learning_rate=1.0, beta1=0.9
        ),
        "fed_opt, adagrad": rounds_of(
            "fed_opt",
            outer.fed_opt,
            server="adagrad",
            server_learning_rate=0.3,
            beta1=0.0,
        ),
        "fed_opt, adam": rounds_of("fed_opt", outer.fed_opt, server="adam", tau=0.05),
        "fed_opt, yogi": rounds_of(
            "fed_opt", outer.fed_opt, server="yogi", beta1=0.8, beta2=0.9, tau=0.05
        ),
        "scaffold": rounds_of("scaffold", outer.scaffold),
        "scaffold, slower server": rounds_of(
            "scaffold", outer.scaffold, server_learning_rate=0.6
        ),
        "fed_prox": rounds_of("fed_prox", outer.fed_prox, proximal=0.5),
        "sparse_loco": rounds_of(
            "sparse_loco",
            compression.sparse_loco,
            ours={"error_feedback": 0.95},
            theirs={"tensors": leaves, "feedback": 0.95},
            top_k=1,
            chunk=2,
            outer_learning_rate=0.8,
        ),
        "sparse_loco, senders": rounds_of(
            "sparse_loco",
            compression.sparse_loco,
            theirs={"tensors": leaves},
            top_k=1,
            chunk=2,
            average="senders",
        ),
        "sparse_loco, 8 bits": rounds_of(
            "sparse_loco",
            compression.sparse_loco,
            theirs={"tensors": leaves},
            top_k=2,
            chunk=3,
            bits=8,
        ),
        "sparse_loco, 2 bits": rounds_of(
            "sparse_loco",
            compression.sparse_loco,
            theirs={"tensors": leaves},
            top_k=2,
            chunk=3,
            bits=2,
        ),
    }
)
MODELS = named(
    {
        "async_diloco": reports_of(
            "async_diloco",
            servers.async_diloco,
            mixed={"outer_learning_rate": 0.3},
            outer_learning_rate=0.7,
        ),
        "async_diloco, decay": reports_of(
            "async_diloco",
            servers.async_diloco,
            staleness="sqrt",
            outer_learning_rate=0.7,
        ),
        "async_diloco, grace": reports_of(
            "async_diloco",
            servers.async_diloco,
            18.5,
            grace=3.0,
            outer_learning_rate=0.7,
        ),
        "async_diloco, decay and grace": reports_of(
            "async_diloco",
            servers.async_diloco,
            staleness="sqrt",
            grace=2.0,
            outer_learning_rate=0.3,
            outer_momentum=0.5,
        ),
        "delayed_nesterov": reports_of("delayed_nesterov", servers.delayed_nesterov),
        "delayed_nesterov, spread": reports_of(
            "delayed_nesterov", servers.delayed_nesterov, every=3, spread=0.2
        ),
        "delayed_nesterov, every second": reports_of(
            "delayed_nesterov", servers.delayed_nesterov, every=2, spread=0.5
        ),
        "delayed_nesterov, by speed": reports_of(
            "delayed_nesterov",
            servers.delayed_nesterov,
            28.5,
            steps={"local_steps": "measured:7"},
        ),
        "mla": reports_of("mla", servers.mla, send="center"),
        "mla, look-ahead": reports_of("mla", servers.mla, send="lookahead"),
        "fed_async": reports_of("fed_async", servers.fed_async),
        "fed_async, hinge": reports_of(
            "fed_async",
            servers.fed_async,
            staleness="hinge",
            ours={"slope": 10.0, "hinge": 1.0},
            theirs={"a": 10.0, "h": 1.0},
        ),
        "fed_async, constant": reports_of(
            "fed_async", servers.fed_async, staleness="constant", mixing=0.4
        ),
        "fed_buff": reports_of(
            "fed_buff", servers.fed_buff, buffer_size=2, server_learning_rate=1.0
        ),
        "fed_buff, no decay": reports_of(
            "fed_buff",
            servers.fed_buff,
            buffer_size=4,
            server_learning_rate=0.7,
            staleness="none",
        ),
    }
)
ONE_TENSOR = {"theirs": {"tensors": leaves}}
MODELS |= {
    "heloco": case("heloco", servers.heloco, "vectors", CLOCK, 14.5, **STEPS),
    "heloco, two tensors": case(
        "heloco", servers.heloco, TWO_LEAVES, CLOCK, 14.5, **ONE_TENSOR, **STEPS
    ),
    "heloco, mixed": case(
        "heloco", servers.heloco, "mixed", CLOCK, 60.5, **ONE_TENSOR, **STEPS
    ),
}
ONCE: dict[str, Any] = {"steps": {}}  # gradients: no local steps
GRADIENTS = named(
    {
        "ringmaster_asgd": reports_of(
            "ringmaster_asgd", gradients.ringmaster_asgd, 9.5, **ONCE, max_delay=2
        ),
        "ringmaster_asgd, seldom": reports_of(
            "ringmaster_asgd", gradients.ringmaster_asgd, 8.5, **ONCE, max_delay=4
        ),
        "ringmaster_asgd, ignoring": reports_of(
            "ringmaster_asgd",
            gradients.ringmaster_asgd,
            8.5,
            **ONCE,
            max_delay=2,
            stop="ignore",
        ),
        "rennala_sgd": reports_of(
            "rennala_sgd", gradients.rennala_sgd, 9.5, **ONCE, batches=2
        ),
        "rennala_sgd, ignoring": reports_of(
            "rennala_sgd",
            gradients.rennala_sgd,
            7.5,
            **ONCE,
            batches=2,
            stop="ignore",
        ),
        "malenia_sgd": reports_of(
            "malenia_sgd", gradients.malenia_sgd, 7.5, **ONCE, batches=3
        ),
        "malenia_sgd, larger": reports_of(
            "malenia_sgd",
            gradients.malenia_sgd,
            20.5,
            **ONCE,
            batches=5,
            stop="ignore",
        ),
        "ringleader_asgd": reports_of(
            "ringleader_asgd", gradients.ringleader_asgd, 10.5, **ONCE
        ),
        "ringleader_asgd, refresh": reports_of(
            "ringleader_asgd", gradients.ringleader_asgd, 10.5, **ONCE, refresh=True
        ),
        "dc_asgd": reports_of("dc_asgd", gradients.dc_asgd, 7.5, **ONCE, strength=0.05),
        "dc_asgd, adaptive": reports_of(
            "dc_asgd", gradients.dc_asgd, 7.5, **ONCE, strength=0.2, decay=0.95
        ),
        "delay-adaptive": reports_of(
            "async_sgd", gradients.async_sgd, 7.5, **ONCE, delay_adaptive=True
        ),
    }
)
GRADIENTS |= {
    "delay-adaptive, far": case(
        "async_sgd", gradients.async_sgd, "mixed", FAR, 40.5, delay_adaptive=True
    ),
}
FRAGMENTS = {
    "streaming": streaming(TWO_LEAVES, PAIR, 4.5, 2, **STEPS),
    "streaming, delay": streaming(
        TWO_LEAVES, PAIR, 4.5, 2, **STEPS, delay=1, blend=0.5
    ),
    # pieces of rounds end at steps 2, 3, 4, 5, ...
    "streaming, mixed": streaming(
        "mixed", CLOCK, 70.5, 2, local_steps=4, delay=1, blend=0.3
    ),
    "streaming, whole": streaming("mixed", TRIO, 16.5, 1, local_steps=4),
    "streaming, bf16": streaming("mixed", TRIO, 16.5, 2, **STEPS, exchange="bf16"),
    "streaming, int4": streaming("mixed", TRIO, 16.5, 3, **STEPS, exchange="int4"),
    "decoupled, whole": decoupled("mixed", CLOCK, 40.5, 1, **STEPS, quorum=1, grace=0),
    "decoupled, all": decoupled("mixed", CLOCK, 60.5, 1, **STEPS, quorum=3, grace=0),
    "decoupled, two fragments": decoupled(
        TWO_LEAVES, CLOCK, 40.5, 2, local_steps=4, quorum=2, grace=0
    ),
    "decoupled, grace": decoupled(
        "mixed", CLOCK, 60.5, 2, local_steps=4, quorum=1, grace=1.25
    ),
    "decoupled, RDA": decoupled(
        "mixed", CLOCK, 40.5, 2, local_steps=4, quorum=2, grace=0, average="rda"
    ),
}
CASES = ROUNDS | MODELS | GRADIENTS | FRAGMENTS
