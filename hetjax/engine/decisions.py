"""The decisions of a policy and their times, from an unplayed tape (host world)."""

from collections.abc import Callable, Iterator, Sequence
from typing import get_args

import numpy as np

from hetjax.engine.drawn_examples import Examples
from hetjax.engine.protocols import Clock, Traits
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.tape import Tape
from hetjax.engine.tape_writer import TapeWriter
from hetjax.machine.merge_times import Traffic
from hetjax.machine.types import Event, MergeAction, Slow
from hetjax.sampling.types import Sampler
from hetjax.schedule.types import Actions, Policy

_EVENTS = frozenset(get_args(Event))


def write_unplayed(
    policy: Policy,
    clock: Clock,
    *,
    num_examples: int,
    num_bytes: float = 0.0,
    traffic_of: Callable[[MergeAction], Traffic] | None = None,
    nonzeros: float = 0.0,
    instants: Sequence[float] = (),
) -> Tape:
    """Write the tape of a run without a model or player: see `decisions`."""
    topology = policy.topology(clock.workers)
    examples = Examples(
        Sampler(lambda *job: None, lambda state, worker, n: (state, np.zeros(n, int))),
        clock.workers,
        num_examples,
        0,
        lambda rows: [int(nonzeros * len(r)) for r in rows],
    )
    return TapeWriter(
        policy,
        clock,
        examples,
        Ledger(clock.workers, topology),
        topology,
        num_examples=num_examples,
        traits=Traits(num_bytes),
        traffic_of=traffic_of,
        instants=instants,
    ).write()


def decisions(
    policy: Policy,
    clock: Clock,
    *,
    num_examples: int,
    num_bytes: float = 0.0,
    traffic_of: Callable[[MergeAction], Traffic] | None = None,
    nonzeros: float = 0.0,
    instants: Sequence[float] = (),
) -> Iterator[tuple[Event | None, Actions]]:
    """Yield each event of a run without a model, and the policy's actions then.

    The first pair is (None, the initial actions). A pair is yielded before its actions
    are carried out on the clock. Merges move models of `num_bytes`, or what
    `traffic_of(action)` says. `nonzeros` is the number of non-zeros per example, and
    `instants` [s] are evaluation times, each a Timer called "evaluate". A run ends when
    no event is pending; most runs never end, so the caller should stop.
    """
    tape = write_unplayed(
        policy,
        clock,
        num_examples=num_examples,
        num_bytes=num_bytes,
        traffic_of=traffic_of,
        nonzeros=nonzeros,
        instants=instants,
    )
    event: Event | None = None
    for entry in tape:
        if isinstance(entry, Actions):
            yield event, entry
        elif isinstance(entry, Slow):  # the policy does not see it
            yield entry, Actions()
        elif type(entry) in _EVENTS:
            event = entry
