"""One strategy of every factory, with settings that a short run exercises."""

import inspect

from tiers import ALIKE

import hetjax

# the strategies of the longest tables; the parts of all others are among theirs
FORMS = tuple(name for name in hetjax.STRATEGIES if name not in ALIKE)
# one for each way in which rounds, reports and merges follow one another: for tables in
# which a strategy's formulas do not matter
WAYS = (
    "sma",
    "hier_sgd",
    "async_sgd",
    "magma_async_sgd",
    "downpour",
    "easgd",
    "ad_psgd",
    "adaptive_sgd",
    "ringmaster_asgd",
    "decoupled_diloco",
)
SETTINGS = {
    "sequential_sgd": {"momentum": 0.9},
    "sync_sgd": {"server_momentum": 0.5, "ema": True},
    "elastic_sgd": {"local_steps": 2},
    "easgd_sync": {"momentum": 0.5},
    "sma": {"momentum": 0.5, "local_steps": 2},
    "hier_sgd": {"levels": ((2, 1),), "local_steps": (1, 2)},
    "local_sgd": {"local_steps": (3, 2, 1), "momentum": 0.5},
    "biased_local_sgd": {"local_steps": (4, 1, 2), "momentum": 0.0},
    "fed_nova": {"local_steps": (1, 2, 3), "momentum": 0.5},
    "fed_acc": {"local_steps": 2},
    "fed_adp": {"local_steps": (3, 1, 2)},
    "async_sgd": {"server_momentum": 0.5},
    "magma_async_sgd": {
        "server_momentum": 0.5,
        "server_step_seconds": 4e-4,
        "copy_seconds": 5e-4,
    },
    "hogwild": {"max_staleness": 1},
    "downpour": {"fetch_every": 2},
    "easgd": {"local_steps": 2},
    "eamsgd": {"momentum": 0.5},
    "ad_psgd": {},
    "adaptive_sgd": {"mega_batch": 40, "beta": 1.0},
    "diloco": {"local_steps": (3, 2, 1), "momentum": 0.5},
    "slow_mo": {"local_steps": 2},
    "fed_opt": {"local_steps": 2, "server_learning_rate": 0.01},
    "fed_prox": {"local_steps": (3, 1, 2), "proximal": 0.1},
    "scaffold": {"local_steps": (3, 2, 1)},
    "async_diloco": {"local_steps": (3, 2, 1), "grace": 1e-3},
    "delayed_nesterov": {"local_steps": "measured:3", "outer_learning_rate": 0.2},
    "mla": {"local_steps": 2, "outer_learning_rate": 0.3},
    "heloco": {"local_steps": 2, "outer_learning_rate": 0.3},
    "fed_async": {"local_steps": 2, "proximal": 0.01},
    "fed_buff": {"local_steps": 2, "buffer_size": 2},
    "ringmaster_asgd": {"max_delay": 2},
    "rennala_sgd": {"batches": 2},
    "malenia_sgd": {"batches": 4},
    "ringleader_asgd": {},
    "dc_asgd": {"decay": 0.9, "strength": 0.1},
    "streaming_diloco": {"local_steps": 4},
    "decoupled_diloco": {"local_steps": 4, "quorum": 2, "outer_learning_rate": 0.3},
    "sparse_loco": {"local_steps": 2, "top_k": 3, "chunk": 8, "bits": 8},
}


NEWER = tuple(hetjax.STRATEGIES)[tuple(hetjax.STRATEGIES).index("diloco") :]


def soon(name):
    """Settings of a newer strategy with which short runs on any workers merge."""
    takes = inspect.signature(hetjax.STRATEGIES[name]).parameters
    return {"local_steps": 2} if name in NEWER and "local_steps" in takes else {}


def in_one_part(name):
    """Settings for a model of one layer, which cannot be divided."""
    takes = inspect.signature(hetjax.STRATEGIES[name]).parameters
    return {"fragments": 1} if "fragments" in takes else {}


def make(name, size, learning_rate=0.1, **settings):
    """The strategy of that name, for three workers."""
    chosen = {
        "batch_size": size,
        "learning_rate": learning_rate,
        **SETTINGS[name],
        **settings,
    }
    return hetjax.STRATEGIES[name](**chosen)


def zoo(size, learning_rate=0.1):
    """All strategies."""
    return {name: make(name, size, learning_rate) for name in hetjax.STRATEGIES}
