"""The version of the root's model that each worker computes a gradient at (host world).

Policies count versions themselves where what becomes of a gradient depends on its age.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from hetjax.machine.roster import Roster
from hetjax.machine.types import Event, LocalRound, MergeAction, MergeOp, WorkerInfo
from hetjax.schedule.types import Actions

Unfinished = Literal["cancel", "ignore"]  # what becomes of rounds that are out of date
UNFINISHED = get_args(Unfinished)


class GivenVersions(NamedTuple):
    """The number of updates, and the one after which each worker got its model."""

    roster: Roster
    updates: int  # the present version
    given: tuple[int, ...]  # by worker

    @classmethod
    def of(cls, policy: str, infos: tuple[WorkerInfo, ...]) -> "GivenVersions":
        """Return the versions at the start; raise a ValueError without workers."""
        if not infos:
            raise ValueError(f"{policy}: there are no workers")
        return cls(Roster.of(infos), 0, (0,) * len(infos))

    def after(self, event: Event) -> "GivenVersions":
        """Return the versions after an event, which changes only the roster."""
        return self._replace(roster=self.roster.after(event))

    def delay(self, worker: int) -> int:
        """Return the number of updates since the worker was given its model."""
        return self.updates - self.given[worker]

    def begin(
        self, workers: Iterable[int], batch_size: float
    ) -> tuple["GivenVersions", tuple[tuple[int, LocalRound], ...]]:
        """One step each of the active workers among these, at the present version."""
        active = tuple(k for k in workers if k in self.roster.active)
        given = list(self.given)
        for k in active:
            given[k] = self.updates
        roster = self.roster.dispatched(active)
        versions = GivenVersions(roster, self.updates, tuple(given))
        return versions, tuple((k, LocalRound(1, batch_size)) for k in active)

    def begin_anew(
        self,
        merges: tuple[MergeAction, ...],
        has_fetched: tuple[int, ...],
        cancelled: tuple[int, ...],
        batch_size: float,
    ) -> tuple["GivenVersions", Actions]:
        """Cancel rounds; after the merges their workers fetch, and all of these begin.

        A worker that was stopped and whose round is cancelled does not begin again.
        """
        working = self.roster.working.difference(cancelled)
        versions = self._replace(roster=self.roster._replace(working=working))
        again = tuple(k for k in cancelled if k in self.roster.active)
        merges = (*merges, fetch(again)) if again else merges
        versions, dispatch = versions.begin((*has_fetched, *again), batch_size)
        return versions, Actions(merges, dispatch, cancel=cancelled)


def fetch(workers: tuple[int, ...], part: str = "") -> MergeAction:
    """These workers take the root's model, or a part of it: one transfer."""
    return MergeAction(workers, op=MergeOp.FETCH, transfers=1, part=part)
