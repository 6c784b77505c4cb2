"""The actors of a machine, which serve all runs on it, and the values they are sent.

The task and the settings of a run are sent to each actor. A data set with a recipe (a
path, a generator) is loaded by every actor; any other one is sent to each node once,
except that memory maps are sent as paths. Actors store what the next run may need.
"""

import itertools
import json
import threading
import zlib
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hetjax.data.portable import portable
from hetjax.engine.capabilities import Unreachable
from hetjax.engine.job import Job
from hetjax.recipes import NoRecipe, recipe_of
from hetjax.runtimes.cluster.actor import MAX_DATA_SETS, ActorDevice
from hetjax.runtimes.cluster.node_slots import Resources, Slot, platform_of
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    STEPS,
    Cluster,
    RemoteActor,
    wait_for_result,
)

START_TIMEOUT = 120.0  # [s] within which an actor must start
ALIVE_TIMEOUT = 10.0  # [s] within which an actor must answer before a run
MAX_STORED = 16  # tasks and settings that an actor stores

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
            name: self._actors[name].call("status", queue=HEALTH)[0]
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
    """Sends values to actors, each value to an actor once while it stores it.

    An actor evicts the least recently used tasks and settings, and the oldest data
    sets. Several threads may send to different actors at the same time.
    """

    def __init__(self, cluster: Cluster):
        """Begin with nothing sent."""
        self._cluster, self._lock = cluster, threading.Lock()
        self._payloads: dict[Hashable, tuple[str, Any]] = {}  # by identity: with a key
        # the keys of the values that each live actor stores, the most recent last
        self._stored: WeakKeyDictionary[RemoteActor, list[str]] = WeakKeyDictionary()
        self._data_stored: WeakKeyDictionary[RemoteActor, list[str]] = (
            WeakKeyDictionary()
        )

    def send(self, actor: RemoteActor, value: Any, identity: Hashable) -> str:
        """Send a value to an actor; return its key. Equal identities mean one value."""
        key, payload = self._payload_of(identity, lambda: value)
        stored = self._stored.setdefault(actor, [])
        if key in stored:
            stored.remove(key)
        else:
            evicted = stored[: 1 - MAX_STORED]
            (done,) = actor.call("store", key, payload, evicted, queue=STEPS)
            wait_for_result(actor, done)
            del stored[: len(evicted)]
        stored.append(key)
        return key

    def _payload_of(self, identity: Hashable, make: Any) -> tuple[str, Any]:
        """The key and the payload of a value, which is made and put once."""
        with self._lock:
            if identity not in self._payloads:
                value = make()
                key = f"{type(value).__name__} {next(_numbers)}"
                for old in list(self._payloads)[: 1 - MAX_STORED]:
                    del self._payloads[old]
                self._payloads[identity] = key, self._cluster.put(value)
            return self._payloads[identity]

    def send_data(
        self,
        actor: RemoteActor,
        job: Job,
        fingerprint: dict[str, Any],
        rows: np.ndarray | None,
    ) -> str:
        """Let an actor have the training split, or these rows of it; return the key.

        `fingerprint` is that of the data, which takes reading all of them.
        Errors: those of the actor's reader; ValueError if it reads other data.
        """
        seed = job.seed if job.num_held_out else None
        shard = None if rows is None else [len(rows), zlib.crc32(rows.tobytes())]
        key = json.dumps([fingerprint, seed, shard])
        stored = self._data_stored.setdefault(actor, [])
        if key in stored:
            return key
        try:
            recipe = recipe_of(job.data)
            (done,) = actor.call(
                "load_data", key, recipe, fingerprint, seed, rows, queue=STEPS
            )
        except NoRecipe:
            done = self._send_split(actor, key, job, rows)
        wait_for_result(actor, done)
        stored[:] = [*stored, key][-MAX_DATA_SETS:]
        return key

    def _send_split(
        self, actor: RemoteActor, key: str, job: Job, rows: np.ndarray | None
    ) -> Future:
        if rows is not None:  # a shard is for one actor alone
            payload = self._cluster.put(portable(job.train.take(rows)))
        else:
            _, payload = self._payload_of(key, lambda: portable(job.train))
        (done,) = actor.call("receive_data", key, payload, rows, queue=STEPS)
        return done
