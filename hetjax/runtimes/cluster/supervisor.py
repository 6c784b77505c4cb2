"""Workers that come back: new processes for lost ones, and for nodes that join.

A worker is a seat. When its process or node is gone, the seat is vacant; the seats of
`joiners` are from the start. A thread of the driver looks for nodes that have room, and
lets a worker join when its new process has what the run needs.
"""

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from hetjax.engine.protocols import Unreachable
from hetjax.machine.faults import absent_at_first
from hetjax.runtimes.cluster.actor_pool import about_of
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine, ClusterWorker
from hetjax.runtimes.cluster.node_slots import Slot, room_for
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    PATIENCE,
    RemoteActor,
    WorkerGroup,
)

LOOK = 1.0  # [s] between looks at the nodes
AGAIN = 20.0  # [s] until a process that did not start is tried again
GRACE = 30.0  # [s] in which a run without workers waits for a node that has room


def _nothing() -> None:
    """The worker has its member already."""


class Supervisor:
    """Fills the vacant seats of one run."""

    def __init__(
        self,
        machine: ClusterMachine,
        crew: WorkerGroup,
        prepare: Callable[[int, RemoteActor], None],
        *,
        appeared: Callable[[int, str, Callable[[], None]], None],
        vanished: Callable[..., None],
    ):
        """`prepare(worker, member)` gives a new member what the run needs.

        `appeared(worker, why, adopt)` tells that it can take rounds, once `adopt` was
        called; `vanished(worker, why, again=)` that it is lost, or why it still is.
        """
        self._machine, self._crew, self._prepare = machine, crew, prepare
        self._appeared, self._vanished = appeared, vanished
        self._vacant: dict[int, float] = {}  # seat -> since when [s], or -inf
        self._silent: set[int] = set()  # workers that may answer again
        self._gone: list[str] = []  # lost workers whose members are to be removed
        self._starting: RemoteActor | None = None
        self._not_before: dict[int, float] = {}  # [s] of seats that were in vain
        self._news = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="hetjax recruiter")
        self._thread.daemon = True
        for worker, member in enumerate(crew.members):
            if member is None:
                self._vacant[worker] = float("-inf")

    def begin(self, lost: Collection[int]) -> None:
        """Look for nodes from now on; `lost` workers are not active at first.

        Of a run that goes on, they are those that were lost before: they may have a
        process by now.
        """
        scripted = absent_at_first(self._machine.faults)
        for worker in self._crew.present:
            if worker in lost and self._machine.workers[worker].name not in scripted:
                self._appeared(worker, "it has a new process", _nothing)
        self._thread.start()

    @property
    def may_appear(self) -> bool:
        """May a worker still come, so that a run without any should wait?"""
        recent = time.monotonic() - GRACE
        with self._lock:
            if self._starting is not None or self._silent:
                return True
            return any(t > recent for t in self._vacant.values())

    def lost(self, worker: int, member: RemoteActor | None, why: str) -> None:
        """A worker's process is gone, unless it has another one; from any thread.

        The clock hears of it before the seat is vacant, and so before a new process.
        No member is called: on the threads that bring answers, Ray's calls hang.
        """
        with self._lock:
            if not self._crew.has(worker, member):
                return  # it was said when the member was taken away
            self._vanished(worker, why)
            self._crew.members[worker] = None
            self._silent.discard(worker)
            self._vacant[worker] = time.monotonic()
            self._gone.append(self._machine.workers[worker].name)
        self._news.set()

    def silent(self, worker: int, member: RemoteActor | None, why: str) -> None:
        """A worker without a round does not answer; called from any thread.

        It is asked by another one, as no member may be called here (see `lost`).
        """
        with self._lock:
            if not self._crew.has(worker, member):
                return
            self._vanished(worker, why)
            if worker in self._silent:
                return
            self._silent.add(worker)
        threading.Thread(target=self._ask, args=(worker, member), daemon=True).start()

    def _ask(self, worker: int, member: RemoteActor) -> None:
        """Ask a silent worker how it is; it answers when it goes on, or is gone."""
        (found,) = member.call("status", queue=HEALTH)
        found.add_done_callback(partial(self._answered, worker, member))

    def _answered(self, worker: int, member: RemoteActor, future: Future) -> None:
        error = future.exception()
        if isinstance(error, Unreachable):
            self.lost(worker, member, str(error))
            return
        with self._lock:
            if worker not in self._silent or self._closed.is_set():
                return
            self._silent.discard(worker)
            self._appeared(worker, "answers again", _nothing)

    def remove(self, workers: Collection[int]) -> None:
        """End the processes of these workers; called when the run is over."""
        for worker in workers:
            self._machine.pool.remove(self._machine.workers[worker].name)

    def close(self) -> None:
        """Look no further; a process that is being started is ended."""
        with self._lock:
            self._closed.set()
            starting = self._starting
        self._news.set()
        if starting is not None:
            starting.kill()  # so that what the thread waits for ends
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE)
        self._remove_gone()

    # -- the thread ------------------------------------------------------------------

    def _work(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                vacant = dict(self._vacant)
            self._remove_gone()
            for worker, since in sorted(vacant.items()):
                if not self._closed.is_set():
                    self._fill(worker, since)
            self._news.wait(LOOK if vacant else None)
            self._news.clear()

    def _remove_gone(self) -> None:
        with self._lock:
            gone, self._gone = self._gone, []
        for name in gone:
            self._machine.pool.remove(name)

    def _fill(self, worker: int, since: float) -> None:
        """Start a process for a vacant seat, if a node has room for it."""
        if time.monotonic() < self._not_before.get(worker, 0.0):
            return
        seat = self._machine.workers[worker]
        place = self._place_for(seat)
        if place is None:
            if 0 <= since <= time.monotonic() - GRACE:
                with self._lock:
                    self._vacant[worker] = float("-inf")  # say so once
                why = f"no node has had room for a new process for {GRACE:g} s"
                self._said_again(worker, why)
            return
        try:
            self._start(worker, seat, place)
        except Exception as error:  # of its node, or of what it is given
            if self._closed.is_set():
                return
            # one that died may be lucky the next time; data that are missing stay so
            died = isinstance(error.__cause__ or error, Unreachable)
            pause = LOOK if died else AGAIN
            self._not_before[worker] = time.monotonic() + pause
            self._said_again(worker, f"its new process did not start: {error}")

    def _said_again(self, worker: int, why: str) -> None:
        self._vanished(worker, why, again=True)

    def _start(self, worker: int, seat: ClusterWorker, place: Slot) -> None:
        pool = self._machine.pool
        with self._lock:
            if self._closed.is_set():
                return
            member = self._starting = pool.start(place, seat.name)
        ready = False
        try:
            kind = about_of(seat.name, place, member).kind
            if kind != seat.kind:
                raise ValueError(f"it has a {kind}, not a {seat.kind}")
            self._prepare(worker, member)
            with self._lock:
                ready = not self._closed.is_set()
        finally:
            with self._lock:
                self._starting = None
            if not ready:
                pool.remove(seat.name, member)
        if not ready:
            return
        again = "a new process" if seat.node else "it joined"

        def adopt() -> None:
            self._crew.members[worker] = member
            pool.moved[seat.name] = place.name

        with self._lock:
            self._vacant.pop(worker, None)
        self._appeared(worker, f"{again} on {place.name}", adopt)

    def _place_for(self, seat: ClusterWorker) -> Slot | None:
        pool = self._machine.pool
        with suppress(Exception):  # Ray's own, where the cluster does not answer
            nodes = pool.cluster.nodes()
            return room_for(
                seat.resources, pool.resources, nodes, pool.taken, prefer=seat.node
            )
        return None
