"""The roster: the active, working and lost workers of a run (host world).

Clocks, policies and the loop all use a `Roster`, so that they agree about workers that
were killed or stopped, or that joined again.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, Join, Leave, WorkerInfo


class Roster(NamedTuple):
    """Three sets of worker numbers, and their changes by each event.

                          active    working    lost
        dispatched                  + k
        cancelled                   - k
        Arrival                     - k
        Join              + k                  - k
        Leave             - k
        Leave(lost=True)  - k       - k        + k

    A worker that was stopped finishes its local round, so it may be working without
    being active. A worker that is lost, or has not joined yet, cannot be started.
    """

    active: frozenset[int] = frozenset()  # workers that may get local rounds
    working: frozenset[int] = frozenset()  # workers with a local round in flight
    lost: frozenset[int] = frozenset()  # workers that cannot be started

    @classmethod
    def of(cls, infos: Iterable[WorkerInfo]) -> "Roster":
        """Return the roster at the start; absent workers may join later."""
        infos = tuple(infos)
        return cls(
            active=frozenset(w.index for w in infos if w.present),
            lost=frozenset(w.index for w in infos if not w.present),
        )

    def dispatched(self, workers: Iterable[int]) -> "Roster":
        """Return the roster after these workers were given local rounds."""
        return Roster(self.active, self.working.union(workers), self.lost)

    def cancelled(self, workers: Iterable[int]) -> "Roster":
        """Return the roster after the local rounds of these workers were cancelled."""
        return Roster(self.active, self.working.difference(workers), self.lost)

    def after(self, event: Event) -> "Roster":
        """Return the roster after an event; unchanged if it concerns no worker."""
        if isinstance(event, Arrival):
            return Roster(self.active, self.working - {event.worker}, self.lost)
        if isinstance(event, Join):
            active = self.active | {event.worker}
            return Roster(active, self.working, self.lost - {event.worker})
        if not isinstance(event, Leave):
            return self
        active = self.active - {event.worker}
        if not event.lost:
            return Roster(active, self.working, self.lost)
        return Roster(active, self.working - {event.worker}, self.lost | {event.worker})
