"""Cases of the strategies that merge in rounds and mega-batches, and of trees."""

from oracle_case import ONE, S, by_half, case, dropping, falling, quickly

from hetjax.schedule import Rate

CASES = {
    # baselines
    "sequential": case("sequential_sgd", "three", batch_size=8, rate=0.1),
    "sequential with momentum and decay": case(
        "sequential_sgd",
        "v100x4",
        batch_size=8,
        rate=0.05,
        momentum=0.9,
        weight_decay=0.01,
    ),
    "sync": case("sync_sgd", "three", batch_size=6, rate=0.2),
    "sync with momentum": case(
        "sync_sgd",
        "v100x4",
        batch_size=8,
        rate=0.05,
        momentum=0.8,
        weight_decay=0.05,
    ),
    "sync as MagmaDNN": case(
        "sync_sgd", "three", batch_size=6, rate=0.3, momentum=0.8, ema=True
    ),
    "elastic, a falling rate": case(
        "elastic_sgd", "v100x4", batch_size=8, rate=falling, steps=3
    ),
    "elastic, a rate over seconds": case(
        "elastic_sgd",
        "three",
        problems=ONE,
        batch_size=8,
        rate=Rate(quickly, over="seconds"),
        steps=2,
    ),
    "K-AVG": case(
        "elastic_sgd", "three", batch_size=5, rate=0.2, steps=2, momentum=0.0
    ),
    # elastic averaging
    "easgd_sync": case("easgd_sync", "v100x4", batch_size=8, rate=0.1),
    "easgd_sync, the step first": case(
        "easgd_sync",
        "three",
        batch_size=7,
        rate=0.05,
        alpha=0.2,
        tau=2,
        momentum=0.8,
        weight_decay=0.01,
        correction="after",
        overlap=False,
    ),
    "sma": case("sma", "v100x4", batch_size=8, rate=0.1),
    "sma with everything": case(
        "sma",
        "three",
        batch_size=7,
        rate=0.05,
        momentum=0.5,
        alpha=0.2,
        tau=2,
        local_momentum=0.9,
        weight_decay=0.01,
        overlap=False,
    ),
    "sma restarts": case(
        "sma",
        "three",
        reaches="restarts",
        batch_size=6,
        rate=dropping,
        local_momentum=0.5,
    ),
    "sma restarts, momentum stays": case(
        "sma",
        "v100x4",
        problems=ONE,
        reaches="restarts",
        batch_size=6,
        rate=Rate(by_half, over="updates"),
        alpha=0.1,
        local_momentum=0.5,
        reset_momentum=False,
    ),
    "sma never restarts": case(
        "sma", "three", problems=ONE, batch_size=6, rate=dropping, restart="never"
    ),
    "sma as in KungFu": case(
        "sma",
        "three",
        batch_size=6,
        rate=0.05,
        momentum=0.0,
        local_momentum=0.9,
        center="mean",
    ),
    # trees
    "sma on two levels": case("sma", "v100x4", batch_size=6, rate=0.1, two_level=2),
    "sma on two levels with everything": case(
        "sma",
        "v100x4",
        problems=ONE,
        batch_size=5,
        rate=0.05,
        two_level=2,
        between=0.8,
        momentum=0.5,
        alpha=0.3,
        tau=2,
        local_momentum=0.5,
        weight_decay=0.01,
        overlap=False,
    ),
    "sma in one group": case(
        "sma", "three", problems=ONE, batch_size=6, rate=0.1, two_level=3
    ),
    "hier on two levels": case(
        "hier_sgd", "three", **S, levels=((2, 1),), intervals=(1, 2)
    ),
    "hier, a sum": case(
        "hier_sgd",
        "three",
        problems=ONE,
        batch_size=6,
        rate=Rate(quickly, over="seconds"),
        levels=(),
        intervals=(2,),
        gammas=(0.5,),
    ),
    "hier by places": case(
        "hier_sgd", "two places", problems=ONE, batch_size=4, rate=0.1, intervals=(2, 4)
    ),
    "hier on three levels": case(
        "hier_sgd",
        "two places",
        reaches=2,
        batch_size=4,
        rate=0.1,
        levels=(2, (3, 1)),
        intervals=(1, 2, 6),
        gammas=(0.4, 0.3, 0.1),
    ),
    "hier of unlike nodes": case(
        "hier_sgd",
        "two places",
        problems=ONE,
        reaches=2,
        batch_size=4,
        rate=0.1,
        levels=((3, 1, 2, 2), 2),
        intervals=(1, 2, 4),
    ),
    "hier, rounds counted": case(
        "hier_sgd",
        "two places",
        problems=ONE,
        reaches=2,
        batch_size=4,
        rate=0.1,
        levels=(2, (3, 1)),
        intervals=(2, 2, 2),
        t2_counts="rounds",
    ),
    # Adaptive SGD
    "adaptive": case(
        "adaptive_sgd", "v100x4", b_max=8, rate=0.2, b_min=2, beta=2.0, mega_batch=48
    ),
    "adaptive, clipped, always perturbed": case(
        "adaptive_sgd",
        "three",
        b_max=8,
        rate=falling,
        b_min=2,
        beta=3.0,
        mega_batch=40,
        delta=0.2,
        pert_thr=100.0,
        momentum=0.5,
        bound="clip",
        scale_every=2,
    ),
    "adaptive without scaling, more workers than batches": case(
        "adaptive_sgd",
        "v100x4",
        b_max=8,
        rate=0.2,
        b_min=1,
        beta=0.5,
        mega_batch=20,
        scaling="none",
    ),
}
