"""Which workers are active, working or lost, and how events change that (host world).

Clocks, policies and the loop all use a `Roster`, so that they never disagree about a
worker that was killed or stopped, or that rejoined.
"""

from collections.abc import Iterable
from typing import NamedTuple

from hetjax.machine.types import Arrival, Event, Join, Leave, WorkerInfo


class Roster(NamedTuple):
    """Three sets of worker numbers, and how each event changes them.

                          active    working    lost
        dispatched                  + k
        Arrival                     - k
        Join              + k                  - k
        Leave             - k
        Leave(lost=True)  - k       - k        + k

    A worker that was stopped finishes its local round, so it may be working without
    being active. A worker that is lost, or has not joined yet, cannot be started.
    """

    active: frozenset[int] = frozenset()  # workers that may be given local rounds
    working: frozenset[int] = frozenset()  # workers that have a local round in flight
    lost: frozenset[int] = frozenset()  # workers that cannot be started

    @classmethod
    def of(cls, infos: Iterable[WorkerInfo]) -> "Roster":
        """Return the roster at the start; workers that are not present join later."""
        infos = tuple(infos)
        return cls(
            active=frozenset(w.index for w in infos if w.present),
            lost=frozenset(w.index for w in infos if not w.present),
        )

    def dispatched(self, workers: Iterable[int]) -> "Roster":
        """Return the roster after these workers were given a local round."""
        return Roster(self.active, self.working.union(workers), self.lost)

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
