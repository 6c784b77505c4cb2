"""Ray as the carrier of calls: nodes, actors and objects. Nothing else imports Ray."""

import os
import re
import socket
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hetjax.engine.protocols import Unreachable
from hetjax.runtimes.cluster.actor import WorkerActor
from hetjax.runtimes.cluster.node_slots import ClusterNode
from hetjax.runtimes.cluster.worker_group import HEALTH, REPLICA, STEPS

# else Ray warns of what it will do with the GPUs of workers that asked for none
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
# of an argument that a member cannot read
_NOT_THERE = re.compile("No module named '([^']+)'")
_NO_MODULE = (
    "the processes of the cluster have no module {!r}: install it on every node, or "
    "call ray.init(address, runtime_env={{'working_dir': '.'}}) before "
    "cluster_machine()"
)
# Ray says this also where it cannot call back the driver, which holds the actors
_NOT_HELD = "all references to the actor were removed"
_NO_WAY_BACK = (
    "the cluster cannot call this process back: is there a firewall, or was Ray used "
    "in it with another RAY_AUTH_MODE or token before? Restart this process"
)
WHY = 240  # letters of what Ray says of an actor that is gone
ANSWERS = 5.0  # [s] in which a cluster answers


_users: set[int] = set()  # objects that use this process's connection
_connected_here = False  # by `connect`, and not by the user


class RayCluster:
    """A connection to a running cluster of Ray, or to one that was started for it."""

    def __init__(self):
        """This process is connected."""
        self._open = True
        _users.add(id(self))
        self._actor: Any = ray.remote(concurrency_groups=_QUEUES)(WorkerActor)  # pyright: ignore[reportCallIssue]

    def nodes(self) -> list[ClusterNode]:
        """The nodes that are alive, the driver's first, then by name and number."""
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
        """Start an actor, which ends with this process; the name is Ray's."""
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
        """Put a value into the object store: each node fetches it once.

        Errors: ValueError for what cannot be pickled; Ray's own tells that at length.
        """
        try:
            return ray.put(value)
        except TypeError as error:
            raise ValueError(
                f"a {type(value).__name__} cannot be sent to the workers: "
                f"{error.__cause__ or error}; what a run is made of must be picklable, "
                "with the globals that its functions use"
            ) from None

    def close(self) -> None:
        """Disconnect, if it was connected here and nobody else needs it.

        This ends a cluster that was started here.
        """
        global _connected_here
        if not self._open:
            return
        self._open = False
        _users.discard(id(self))
        if _connected_here and not _users:
            _connected_here = False
            ray.shutdown()


class RayActor:
    """An actor, as the driver calls it."""

    def __init__(self, actor: Any, node: ClusterNode):
        """The actor may still be about to start."""
        self._actor, self.node = actor, node

    def call(
        self, method: str, *args: Any, queue: str, label: str = "", parts: int = 1
    ) -> Sequence[Future]:
        """Call a method of the actor; a future for each part of what it returns."""
        found = (
            getattr(self._actor, method)
            .options(concurrency_group=queue, num_returns=parts, name=label or method)
            .remote(*args)
        )
        futures = []
        for reference in found if parts > 1 else [found]:
            future: Future = Future()
            future.set_running_or_notify_cancel()
            reference.future().add_done_callback(partial(_pass_on, future))
            futures.append(future)
        return futures

    def kill(self) -> None:
        """End the actor's process, if there is still a way to it."""
        with suppress(Exception):  # Ray's own, of a cluster that does not answer
            if ray.is_initialized():
                ray.kill(self._actor)


def _pass_on(to: Future, ended: Future) -> None:
    """Pass a result on; what Ray raises of an actor that is gone is Unreachable."""
    error = ended.exception()
    if error is None:
        to.set_result(ended.result())
    elif module := _NOT_THERE.search(str(error)):
        to.set_exception(ModuleNotFoundError(_NO_MODULE.format(module[1])))
    elif isinstance(error, exceptions.RayTaskError):  # raised by the method
        to.set_exception(error.cause or error)
    elif isinstance(error, exceptions.RayError):
        to.set_exception(Unreachable(_in_short(error)))
    else:
        to.set_exception(error)


def _in_short(error: BaseException) -> str:
    """What happened to an actor: Ray's first sentence, of a page with its numbers."""
    text = " ".join(str(error).split()) or type(error).__name__
    if _NOT_HELD in text:
        return _NO_WAY_BACK
    _, because, why = text.partition(" because ")
    return (why if because else text).partition(". ")[0][:WHY]


def connect(address: str, local_workers: int | None) -> RayCluster:
    """Connect to a running cluster, or start one with so many CPUs on this machine.

    Errors: ValueError if there is none, or this process is in another one.
    """
    if local_workers is not None and address != "auto":
        raise ValueError(
            f"address={address!r} and local_workers={local_workers}: give the address "
            "of a running cluster, or the workers of one to be started here"
        )
    if ray.is_initialized():
        if local_workers is not None or address not in ("auto", _own_address()):
            raise ValueError(
                f"this process is connected to the cluster at {_own_address()}: "
                "close() the machine that has it (or call ray.shutdown()), or take "
                'cluster_machine(address="auto")'
            )
        return RayCluster()
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "WARNING"}
    if local_workers is not None:
        with warnings.catch_warnings():
            # JAX warns of a fork in a process with threads; what Ray forks becomes
            # another program at once
            warnings.filterwarnings("ignore", r"os\.fork\(\)", RuntimeWarning)
            ray.init("local", num_cpus=local_workers, **settings)
    else:
        found = running() if address == "auto" else address
        _check_answers(found, address)
        ray.init(found, **settings)
    global _connected_here
    _connected_here = True
    return RayCluster()


def running() -> str:
    """The address of the cluster of this machine.

    Ray notes it in a file, which stays when a cluster dies; `ray.init` trusts it.
    """
    given = os.environ.get("RAY_ADDRESS", "auto")
    if given != "auto":
        return given
    folder = os.environ.get("RAY_TMPDIR", tempfile.gettempdir())
    noted = Path(folder) / "ray" / "ray_current_cluster"
    if not noted.exists():
        raise ValueError(
            "no Ray cluster is running on this machine: start one (ray start --head), "
            "give the address of one, or local_workers=3 for one that is started here"
        )
    return noted.read_text(encoding="utf-8").strip()


def _check_answers(found: str, given: str) -> None:
    """Raise a ValueError unless something listens at an address."""
    host, colon, port = found.removeprefix("ray://").rpartition(":")
    if found.startswith("ray://"):
        raise ValueError(
            f"address={given!r}: Ray's client cannot drive a run; start the script on "
            "a node of the cluster"
        )
    if not colon or not port.isdigit():
        raise ValueError(f"address={found!r}: give host:port, as 10.0.0.1:6379")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()
    except OSError as error:
        noted = " (noted by Ray, of a cluster that has died?)" * (given == "auto")
        raise ValueError(
            f"no Ray cluster answers at {found}{noted}: {error}; start one (ray start "
            "--head), or give local_workers=3 for one that is started here"
        ) from None


def _own_address() -> str:
    return ray.get_runtime_context().gcs_address
