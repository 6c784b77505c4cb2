"""One strategy of every factory, with settings that a short run exercises."""

import inspect

import hetjax

SETTINGS = {
    "sequential_sgd": {"momentum": 0.9},
    "sync_sgd": {"momentum": 0.5, "ema": True},
    "elastic_sgd": {"steps": 2},
    "easgd_sync": {"momentum": 0.5},
    "sma": {"local_momentum": 0.5, "tau": 2},
    "hier_sgd": {"levels": ((2, 1),), "intervals": (1, 2)},
    "local_sgd": {"steps": (3, 2, 1), "momentum": 0.5},
    "biased_local_sgd": {"steps": (4, 1, 2), "momentum": 0.0},
    "fed_nova": {"steps": (1, 2, 3), "momentum": 0.5},
    "fed_acc": {"steps": 2},
    "fed_adp": {"steps": (3, 1, 2)},
    "async_sgd": {"momentum": 0.5},
    "magma_async_sgd": {"momentum": 0.5, "tick_seconds": 4e-4, "copy_seconds": 5e-4},
    "hogwild": {"max_staleness": 1},
    "downpour": {"n_fetch": 2},
    "easgd": {"tau": 2},
    "eamsgd": {"momentum": 0.5},
    "ad_psgd": {},
    "adaptive_sgd": {"mega_batch": 40, "beta": 1.0},
}


def size_of(name):
    """What the factory calls the batch size."""
    parameters = inspect.signature(hetjax.STRATEGIES[name]).parameters
    return "b_max" if "b_max" in parameters else "batch_size"


def make(name, size, rate=0.1, **settings):
    """The strategy of that name for three workers."""
    chosen = {size_of(name): size, "rate": rate, **SETTINGS[name], **settings}
    return hetjax.STRATEGIES[name](**chosen)


def zoo(size, rate=0.1):
    """All of them."""
    return {name: make(name, size, rate) for name in hetjax.STRATEGIES}
