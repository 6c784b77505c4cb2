"""Named algorithms: factories that combine a policy, a local update and a merge.

`optimizer` is an optax optimizer in place of SGD: either one with a learning rate of
its own (`optax.adam(1e-3)`, also with a schedule over the worker's steps), or a
function of the learning rate (`optax.adam`), which is called with 1 and whose updates
are multiplied by the strategy's `learning_rate` (a number, or a schedule over the run).
"""

from hetjax.strategies.adaptive_sgd import adaptive_sgd
from hetjax.strategies.async_sgd import (
    ad_psgd,
    async_sgd,
    downpour,
    hogwild,
    magma_async_sgd,
)
from hetjax.strategies.baselines import elastic_sgd, sequential_sgd, slide, sync_sgd
from hetjax.strategies.bounded_delay import (
    dc_asgd,
    malenia_sgd,
    rennala_sgd,
    ringleader_asgd,
    ringmaster_asgd,
)
from hetjax.strategies.crossbow import easgd_sync, sma
from hetjax.strategies.diloco import (
    async_diloco,
    delayed_nesterov,
    diloco,
    heloco,
    mla,
    slow_mo,
)
from hetjax.strategies.easgd import eamsgd, easgd
from hetjax.strategies.federated import (
    fed_async,
    fed_buff,
    fed_opt,
    fed_prox,
    scaffold,
)
from hetjax.strategies.fragments import (
    decoupled_diloco,
    sparse_loco,
    streaming_diloco,
)
from hetjax.strategies.hier_sgd import hier_sgd
from hetjax.strategies.local_sgd import (
    biased_local_sgd,
    fed_acc,
    fed_adp,
    fed_nova,
    local_sgd,
)
from hetjax.strategies.sweep import sweep
from hetjax.strategies.types import Strategy

# `slide` is not among them: it needs a task of its own
STRATEGIES = {
    "sequential_sgd": sequential_sgd,
    "sync_sgd": sync_sgd,
    "elastic_sgd": elastic_sgd,
    "easgd_sync": easgd_sync,
    "sma": sma,
    "hier_sgd": hier_sgd,
    "local_sgd": local_sgd,
    "biased_local_sgd": biased_local_sgd,
    "fed_nova": fed_nova,
    "fed_acc": fed_acc,
    "fed_adp": fed_adp,
    "async_sgd": async_sgd,
    "magma_async_sgd": magma_async_sgd,
    "hogwild": hogwild,
    "downpour": downpour,
    "easgd": easgd,
    "eamsgd": eamsgd,
    "ad_psgd": ad_psgd,
    "adaptive_sgd": adaptive_sgd,
    "diloco": diloco,
    "slow_mo": slow_mo,
    "fed_opt": fed_opt,
    "fed_prox": fed_prox,
    "scaffold": scaffold,
    "async_diloco": async_diloco,
    "delayed_nesterov": delayed_nesterov,
    "mla": mla,
    "heloco": heloco,
    "fed_async": fed_async,
    "fed_buff": fed_buff,
    "ringmaster_asgd": ringmaster_asgd,
    "rennala_sgd": rennala_sgd,
    "malenia_sgd": malenia_sgd,
    "ringleader_asgd": ringleader_asgd,
    "dc_asgd": dc_asgd,
    "streaming_diloco": streaming_diloco,
    "decoupled_diloco": decoupled_diloco,
    "sparse_loco": sparse_loco,
}

__all__ = [
    "STRATEGIES",
    "Strategy",
    "ad_psgd",
    "adaptive_sgd",
    "async_diloco",
    "async_sgd",
    "biased_local_sgd",
    "dc_asgd",
    "decoupled_diloco",
    "delayed_nesterov",
    "diloco",
    "downpour",
    "eamsgd",
    "easgd",
    "easgd_sync",
    "elastic_sgd",
    "fed_acc",
    "fed_adp",
    "fed_async",
    "fed_buff",
    "fed_nova",
    "fed_opt",
    "fed_prox",
    "heloco",
    "hier_sgd",
    "hogwild",
    "local_sgd",
    "magma_async_sgd",
    "malenia_sgd",
    "mla",
    "rennala_sgd",
    "ringleader_asgd",
    "ringmaster_asgd",
    "scaffold",
    "sequential_sgd",
    "slide",
    "slow_mo",
    "sma",
    "sparse_loco",
    "streaming_diloco",
    "sweep",
    "sync_sgd",
]
