"""Cases of local SGD on unlike devices, and of the asynchronous strategies."""

from oracle_case import ONE, S, by_half, case, falling, unlike_shards

from hetjax.schedule import Rate

CASES = {
    # local SGD
    "local": case("local_sgd", "three", **S, steps=(3, 2, 4)),
    "local, by steps": case(
        "local_sgd",
        "three",
        problems=ONE,
        batch_size=6,
        rate=Rate(lambda epochs: 0.2 / (1 + epochs), over="epochs"),
        steps="measured:4",
        momentum=0.5,
        weight_decay=0.01,
        aggregation="steps",
    ),
    "local, fed_nova": case(
        "local_sgd",
        "three",
        problems=ONE,
        **S,
        steps=(3, 1, 2),
        momentum=0.5,
        aggregation="fed_nova",
    ),
    "biased": case("biased_local_sgd", "three", **S, steps=(4, 1, 2), momentum=0.5),
    "biased, unified": case(
        "biased_local_sgd",
        "three",
        problems=ONE,
        **S,
        steps="measured:4",
        sampler="unified",
        pool_formula="work",
        d=1.5,
        aggregation="average",
    ),
    "biased in the aggregation alone": case(
        "biased_local_sgd",
        "three",
        problems=ONE,
        **S,
        steps=(4, 1, 2),
        sampler="uniform",
    ),
    "fed_nova": case("fed_nova", "three", **S, steps=(1, 2, 4)),
    "fed_nova with momentum on shards": case(
        "fed_nova",
        "three",
        problems=ONE,
        shards=unlike_shards(),
        **S,
        steps=(4, 1, 2),
        momentum=0.6,
        server_momentum=0.4,
    ),
    "fed_nova, proximal": case("fed_nova", "three", **S, steps="measured:5", mu=0.8),
    "fed_acc": case("fed_acc", "three", problems=ONE, **S, steps=(3, 1, 2)),
    "fed_acc of shards": case(
        "fed_acc", "three", problems=ONE, **S, steps=2, momentum=0.5, power=3.0
    ),
    "fed_adp": case("fed_adp", "three", **S, steps=(3, 1, 2)),
    "fed_adp on shards": case(
        "fed_adp",
        "three",
        problems=ONE,
        shards=unlike_shards(),
        **S,
        steps=2,
        momentum=0.5,
        alpha=2.0,
    ),
    # asynchronous
    "async": case("async_sgd", "three", **S),
    "async with momentum, held back": case(
        "async_sgd",
        "three",
        problems=ONE,
        reaches="held",
        batch_size=5,
        rate=Rate(by_half, over="updates"),
        momentum=0.6,
        max_staleness=1,
    ),
    "async as MagmaDNN's serial form": case(
        "async_sgd", "v100x4", problems=ONE, **S, momentum=0.6, ema=True
    ),
    "magma": case("magma_async_sgd", "three", **S, momentum=0.5),
    "magma, swapped": case(
        "magma_async_sgd",
        "v100x4",
        batch_size=6,
        rate=0.02,
        momentum=0.8,
        subtract="swap",
        tick_seconds=3.1e-4,
        copy_seconds=4.7e-4,
    ),
    "hogwild": case("hogwild", "three", batch_size=6, rate=falling),
    "hogwild, held back": case(
        "hogwild", "three", problems=ONE, reaches="held", **S, max_staleness=0
    ),
    "downpour": case("downpour", "three", **S),
    "downpour, seldom": case(
        "downpour", "three", problems=ONE, **S, n_push=2, n_fetch=3
    ),
    "downpour, plain server": case(
        "downpour",
        "v100x4",
        batch_size=6,
        rate=falling,
        n_push=3,
        n_fetch=2,
        server="sgd",
        server_rate=0.3,
    ),
    "easgd": case("easgd", "three", **S),
    "easgd, seldom, held back": case(
        "easgd",
        "three",
        problems=ONE,
        reaches="held",
        **S,
        tau=3,
        alpha=0.4,
        max_staleness=1,
    ),
    "eamsgd": case("eamsgd", "three", **S, momentum=0.8),
    "eamsgd with decay": case(
        "eamsgd",
        "v100x4",
        problems=ONE,
        batch_size=6,
        rate=0.05,
        tau=2,
        beta=0.5,
        momentum=0.9,
        weight_decay=0.05,
    ),
    "ad_psgd": case("ad_psgd", "three", **S),
    "ad_psgd, other partners": case(
        "ad_psgd", "v100x4", problems=ONE, batch_size=6, rate=falling, partner_seed=7
    ),
}
