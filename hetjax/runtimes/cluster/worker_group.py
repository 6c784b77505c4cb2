"""The members of one run, as the driver calls them by the numbers of its workers."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import numpy as np

from hetjax.engine.protocols import Unreachable
from hetjax.runtimes.cluster.actor import ActorStatus
from hetjax.runtimes.cluster.node_slots import ClusterNode

# a member does the calls of one queue one after the other, in the order they were made
STEPS = "steps"  # local rounds, and what must wait for them
REPLICA = "replica"  # merges of a replica whose steps go on
HEALTH = "health"  # answered at once, whatever the member does


class RemoteActor(Protocol):
    """The driver's end of one member."""

    node: ClusterNode

    def call(
        self, method: str, *args: Any, queue: str, label: str = "", parts: int = 1
    ) -> Sequence[Future]:
        """Call a method of the member, which returns so many parts.

        Each is a future, which raises `hetjax.engine.protocols.Unreachable` if the
        member is gone. Parcels among the arguments arrive as what was put into them.
        The `label` is for dashboards.
        """
        ...

    def kill(self) -> None:
        """End the member's process."""
        ...


class Cluster(Protocol):
    """Nodes, on which members can be started."""

    def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive, the driver's first, then by name."""
        ...

    def start(
        self, name: str, node: ClusterNode, resources: dict[str, float], *settings: Any
    ) -> RemoteActor:
        """Start `WorkerActor(*settings)` on a node; its calls wait until it is there.

        The name is for dashboards.
        """
        ...

    def put(self, value: Any) -> Any:
        """A parcel: it goes to each node once, however many members it is given to."""
        ...

    def close(self) -> None:
        """Leave the cluster; end it if it was started here."""
        ...


PATIENCE = 5.0  # [s] without an answer, after which a member is asked how it is
ANSWER = 1.0  # [s] in which a member says how it is, at most
NO_ANSWER = f"no answer for {2 * PATIENCE:g} s"
INLINE = 50_000  # bytes that are sent with a call: a parcel takes longer to fetch


class _NoActor:
    """In the place of a member that is not there: every call fails."""

    def call(
        self, method: str, *args: Any, queue: str, label: str = "", parts: int = 1
    ) -> Sequence[Future]:
        del method, args, queue, label
        found = [Future() for _ in range(parts)]
        for future in found:
            future.set_exception(Unreachable("it has no process"))
        return found


_NOBODY = _NoActor()


class WorkerGroup:
    """Members by worker, and the bytes that went to and fro."""

    def __init__(self, cluster: Cluster, members: Sequence[RemoteActor | None]):
        """`members` are those of all workers; None: the worker is not there yet."""
        self._cluster = cluster
        self.members = list(members)  # one that is lost is replaced by None
        # told, on any thread, that what was told to a worker has failed
        self.on_failed: Callable[[int, RemoteActor, BaseException], None] = (
            lambda worker, member, error: None
        )
        # of the replica: leaves that a worker sends with its next reports
        self.wanted: list[tuple[int, ...]] = [() for _ in members]
        self.received = [0] * len(self.members)  # bytes that came from each worker
        self.sent = [0] * len(self.members)
        self.factors: dict[int, float] = {}  # of scripted slowdowns

    @property
    def present(self) -> list[int]:
        """The workers that have a member."""
        return [k for k, member in enumerate(self.members) if member is not None]

    def has(self, worker: int, member: RemoteActor | None) -> bool:
        """Is this the worker's member still? Nobody is not."""
        return member is not None and self.members[worker] is member

    def _member(self, worker: int) -> RemoteActor | _NoActor:
        return self.members[worker] or _NOBODY

    def call(self, worker: int, method: str, *args: Any, queue: str = STEPS) -> Future:
        """Call a method of a worker's run; Unreachable is the answer of one gone."""
        (found,) = self.call_parts(worker, method, *args, queue=queue, parts=1)
        return found

    def tell(self, worker: int, method: str, *args: Any, queue: str) -> None:
        """Call a method whose answer nobody waits for; `on_failed` hears of errors."""
        member = self.members[worker]
        future = self.call(worker, method, *args, queue=queue)
        future.add_done_callback(partial(self._look, worker, member))

    def _look(self, worker: int, member: RemoteActor | None, future: Future) -> None:
        error = future.exception()
        if error is not None and member is not None:  # else it was lost before
            self.on_failed(worker, member, error)

    def call_parts(
        self,
        worker: int,
        method: str,
        *args: Any,
        parts: int,
        queue: str = STEPS,
        label: str = "",
    ) -> Sequence[Future]:
        """As `call`, of a method that returns several parts, a future for each."""
        return self._member(worker).call(
            "do", method, *args, queue=queue, label=label or method, parts=parts
        )

    def end_run(self, worker: int) -> Future:
        """Let a worker forget the run; the future has what it compiled."""
        (found,) = self._member(worker).call("end_run", queue=HEALTH)
        return found

    def answer(self, worker: int, future: Future) -> Any:
        """Wait for the answer of a worker, as long as it lives; else Unreachable."""
        return answer(self._member(worker), future)

    def answers(self, asked: Mapping[int, Future]) -> dict[int, Any]:
        """Wait as in `answer` for several workers at once; errors are among these."""
        silent = wait_for({k: (self._member(k), f) for k, f in asked.items()})
        found: dict[int, Any] = {}
        for worker, future in asked.items():
            if worker in silent:
                found[worker] = Unreachable(NO_ANSWER)
            else:
                found[worker] = future.exception() or future.result()
        return found

    def slow(self, worker: int, factor: float) -> None:
        """Make a worker's steps take `factor` times as long as at the start."""
        self.factors[worker] = factor
        self.call(worker, "slow", factor, queue=HEALTH)

    def is_compiling(self, worker: int) -> bool:
        """Does a worker compile? One that hangs does not say so."""
        (found,) = self._member(worker).call("status", queue=HEALTH)
        with suppress(TimeoutError, Unreachable):
            status: ActorStatus = found.result(timeout=ANSWER)
            return status.compiling
        return False

    def parcel(self, arrays: Sequence[Any]) -> Any:
        """Arrays to be given to one or more members, each node getting them once."""
        hosted = [np.asarray(array) for array in arrays]
        small = sum(array.nbytes for array in hosted) <= INLINE
        return hosted if small else self._cluster.put(hosted)

    def count_sent(self, worker: int, arrays: Sequence[Any]) -> None:
        """Count arrays that a worker is given."""
        self.sent[worker] += sum(array.nbytes for array in arrays)

    def count_received(self, worker: int, arrays: Sequence[Any]) -> None:
        """Count arrays that came from a worker."""
        self.received[worker] += sum(array.nbytes for array in arrays)


def queue_of(shared: bool) -> str:
    """The queue of calls about replicas: do they wait for the steps under way?"""
    return REPLICA if shared else STEPS


def answer(member: RemoteActor | _NoActor, future: Future) -> Any:
    """Wait for the answer of a member, as long as it lives; else Unreachable."""
    if wait_for({0: (member, future)}):
        raise Unreachable(NO_ANSWER)
    return future.result()


def wait_for(asked: Mapping[int, tuple[RemoteActor | _NoActor, Future]]) -> set[int]:
    """Wait for the answers of members, as long as these live; return who does not.

    All are waited for at once: several that hang take no longer than one.
    """
    silent: set[int] = set()
    while True:
        wait([future for k, (_, future) in asked.items() if k not in silent], PATIENCE)
        waiting = {
            k: member
            for k, (member, future) in asked.items()
            if k not in silent and not future.done()
        }
        if not waiting:
            return silent
        status = {k: m.call("status", queue=HEALTH)[0] for k, m in waiting.items()}
        wait(status.values(), PATIENCE)
        for k, future in status.items():
            well = future.done() and not isinstance(future.exception(), Unreachable)
            if not well and not asked[k][1].done():
                silent.add(k)
