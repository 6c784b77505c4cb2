"""Which workers are active, at work or lost: one rule for each event (host world).

Clocks, policies and the loop all use this value, so that they never disagree about a
worker that was killed, was stopped or came back.
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

    A worker that was stopped finishes its local round, so it may be at work without
    being active. A worker that is lost, or has not joined yet, cannot be started.
    """

    active: frozenset[int] = frozenset()  # workers that get local rounds
    working: frozenset[int] = frozenset()  # workers that have one
    lost: frozenset[int] = frozenset()  # workers that cannot be started

    @classmethod
    def of(cls, infos: Iterable[WorkerInfo]) -> "Roster":
        """The roster when a run begins; workers that are not present join later."""
        infos = tuple(infos)
        return cls(
            active=frozenset(w.index for w in infos if w.present),
            lost=frozenset(w.index for w in infos if not w.present),
        )

    def dispatched(self, workers: Iterable[int]) -> "Roster":
        """The roster after these workers were given a local round."""
        return self._replace(working=self.working.union(workers))

    def after(self, event: Event) -> "Roster":
        """The roster after an event; the same one if it is about no worker."""
        if isinstance(event, Arrival):
            return self._replace(working=self.working - {event.worker})
        if isinstance(event, Join):
            return self._replace(
                active=self.active | {event.worker}, lost=self.lost - {event.worker}
            )
        if not isinstance(event, Leave):
            return self
        active = self.active - {event.worker}
        if not event.lost:
            return self._replace(active=active)
        return Roster(active, self.working - {event.worker}, self.lost | {event.worker})
