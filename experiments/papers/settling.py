"""Adaptive SGD's batch sizes on the virtual clock, until all updates are equal."""

from collections.abc import Iterator

import hetjax as hj
from experiments.common import claims
from experiments.common.claims import Claim
from experiments.papers import mega_batches
from hetjax.machine import SimulatedClock, preset

# the largest batch size on each: fixed costs of 0.75 and of 0.04 of such a batch
MACHINES = {
    "v100x4": 256,
    "v100x2": 256,
    "v100x4-amazon670k": 1024,
    "v100x2-amazon670k": 1024,
}


def scaling_section() -> Iterator[Claim]:
    """Figure 6 (a): whether batch sizes settle with three rules; "measured" is ours."""
    for machine, size in MACHINES.items():
        rules = {
            rule: hj.adaptive_sgd(batch_size=size, learning_rate=0.1, scaling=rule)
            for rule in ("paper", "hgpu_code", "measured")
        }
        for noise in (0.0, 0.02):
            for name, strategy in rules.items():
                spreads = _spreads(strategy, machine, noise, size)
                settled = settled_from(spreads)
                yield Claim(
                    f"scaling/{name}/{machine}/{noise:g}",
                    f"updates of all GPUs are within 2 by mega-batch (rule: {name})",
                    "a few mega-batches"
                    if name == "paper"
                    else "(our rule: by the 3rd)",
                    "never" if settled is None else settled,
                    "mega-batch",
                    verdict(settled) if name == "paper" else claims.OWN,
                    f"{machine}, noise {noise:g}, 40 mega-batches of 100 x {size}; "
                    f"differences {', '.join(map(str, spreads[:12]))}, ..., "
                    f"{spreads[-1]} in the last",
                )


def _spreads(
    strategy: hj.Strategy, machine: str, noise: float, batch_size: int
) -> list[int]:
    """Largest minus smallest number of updates in each of 40 mega-batches."""
    clock = SimulatedClock(preset(machine, noise=noise), seed=0)
    found = mega_batches.first_mega_batches(
        strategy.policy, clock, 40, batch_size=batch_size, nonzeros=70.0
    )
    return [max(m.updates) - min(m.updates) for m in found]


def settled_from(spreads: list[int]) -> int | None:
    """The first mega-batch from which spreads stay within 2.

    None if they do not stay there for the last ten.
    """
    beyond = [i for i, spread in enumerate(spreads, start=1) if spread > 2]
    first = max(beyond, default=0) + 1
    return first if first <= len(spreads) - 9 else None


def verdict(settled: int | None) -> str:
    """The verdict; up to ten mega-batches count as "a few"."""
    if settled is None:
        return claims.refuted("the sizes never settle")
    return claims.REPRODUCED if settled <= 10 else claims.partly("they settle later")
