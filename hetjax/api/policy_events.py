"""A strategy's policy alone on a simulated machine, without a model or any training."""

from collections.abc import Iterator

from hetjax.data.batching import nonzeros_per_example
from hetjax.data.dataset import Dataset
from hetjax.machine import Machine, SimulatedClock
from hetjax.machine.types import Event
from hetjax.schedule import Actions, simulate
from hetjax.strategies.types import Strategy


def policy_events(
    strategy: Strategy, machine: Machine, data: Dataset, num_bytes: float
) -> Iterator[tuple[Event | None, Actions]]:
    """Each event, and what the policy does then, for a model of `num_bytes`.

    Most runs never end: take as many as you need. The clock's seed is 0, so that they
    are the same each time.
    """
    nonzeros = nonzeros_per_example(data.train)
    clock = SimulatedClock(machine, seed=0, nonzeros_per_example=nonzeros)
    return simulate(
        strategy.policy,
        clock,
        num_examples=len(data.train),
        num_bytes=num_bytes,
        nonzeros=nonzeros,
    )
