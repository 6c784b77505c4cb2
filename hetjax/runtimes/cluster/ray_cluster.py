"""The cluster as Ray implements it: nodes, actors, objects. Nothing else imports Ray.

`RayCluster` and `RayActor` implement the protocols of `worker_group`. The calls of a
run, and the reports of its rounds, travel as bytes: Ray serializes each argument in
Python, which takes the driver several times as long as pickling all of them.
"""

import os
import pickle
import re
import socket
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hetjax.engine.capabilities import Unreachable
from hetjax.runtimes.cluster.actor import WorkerActor
from hetjax.runtimes.cluster.actor_run import RoundReport
from hetjax.runtimes.cluster.node_slots import ClusterNode
from hetjax.runtimes.cluster.worker_group import HEALTH, REPLICA, STEPS

# otherwise Ray warns about a future change for workers that request no GPUs
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
try:
    import ray
    from ray import exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:
    raise ImportError(
        "workers on a cluster need Ray: pip install 'hetjax[cluster]'"
    ) from error

_QUEUES = {STEPS: 1, REPLICA: 1, HEALTH: 1}  # threads of each
_OF_RUNS = ("call_run", "post_run")  # methods whose first argument is a run's method
# raised for an argument that an actor cannot unpickle
_MISSING_MODULE = re.compile("No module named '([^']+)'")
_MISSING_MODULE_ERROR = (
    "the cluster's processes have no module {!r}: install it on every node, or "
    "call ray.init(address, runtime_env={{'working_dir': '.'}}) before "
    "cluster_machine()"
)
# Ray's reason also if it cannot connect back to the driver, which owns the actors
_REFERENCES_REMOVED = "all references to the actor were removed"
_NO_CALLBACK = (
    "the cluster cannot connect back to this process: there may be a firewall, or this "
    "process may have used Ray with another RAY_AUTH_MODE or token before; restart it"
)
MAX_REASON = 240  # characters of Ray's reason for the end of an actor
CONNECT_TIMEOUT = 5.0  # [s] within which a cluster must answer


_users: set[int] = set()  # objects that use this process's connection
_connected_here = False  # whether `connect` made the connection, not the user


class RayCluster:
    """This process's connection to a Ray cluster; `connect` makes it."""

    def __init__(self):
        """Use the connection of this process, which must exist."""
        self._open = True
        _users.add(id(self))
        self._actor: Any = ray.remote(concurrency_groups=_QUEUES)(RayWorkerActor)  # pyright: ignore[reportCallIssue]

    def nodes(self) -> list[ClusterNode]:
        """The live nodes, the driver's first, then by name and id."""
        own = ray.get_runtime_context().get_node_id()
        found = [
            ClusterNode(
                n["NodeID"],
                n["NodeManagerHostname"],
                n["Resources"],
                n["NodeID"] == own,
            )
            for n in ray.nodes()
            if n["Alive"]
        ]
        return sorted(found, key=lambda n: (not n.is_driver, n.name, n.id))

    def start(
        self, name: str, node: ClusterNode, resources: dict[str, float], *settings: Any
    ) -> "RayActor":
        """Start an actor, which ends with this process; `name` is for dashboards."""
        rest = {k: v for k, v in resources.items() if k not in ("CPU", "GPU")}
        actor = self._actor.options(
            name=f"hetjax {name}",
            num_cpus=resources.get("CPU", 0),
            num_gpus=resources.get("GPU", 0),
            resources=rest,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            max_restarts=0,
            max_task_retries=0,
        ).remote(*settings)
        return RayActor(actor, node)

    def put(self, value: Any) -> Any:
        """Put a value into the object store, from which each node fetches it once.

        Errors: ValueError if it cannot be pickled, shorter than Ray's own error.
        """
        try:
            return ray.put(value)
        except TypeError as error:
            raise ValueError(
                f"a {type(value).__name__} cannot be sent to the workers: "
                f"{error.__cause__ or error}; tasks, strategies and data must be "
                "picklable, including the globals that their functions use"
            ) from None

    def share(self, value: Any) -> "RayValue":
        """Put a value that actors fetch if they need it. Errors: as of `put`."""
        return RayValue(self.put(value))

    def close(self) -> None:
        """Disconnect if `connect` connected this process and no other object needs it.

        This ends a cluster that `connect` started.
        """
        global _connected_here
        if not self._open:
            return
        self._open = False
        _users.discard(id(self))
        if _connected_here and not _users:
            _connected_here = False
            ray.shutdown()


class RayValue(NamedTuple):
    """A reference that arrives as it is, and not as its value."""

    reference: Any

    def get(self) -> Any:
        """Return the value."""
        return ray.get(self.reference)


class PackedCall(NamedTuple):
    """A call whose payloads are sent beside it: Ray fetches their values."""

    method: str
    args: list[Any]  # the others
    places: list[int]  # of the payloads among the arguments, in ascending order

    @classmethod
    def of(cls, method: str, args: Sequence[Any]) -> tuple[bytes, list[Any]]:
        """Return the pickled call, and the payloads among its arguments."""
        places = [i for i, arg in enumerate(args) if isinstance(arg, ray.ObjectRef)]
        rest = [arg for arg in args if not isinstance(arg, ray.ObjectRef)]
        packed = pickle.dumps(cls(method, rest, places), pickle.HIGHEST_PROTOCOL)
        return packed, [args[i] for i in places]


class RayWorkerActor(WorkerActor):
    """An actor that unpacks calls, and packs reports."""

    def call_packed(self, packed: bytes, *payloads: Any) -> Any:
        """Carry out a `PackedCall`, given the values of its payloads."""
        call: PackedCall = pickle.loads(packed)
        for place, value in zip(call.places, payloads, strict=True):
            call.args.insert(place, value)
        found = getattr(self, call.method)(*call.args)
        if isinstance(found, RoundReport):
            return _packed(found)
        if isinstance(found, tuple) and found and isinstance(found[0], RoundReport):
            return _packed(found[0]), *found[1:]
        return found


def _packed(report: RoundReport) -> bytes:
    return pickle.dumps(report, pickle.HIGHEST_PROTOCOL)


class RayActor:
    """The driver's handle of an actor."""

    def __init__(self, actor: Any, node: ClusterNode):
        """Wrap Ray's handle; the actor may still be starting."""
        self._actor, self.node = actor, node
        # functions that call the actor, by (method, queue, parts, shown name)
        self._remote: dict[tuple[str, str, int, str], Any] = {}

    def call(
        self, method: str, *args: Any, queue: str, parts: int = 1
    ) -> Sequence[Future]:
        """Call a method of the actor; return a future for each part of its result."""
        shown, given = method, args
        if method in _OF_RUNS:
            shown = args[0]  # in Ray's dashboard
            packed, payloads = PackedCall.of(method, args)
            method, given = "call_packed", (packed, *payloads)
        key = method, queue, parts, shown
        if key not in self._remote:
            options = {"concurrency_group": queue, "num_returns": parts, "name": shown}
            self._remote[key] = getattr(self._actor, method).options(**options).remote
        found = self._remote[key](*given)
        futures = []
        for reference in found if parts > 1 else [found]:
            future: Future = Future()
            future.set_running_or_notify_cancel()
            reference.future().add_done_callback(partial(_forward, future))
            futures.append(future)
        return futures

    def kill(self) -> None:
        """End the actor's process, if the cluster can still be reached."""
        with suppress(Exception):  # Ray's, if the cluster does not answer
            if ray.is_initialized():
                ray.kill(self._actor)


def _forward(to: Future, ended: Future) -> None:
    """Forward a result or an error; Ray's error of a dead actor becomes Unreachable."""
    error = ended.exception()
    if error is None:
        found = ended.result()  # bytes are a packed report: no method returns others
        to.set_result(pickle.loads(found) if isinstance(found, bytes) else found)
    elif module := _MISSING_MODULE.search(str(error)):
        to.set_exception(ModuleNotFoundError(_MISSING_MODULE_ERROR.format(module[1])))
    elif isinstance(error, exceptions.RayTaskError):  # raised by the method
        to.set_exception(error.cause or error)
    elif isinstance(error, exceptions.RayError):
        to.set_exception(Unreachable(_short_reason(error)))
    else:
        to.set_exception(error)


def _short_reason(error: BaseException) -> str:
    """Why an actor ended: the first sentence of Ray's long message."""
    text = " ".join(str(error).split()) or type(error).__name__
    if _REFERENCES_REMOVED in text:
        return _NO_CALLBACK
    _, because, why = text.partition(" because ")
    return (why if because else text).partition(". ")[0][:MAX_REASON]


def connect(address: str, local_workers: int | None) -> RayCluster:
    """Connect to a running cluster, or start one of `local_workers` CPUs here.

    Errors: ValueError if there is none, or if this process is connected to another.
    """
    if local_workers is not None and address != "auto":
        raise ValueError(
            f"address={address!r} and local_workers={local_workers}: pass the address "
            "of a running cluster, or local_workers to start one here, not both"
        )
    if ray.is_initialized():
        if local_workers is not None or address not in ("auto", _own_address()):
            raise ValueError(
                f"this process is already connected to the cluster at "
                f"{_own_address()}: close() the machine that uses it (or call "
                'ray.shutdown()), or use cluster_machine(address="auto")'
            )
        return RayCluster()
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
    if local_workers is not None:
        with warnings.catch_warnings():
            # JAX warns about forks in a process with threads; Ray's forks execute
            # another program at once
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            ray.init("local", num_cpus=local_workers, **settings)
    else:
        found = running_address() if address == "auto" else address
        _check_reachable(found, address)
        ray.init(found, **settings)
    global _connected_here
    _connected_here = True
    return RayCluster()


def running_address() -> str:
    """The address of this machine's cluster: RAY_ADDRESS, or as Ray wrote it to a file.

    The file outlives a cluster that dies: for one that does not answer, `ray.init`
    waits two minutes, and then ends the process.
    """
    given = os.environ.get("RAY_ADDRESS", "auto")
    if given != "auto":
        return given
    folder = os.environ.get("RAY_TMPDIR", tempfile.gettempdir())
    noted = Path(folder) / "ray" / "ray_current_cluster"
    if not noted.exists():
        raise ValueError(
            "no Ray cluster is running on this machine: start one (ray start --head), "
            "or pass its address, or local_workers=3 to start one here"
        )
    return noted.read_text(encoding="utf-8").strip()


def _check_reachable(found: str, given: str) -> None:
    """Raise a ValueError unless a process listens at an address."""
    host, colon, port = found.removeprefix("ray://").rpartition(":")
    if found.startswith("ray://"):
        raise ValueError(
            f"address={given!r}: a run cannot be driven through Ray's client; start "
            "the script on a node of the cluster"
        )
    if not colon or not port.isdigit():
        raise ValueError(f"address={found!r}: must be host:port, as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        noted = " (from Ray's file; the cluster may have died)" * (given == "auto")
        raise ValueError(
            f"no Ray cluster answers at {found}{noted}: {error}; start one (ray start "
            "--head), or pass local_workers=3 to start one here"
        ) from None


def _own_address() -> str:
    return ray.get_runtime_context().gcs_address
