"""Parts of asynchronous policies: state, partners, grace periods (host world)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetjax.arguments import HostSeed, checked
from hetjax.machine.roster import Roster
from hetjax.machine.types import MergeAction, MergeOp, WorkerInfo

Partners = Callable[[int, int, int], tuple[int, ...]]
_GOSSIP_STREAM = 30_011  # separates the choice of partners from other uses of a seed


class AsynchronousState(NamedTuple):
    """The tuples `sizes`, `local_rounds` and `updates` have one entry per worker."""

    roster: Roster
    sizes: tuple[float, ...]  # [examples] real-valued
    local_rounds: tuple[int, ...]  # done
    updates: tuple[int, ...]  # since the last scaling
    examples: int  # [examples] since the last scaling
    held: tuple[int, ...]  # workers that are too far ahead, or in the grace period
    merges: int
    infos: tuple[WorkerInfo, ...]
    steps: Any  # state of the rule that counts local steps
    buffered: int  # reports in the buffer
    grace_periods: int  # begun


def split_in_half(
    merge: MergeAction | None,
    held: tuple[int, ...],
    free: tuple[int, ...],
    transfers: int,
) -> tuple[MergeAction, ...]:
    """Split merges: workers that must wait only push, and released ones fetch."""
    arrived = merge.members if merge else ()
    merges = [merge] if merge else []
    if merge and set(arrived) <= set(held):
        merges = [merge._replace(op=MergeOp.PUSH, transfers=transfers)]
    released = [(w,) for w in free if (w,) != arrived]
    return (
        *merges,
        *(MergeAction(w, op=MergeOp.FETCH, transfers=transfers) for w in released),
    )


def rescaled_rate(
    state: AsynchronousState, worker: int, workers: frozenset[int]
) -> float:
    """Return t_i (sum_j 1/t_j) / k, with t the expected seconds of each worker's step.

    The sum is over these k workers. The rates of all reports per second then sum to
    what they would without the factor.
    """
    seconds = {k: state.infos[k].seconds(state.sizes[k]) for k in workers | {worker}}
    if not all(seconds.values()):
        k = next(k for k, t in seconds.items() if not t)
        raise ValueError(
            f"asynchronous: a step of worker {k} ({state.infos[k].name}) is expected "
            "to take 0 s: pass rescaled=False"
        )
    return seconds[worker] * sum(1 / seconds[k] for k in sorted(workers)) / len(workers)


@checked
def random_partner(seed: HostSeed = 0) -> Partners:
    """Chooses one other worker uniformly, if there is one (AD-PSGD's gossip)."""

    def choose(worker, merges, workers):
        if workers == 1:
            return ()
        rng = np.random.default_rng((_GOSSIP_STREAM, seed, merges))
        return ((worker + 1 + int(rng.integers(workers - 1))) % workers,)

    return choose
