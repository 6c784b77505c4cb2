"""The writer of the tape of a job."""

from collections.abc import Callable

from hetjax.data.batching import nonzeros_counter
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.job import Job
from hetjax.engine.protocols import Clock, Traits
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.tape_writer import TapeWriter
from hetjax.engine.traffic import traffic_of_actions
from hetjax.schedule.types import Policy
from hetjax.strategies.types import Strategy


def writer_of(
    strategy: Strategy,
    job: Job,
    clock: Clock,
    traits: Traits,
    *,
    policy: Policy | None = None,
    stopped: Callable[[], object] = lambda: False,
) -> TapeWriter:
    """Return the writer, and its ledger; see `TapeWriter` for `stopped`.

    `policy` decides in place of the strategy's.
    """
    workers, topology = clock.workers, strategy.policy.topology(clock.workers)
    overwrites = "grad_sum" in strategy.local.provides
    summed = any("grad_sum" in merge.requires for merge in strategy.merges)
    accrues = summed and not overwrites
    counter = nonzeros_counter(job.train)
    return TapeWriter(
        policy or strategy.policy,
        clock,
        Examples(strategy.sampler, workers, len(job.train), job.schedule, counter),
        Ledger(workers, topology, overwrites=overwrites, accrues=accrues),
        topology,
        num_examples=len(job.train),
        learning_rate=strategy.learning_rate,
        traits=traits,
        traffic_of=traffic_of_actions(
            job.programs.merges_of(strategy), topology, job.programs.model_like
        ),
        instants=job.instants,
        num_held_out=job.num_held_out,
        stops_if_lost=job.on_lost_worker == "stop",
        stopped=stopped,
    )
