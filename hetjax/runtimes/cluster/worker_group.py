"""The driver's side of the calls to actors: protocols, and the actors of one run.

`hetjax.runtimes.cluster.ray_cluster` implements the protocols with Ray.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from hetjax.engine.capabilities import Unreachable
from hetjax.runtimes.cluster.actor import SharedValue
from hetjax.runtimes.cluster.actor_run import RoundCall
from hetjax.runtimes.cluster.node_slots import ClusterNode

# an actor runs the calls of one queue one by one, in the order in which they were made
STEPS = "steps"  # local rounds, and calls that must wait for them
REPLICA = "replica"  # changes of a replica during its local rounds
HEALTH = "health"  # answered at once, whatever else the actor does


class RemoteActor(Protocol):
    """The driver's handle of an actor."""

    node: ClusterNode

    def call(
        self, method: str, *args: Any, queue: str, parts: int = 1
    ) -> Sequence[Future]:
        """Call a method that returns `parts` values; return a future for each.

        The futures raise `hetjax.engine.capabilities.Unreachable` if the actor is dead.
        Payloads among the arguments arrive as the values that were put.
        """
        ...

    def kill(self) -> None:
        """End the actor's process."""
        ...


class Cluster(Protocol):
    """A cluster on whose nodes actors can be started."""

    def nodes(self) -> list[ClusterNode]:
        """The live nodes, the driver's first, then by name."""
        ...

    def start(
        self, name: str, node: ClusterNode, resources: dict[str, float], *settings: Any
    ) -> RemoteActor:
        """Start `WorkerActor(*settings)` on a node; calls wait until it is ready.

        The `name` is for dashboards.
        """
        ...

    def put(self, value: Any) -> Any:
        """Return a payload: each node fetches the value once for all its actors."""
        ...

    def share(self, value: Any) -> SharedValue:
        """Put a value that actors fetch if they need it.

        Errors: ValueError if it cannot be pickled.
        """
        ...

    def close(self) -> None:
        """Disconnect from the cluster; end it if it was started here."""
        ...


PATIENCE = 5.0  # [s] to wait for a result before the actor's status is asked for
STATUS_TIMEOUT = 1.0  # [s] within which an actor must answer `status`
NO_ANSWER = f"no answer for {2 * PATIENCE:g} s"
MAX_INLINE_BYTES = 50_000  # larger arrays are put; smaller ones are sent with the call


class _NoActor:
    """The actor of a worker without one: every call fails."""

    def call(
        self, method: str, *args: Any, queue: str, parts: int = 1
    ) -> Sequence[Future]:
        del method, args, queue
        found = [Future() for _ in range(parts)]
        for future in found:
            future.set_exception(Unreachable("it has no process"))
        return found


_NO_ACTOR = _NoActor()


class WorkerGroup:
    """The actors of one run by worker index, and the bytes sent and received."""

    def __init__(self, cluster: Cluster, actors: Sequence[RemoteActor | None]):
        """`actors` of all workers; None: the worker has no actor yet."""
        self._cluster = cluster
        self.actors = list(actors)  # a lost one is replaced by None
        # called on any thread when a call of `post` has failed
        self.on_failed: Callable[[int, RemoteActor, BaseException], None] = (
            lambda worker, actor, error: None
        )
        # indices of the leaves that a worker returns with its next reports, and
        # whether they come apart
        self.report_leaves: list[tuple[tuple[int, ...], bool]] = [
            ((), False) for _ in actors
        ]
        self.bytes_received = [0] * len(self.actors)  # from each worker
        self.bytes_sent = [0] * len(self.actors)
        self.slowdown_factors: dict[int, float] = {}  # scripted
        # by worker: a call that is sent with its next round
        self._deferred: dict[int, tuple[str, tuple[Any, ...]]] = {}

    @property
    def present(self) -> list[int]:
        """The workers that have an actor."""
        return [k for k, actor in enumerate(self.actors) if actor is not None]

    def is_current(self, worker: int, actor: RemoteActor | None) -> bool:
        """Whether this is still the worker's actor; False for None."""
        return actor is not None and self.actors[worker] is actor

    def _actor(self, worker: int) -> RemoteActor | _NoActor:
        return self.actors[worker] or _NO_ACTOR

    def call(self, worker: int, method: str, *args: Any, queue: str = STEPS) -> Future:
        """Call a method of a worker's run; a lost worker's future is Unreachable."""
        if queue == STEPS:
            self.send_deferred(worker)
        (found,) = self._actor(worker).call("call_run", method, *args, queue=queue)
        return found

    def post(self, worker: int, method: str, *args: Any, queue: str) -> None:
        """Call a method of a worker's run without waiting for it.

        Its own error is that of the worker's next report.
        """
        if queue == STEPS:
            self.send_deferred(worker)
        actor = self.actors[worker]

        def check(future: Future) -> None:
            error = future.exception()
            if error is not None and actor is not None:  # else it was lost before
                self.on_failed(worker, actor, error)

        (found,) = self._actor(worker).call("post_run", method, *args, queue=queue)
        found.add_done_callback(check)

    def defer(self, worker: int, method: str, *args: Any) -> None:
        """Like `post` between rounds, but with the next round if that comes first.

        One call of an actor costs the driver as much as a small merge.
        """
        self.send_deferred(worker)
        self._deferred[worker] = method, args

    def send_deferred(self, worker: int) -> None:
        """Send what was deferred, as another call comes first."""
        if worker in self._deferred:
            method, args = self._deferred.pop(worker)
            self.post(worker, method, *args, queue=STEPS)

    def discard_deferred(self, worker: int) -> None:
        """Discard what was deferred: the worker's replica is discarded."""
        self._deferred.pop(worker, None)

    def flush(self) -> None:
        """Send everything that was deferred."""
        for worker in list(self._deferred):
            self.send_deferred(worker)

    def run_round(self, worker: int, local_round: RoundCall) -> Sequence[Future]:
        """Start a round; return a future of its report, and one of leaves apart."""
        before = self._deferred.pop(worker, None)
        given = () if before is None else (before[0], *before[1])
        parts = 2 if local_round.leaves_apart else 1
        return self._actor(worker).call(
            "call_run", "run_round", local_round, *given, queue=STEPS, parts=parts
        )

    def end_run(self, worker: int) -> Future:
        """End a worker's run; return a future of `WorkerActor.end_run`."""
        (found,) = self._actor(worker).call("end_run", queue=HEALTH)
        return found

    def result(self, worker: int, future: Future) -> Any:
        """Wait for a result while the worker responds; otherwise raise Unreachable."""
        return wait_for_result(self._actor(worker), future)

    def results(self, asked: Mapping[int, Future]) -> dict[int, Any]:
        """Like `result`, for several workers at once; return their errors as values."""
        unresponsive = wait_for({k: (self._actor(k), f) for k, f in asked.items()})
        found: dict[int, Any] = {}
        for worker, future in asked.items():
            if worker in unresponsive:
                found[worker] = Unreachable(NO_ANSWER)
            else:
                found[worker] = future.exception() or future.result()
        return found

    def slow(self, worker: int, factor: float) -> None:
        """Make a worker's steps take `factor` times as long as at the start."""
        self.slowdown_factors[worker] = factor
        self.call(worker, "slow", factor, queue=HEALTH)

    def is_compiling(self, worker: int) -> bool:
        """Whether a worker is compiling; False for one that hangs."""
        (found,) = self._actor(worker).call("is_compiling", queue=HEALTH)
        with suppress(TimeoutError, Unreachable):
            return found.result(timeout=STATUS_TIMEOUT)
        return False

    def payload(self, arrays: Sequence[Any]) -> Any:
        """Prepare arrays for sending: large ones are put, so once per node."""
        hosted = [np.asarray(array) for array in arrays]
        small = sum(array.nbytes for array in hosted) <= MAX_INLINE_BYTES
        return hosted if small else self._cluster.put(hosted)

    def count_sent(self, worker: int, arrays: Sequence[Any]) -> None:
        """Count the bytes of arrays that are sent to a worker."""
        self.bytes_sent[worker] += sum(array.nbytes for array in arrays)

    def count_received(self, worker: int, arrays: Sequence[Any]) -> None:
        """Count the bytes of arrays that a worker has sent."""
        self.bytes_received[worker] += sum(array.nbytes for array in arrays)


def wait_for_result(actor: RemoteActor | _NoActor, future: Future) -> Any:
    """Wait for a result while the actor responds; otherwise raise Unreachable."""
    if wait_for({0: (actor, future)}):
        raise Unreachable(NO_ANSWER)
    return future.result()


def wait_for(asked: Mapping[int, tuple[RemoteActor | _NoActor, Future]]) -> set[int]:
    """Wait for the results of responding actors; return the keys of the others.

    All actors are waited for at once: several that hang take no longer than one.
    """
    if all(future.done() for _, future in asked.values()):
        return set()  # the usual case: what merges read came with the reports
    unresponsive: set[int] = set()
    while True:
        wait(
            [future for k, (_, future) in asked.items() if k not in unresponsive],
            PATIENCE,
        )
        waiting = {
            k: actor
            for k, (actor, future) in asked.items()
            if k not in unresponsive and not future.done()
        }
        if not waiting:
            return unresponsive
        status = {
            k: m.call("is_compiling", queue=HEALTH)[0] for k, m in waiting.items()
        }
        wait(status.values(), PATIENCE)
        for k, future in status.items():
            well = future.done() and not isinstance(future.exception(), Unreachable)
            if not well and not asked[k][1].done():
                unresponsive.add(k)
