"""Supervision of the actors: new ones replace lost ones, and use nodes that join.

A worker whose actor or node is lost is vacant; `joiners` are vacant from the start.
Ray's own restarts (`max_restarts`) do not serve: they ask for the resources that the
lost actor had, but a new node may have others, and an actor has to be made ready.
"""

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from hetjax.engine.capabilities import Unreachable
from hetjax.machine.faults import absent_at_first
from hetjax.runtimes.cluster.actor_pool import wait_until_started
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine, ClusterWorker
from hetjax.runtimes.cluster.node_slots import Slot, find_slot
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    PATIENCE,
    RemoteActor,
    WorkerGroup,
)
from hetjax.runtimes.real.worker_reports import Appeared, Vanished

POLL_INTERVAL = 1.0  # [s] between searches for nodes with room
RETRY_PAUSE = 20.0  # [s] until another actor is started after one that failed
GRACE_PERIOD = 30.0  # [s] that a run without workers waits for a node with room


class Supervisor:
    """Starts actors for the vacant workers of one run."""

    def __init__(
        self,
        machine: ClusterMachine,
        group: WorkerGroup,
        prepare: Callable[[int, RemoteActor], None],
        report: Callable[[Appeared | Vanished], None],
    ):
        """`prepare(worker, actor)` makes a new actor ready for the run.

        `report` tells the clock that a worker is lost, or may take rounds again.
        """
        self._machine, self._group = machine, group
        self._prepare, self._report = prepare, report
        self._vacant: dict[int, float] = {}  # worker -> since when [s], or -inf
        self._unresponsive: set[int] = set()  # workers that may still answer
        self._to_remove: list[str] = []  # names of lost workers, for the pool
        self._starting = ""  # the name of the worker whose new actor is starting
        self._retry_after: dict[int, float] = {}  # [s] by worker, after a failed start
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hetjax supervisor")
        self._thread.daemon = True
        for worker, actor in enumerate(group.actors):
            if actor is None:
                self._vacant[worker] = float("-inf")

    def begin(self, lost: Collection[int]) -> None:
        """Start the thread; `lost` workers are not active at first.

        In a resumed run these are the workers that were lost before; they may have an
        actor by now.
        """
        scripted = absent_at_first(self._machine.faults)
        for worker in self._group.present:
            if worker in lost and self._machine.workers[worker].name not in scripted:
                self._report(Appeared(worker, "it has a new process"))
        self._thread.start()

    @property
    def may_appear(self) -> bool:
        """Whether a worker may still join, so that a run without workers must wait."""
        recent = time.monotonic() - GRACE_PERIOD
        with self._lock:
            if self._starting or self._unresponsive:
                return True
            return any(t > recent for t in self._vacant.values())

    def lost(self, worker: int, actor: RemoteActor | None, why: str) -> None:
        """Report that a worker's actor is dead, unless it has another; on any thread.

        The clock learns of it before the worker is vacant, and so before a new actor.
        No actor is called: Ray's calls hang on the threads that deliver results.
        """
        with self._lock:
            if not self._group.is_current(worker, actor):
                return  # it was reported when the actor was removed
            self._report(Vanished(worker, why))
            self._group.actors[worker] = None
            self._unresponsive.discard(worker)
            self._vacant[worker] = time.monotonic()
            self._to_remove.append(self._machine.workers[worker].name)
        self._wake.set()

    def unresponsive(self, worker: int, actor: RemoteActor | None, why: str) -> None:
        """Report that a worker without a round does not answer; on any thread.

        Another thread asks for its status, as no actor may be called here (see `lost`).
        """
        with self._lock:
            if not self._group.is_current(worker, actor):
                return
            self._report(Vanished(worker, why))
            if worker in self._unresponsive:
                return
            self._unresponsive.add(worker)

        def ask() -> None:  # the answer comes when the actor continues, or is dead
            assert actor is not None
            (found,) = actor.call("is_compiling", queue=HEALTH)
            found.add_done_callback(partial(self._on_status, worker, actor))

        threading.Thread(target=ask, daemon=True).start()

    def _on_status(self, worker: int, actor: RemoteActor, future: Future) -> None:
        error = future.exception()
        if isinstance(error, Unreachable):
            self.lost(worker, actor, str(error))
            return
        with self._lock:
            if worker not in self._unresponsive or self._closed.is_set():
                return
            self._unresponsive.discard(worker)
            self._report(Appeared(worker, "answers again"))

    def remove(self, workers: Collection[int]) -> None:
        """End the actors of these workers, when the run is over."""
        for worker in workers:
            self._machine.pool.remove(self._machine.workers[worker].name)

    def close(self) -> None:
        """End the thread, and an actor that it is starting."""
        with self._lock:
            self._closed.set()
            starting = self._starting
        self._wake.set()
        if starting:
            self._machine.pool.remove(starting)  # the thread stops waiting for it
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE)
        self._remove_lost()

    # -- the thread ------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed.is_set():
            with self._lock:
                vacant = dict(self._vacant)
            self._remove_lost()
            for worker, since in sorted(vacant.items()):
                if not self._closed.is_set():
                    self._fill(worker, since)
            self._wake.wait(POLL_INTERVAL if vacant else None)
            self._wake.clear()

    def _remove_lost(self) -> None:
        with self._lock:
            lost, self._to_remove = self._to_remove, []
        for name in lost:
            self._machine.pool.remove(name)

    def _fill(self, worker: int, since: float) -> None:
        if time.monotonic() < self._retry_after.get(worker, 0.0):
            return
        spec = self._machine.workers[worker]
        slot = self._slot_for(spec)
        if slot is None:
            if 0 <= since <= time.monotonic() - GRACE_PERIOD:
                with self._lock:
                    self._vacant[worker] = float("-inf")  # report it once
                why = f"no node has had room for a new process for {GRACE_PERIOD:g} s"
                self._still_lost(worker, why)
            return
        try:
            self._start(worker, spec, slot)
        except Exception as error:  # of its node, or of the data it loads
            if self._closed.is_set():
                return
            # after a crash another start may succeed; missing data stay missing
            died = isinstance(error.__cause__ or error, Unreachable)
            pause = POLL_INTERVAL if died else RETRY_PAUSE
            self._retry_after[worker] = time.monotonic() + pause
            self._still_lost(worker, f"its new process did not start: {error}")

    def _still_lost(self, worker: int, why: str) -> None:
        self._report(Vanished(worker, why, again=True))

    def _start(self, worker: int, spec: ClusterWorker, slot: Slot) -> None:
        pool = self._machine.pool
        with self._lock:
            if self._closed.is_set():
                return
            self._starting = spec.name
        ready, actor = False, None
        try:
            # without the lock: Ray's call needs the thread on which it calls `lost`
            actor = pool.start(slot, spec.name)
            if self._closed.is_set():  # `close` found no actor that it could end
                return
            kind = wait_until_started(spec.name, slot, actor).kind
            if kind != spec.kind:
                raise ValueError(f"it has a {kind}, not a {spec.kind}")
            self._prepare(worker, actor)
            with self._lock:
                ready = not self._closed.is_set()
        finally:
            with self._lock:
                self._starting = ""
            if not ready and actor is not None:
                pool.remove(spec.name, actor)
        if not ready:
            return
        again = "a new process" if spec.node else "it joined"

        def adopt() -> None:
            self._group.actors[worker] = actor
            pool.moved[spec.name] = slot.name

        with self._lock:
            self._vacant.pop(worker, None)
        self._report(Appeared(worker, f"{again} on {slot.name}", adopt))

    def _slot_for(self, spec: ClusterWorker) -> Slot | None:
        pool = self._machine.pool
        with suppress(Exception):  # Ray's, if the cluster does not answer
            nodes = pool.cluster.nodes()
            return find_slot(
                spec.resources, pool.resources, nodes, pool.allocated, prefer=spec.node
            )
        return None
