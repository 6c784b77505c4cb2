"""Bulk-synchronous rounds: all workers compute, then all merge (host world)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hetjax.arguments import checked, per_worker
from hetjax.machine.roster import Roster
from hetjax.machine.types import (
    Arrival,
    Event,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    WorkerInfo,
)
from hetjax.schedule.types import Actions, Policy

Workers = tuple[WorkerInfo, ...]


class RoundsState(NamedTuple):
    """The members of the current round, and each worker's local round."""

    infos: Workers
    roster: Roster
    members: tuple[int, ...]  # of this round
    local_rounds: dict[int, LocalRound]  # of every worker that may take part


@checked
def rounds(
    *,
    local_steps: int | Sequence[int] | Callable[[Workers], int | Sequence[int]] = 1,
    batch_size: float | Sequence[float],
    workers: Callable[[Workers], Sequence[int]] | None = None,
    first: Callable[[Workers], Sequence[int]] | None = None,
    blocking: bool = True,
) -> Policy:
    """All workers do their steps; when the last one arrives, all merge and continue.

    `local_steps` and `batch_size` are one number for all workers or one number for
    each worker that takes part. `local_steps` may also be a function of the workers'
    infos that returns either. `workers` chooses the workers that take part (default:
    all; see `fastest`). `first` chooses which of these begin (default: all); the others
    wait until they join. A worker's relative learning rate is its batch size over the
    largest one (linear scaling). With `blocking=False` the next round starts while the
    merge is in flight.

    Workers leave and join between rounds: `workers` chooses again for every round. A
    worker that is lost is no longer a member of the current round; if no member is
    left, the next round begins when a worker joins.
    """

    def init(infos: Workers, num_examples: int) -> tuple[RoundsState, Actions]:
        del num_examples
        if not infos:
            raise ValueError("rounds: there are no workers")
        roster = Roster.of(infos)
        may_work = infos if workers is None else choose(infos, roster)
        local_rounds = plan(may_work)
        if first:
            beginners = frozenset(first(choose(infos, roster)))
            roster = roster._replace(active=beginners)
        return begin_round(RoundsState(infos, roster, (), local_rounds), ())

    def choose(infos: Workers, roster: Roster) -> Workers:
        """Return the infos of the workers that take part in a round beginning now."""
        present = tuple(infos[k] for k in sorted(roster.active))
        if workers is None or not present:
            return present
        return tuple(infos[k] for k in workers(present) if k in roster.active)

    def plan(taking_part: Workers) -> dict[int, LocalRound]:
        """The local round of each of these workers."""
        if not taking_part:
            raise ValueError("rounds: no workers take part: choose at least one")
        given = local_steps(taking_part) if callable(local_steps) else local_steps
        steps_k = per_worker("local_steps", given, len(taking_part))
        if any(s != int(s) for s in steps_k):  # 0.5 would be rounded to 0
            raise ValueError(f"local_steps={given}: every entry must be a whole number")
        sizes_k = per_worker("batch_size", batch_size, len(taking_part))
        return {
            w.index: LocalRound(int(s), b, b / max(sizes_k))
            for w, s, b in zip(taking_part, steps_k, sizes_k, strict=True)
        }

    def react(state: RoundsState, event: Event) -> tuple[RoundsState, Actions]:
        state = state._replace(roster=state.roster.after(event))
        match event:
            case Arrival():
                return end_round_if_done(state)
            case Join() if not state.members:
                return end_round_if_done(state)
            case Leave(worker=k, lost=True) if k in state.members:
                members = tuple(m for m in state.members if m != k)
                return end_round_if_done(state._replace(members=members))
        return state, Actions()

    def end_round_if_done(state: RoundsState) -> tuple[RoundsState, Actions]:
        if state.roster.working:
            return state, Actions()
        merges = (merge_all(state.members, blocking),) if state.members else ()
        return begin_round(state, merges)

    def begin_round(
        state: RoundsState, merges: tuple[MergeAction, ...]
    ) -> tuple[RoundsState, Actions]:
        chosen = choose(state.infos, state.roster)
        if any(w.index not in state.local_rounds for w in chosen):  # other workers
            state = state._replace(local_rounds=plan(chosen))
        members = tuple(w.index for w in chosen)
        state = state._replace(members=members, roster=state.roster.dispatched(members))
        return state, Actions(
            merges, tuple((k, state.local_rounds[k]) for k in members)
        )

    return Policy(init, react, bulk_synchronous=True)


def merge_all(members: tuple[int, ...], blocking: bool = True) -> MergeAction:
    """A merge of all these workers; a single worker needs no transfer."""
    transfers = 2 if len(members) > 1 else 0
    return MergeAction(members, blocking=blocking, transfers=transfers)


@checked
def equal_time(
    local_steps: int, batch_size: float
) -> Callable[[Workers], tuple[int, ...]]:
    """`local_steps` for the fastest worker; for others, the steps of equal duration.

        tau_i = max(1, round(local_steps t_min / t_i))

    with t_i the expected seconds of a step of worker i, and t_min the smallest of them.
    Source: Biased Local SGD; docs/algorithms E.1.
    """

    def count_steps(workers: Workers) -> tuple[int, ...]:
        seconds = [worker.seconds(batch_size) for worker in workers]
        return tuple(max(1, round(local_steps * min(seconds) / t)) for t in seconds)

    return count_steps


@checked
def fastest(batch_size: float) -> Callable[[Workers], tuple[int, ...]]:
    """Chooses the worker whose expected step on `batch_size` examples is shortest.

    Ties are broken by the lower index.
    """

    def choose(workers: Workers) -> tuple[int, ...]:
        return (min(workers, key=lambda w: (w.seconds(batch_size), w.index)).index,)

    return choose


def one_per_device(workers: Workers) -> tuple[int, ...]:
    """Chooses the first worker of every device."""
    devices: dict[str, int] = {}
    for worker in workers:
        devices.setdefault(worker.device or worker.name, worker.index)
    return tuple(devices.values())
