"""The actors of a machine, which serve all runs on it, and the values they are sent.

A data set with a recipe (a path, a generator) is loaded by every actor; any other one
is sent to each node once, except that memory maps are sent as paths.
"""

import itertools
import json
import threading
import zlib
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from hetjax.data.portable import portable
from hetjax.engine.capabilities import Unreachable
from hetjax.engine.job import Job
from hetjax.recipes import NoRecipe, recipe_of
from hetjax.runtimes.cluster.actor import MAX_STORED, ActorDevice, DataSource, Stored
from hetjax.runtimes.cluster.node_slots import Resources, Slot, platform_of
from hetjax.runtimes.cluster.worker_group import HEALTH, Cluster, RemoteActor

START_TIMEOUT = 120.0  # [s] within which an actor must start
ALIVE_TIMEOUT = 10.0  # [s] within which an actor must answer before a run

_numbers = itertools.count()


class ActorPool:
    """Actors by the names of their workers."""

    def __init__(
        self,
        cluster: Cluster,
        resources: Resources | Sequence[Resources] | None = None,
        number: int = 1,
    ):
        """Hold a connection to a cluster, and no actors yet.

        `resources` are those of `cluster_machine`; `number` distinguishes the machines
        of this process.
        """
        self.cluster, self.resources, self._number = cluster, resources, number
        self.broadcast, self.closed = Broadcast(cluster), False
        self.moved: dict[str, str] = {}  # new nodes of workers that joined or rejoined
        self._actors: dict[str, RemoteActor] = {}
        self._allocated: dict[str, tuple[str, Resources]] = {}  # node's id, resources

    @property
    def names(self) -> set[str]:
        """The names of the workers that have an actor."""
        return set(self._actors)

    def start(self, slot: Slot, name: str) -> RemoteActor:
        """Start a worker's actor; return before it is ready."""
        shown = name if self._number == 1 else f"{name} ({self._number})"
        platform = platform_of(slot.resources)
        actor = self.cluster.start(
            shown, slot.node, dict(slot.resources), name, platform
        )
        self._actors[name] = actor
        self._allocated[name] = slot.node.id, slot.resources
        return actor

    @property
    def allocated(self) -> list[tuple[str, Resources]]:
        """The node's id and the resources of every actor."""
        return [self._allocated[name] for name in list(self._actors)]

    def actors_of(self, names: Sequence[str]) -> list[RemoteActor | None]:
        """Return the actors of workers; end those that do not answer (None)."""
        asked = {
            name: self._actors[name].call("is_compiling", queue=HEALTH)[0]
            for name in names
            if name in self._actors
        }
        for name, future in asked.items():
            try:
                future.result(timeout=ALIVE_TIMEOUT)
            except (Unreachable, TimeoutError):
                self.remove(name)
        return [self._actors.get(name) for name in names]

    def remove(self, name: str, actor: RemoteActor | None = None) -> None:
        """End a worker's actor, or only the given one if the worker has another now."""
        found = self._actors.get(name)
        if actor is None or found is actor:
            self._actors.pop(name, None)
        actor = found if actor is None else actor
        if actor is not None:
            actor.kill()

    def remove_all(self) -> None:
        """End all actors."""
        for name in list(self._actors):
            self.remove(name)

    def close(self) -> None:
        """End all actors, and disconnect from the cluster."""
        self.closed = True
        self.remove_all()
        self.cluster.close()


def wait_until_started(name: str, slot: Slot, actor: RemoteActor) -> ActorDevice:
    """Wait for an actor that is starting; raise a ValueError if it does not."""
    (future,) = actor.call("describe", queue=HEALTH)
    try:
        device: ActorDevice = future.result(timeout=START_TIMEOUT)
    except TimeoutError:
        raise ValueError(
            f"the process of {name} did not start on {slot.node.name} within "
            f"{START_TIMEOUT:g} s: other programs may use the {dict(slot.resources)} "
            "that it waits for (see `ray status`)"
        ) from None
    except (Unreachable, ImportError) as error:
        raise ValueError(
            f"the process of {name} did not start on {slot.node.name}: {error}"
        ) from error
    if platform_of(slot.resources) is None and device.platform == "cpu":
        raise ValueError(
            f"{name} has {dict(slot.resources)}, but JAX finds only a CPU on "
            f"{slot.node.name}: install jax for its accelerator there (such as "
            "hetjax[cuda12])"
        )
    return device


class Broadcast:
    """Puts values into the cluster, each once, for actors that do not store them."""

    def __init__(self, cluster: Cluster):
        """Begin with nothing put."""
        self._cluster, self._lock = cluster, threading.Lock()
        self._stored: dict[Hashable, Stored] = {}  # by identity

    def share(self, identity: Hashable, make: Callable[[], Any]) -> Stored:
        """Return a value for actors; equal identities mean one value, made once."""
        with self._lock:
            if identity not in self._stored:
                value = make()
                key = f"{type(value).__name__} {next(_numbers)}"
                for old in list(self._stored)[: 1 - MAX_STORED]:
                    del self._stored[old]
                self._stored[identity] = Stored(key, self._cluster.share(value))
            return self._stored[identity]

    def data_source(
        self, job: Job, fingerprint: dict[str, Any], rows: np.ndarray | None
    ) -> DataSource:
        """Return where an actor gets the training split, or these rows of it.

        `fingerprint` is that of the data, which takes reading all of them.
        """
        seed = job.seed if job.num_held_out else None
        shard = None if rows is None else [len(rows), zlib.crc32(rows.tobytes())]
        key = json.dumps([fingerprint, seed, shard])
        try:
            recipe, shared = recipe_of(job.data), None
        except NoRecipe:
            recipe = None
            if rows is None:
                shared = self.share(key, lambda: portable(job.train)).shared
            else:  # for one actor, which keeps it
                shared = self._cluster.share(portable(job.train.take(rows)))
        return DataSource(key, rows, seed, fingerprint, recipe, shared)
