"""The members of a machine: started once, for all runs on it."""

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
from hetjax.engine.job import Job
from hetjax.engine.protocols import Unreachable
from hetjax.recipes import NoRecipe, recipe_of
from hetjax.runtimes.cluster.actor import DATA_SETS, ActorDevice
from hetjax.runtimes.cluster.node_slots import Resources, Slot, platform_of
from hetjax.runtimes.cluster.worker_group import (
    HEALTH,
    STEPS,
    Cluster,
    RemoteActor,
    answer,
)

ALIVE = 10.0  # [s] in which a member answers before a run, or gets no part in it


class ActorPool:
    """Members by the names of their workers."""

    def __init__(
        self,
        cluster: Cluster,
        resources: Resources | Sequence[Resources] | None = None,
        number: int = 1,
    ):
        """A connection to a cluster, without members.

        `resources` are those of `cluster_machine`; `number` tells the machines of this
        process apart.
        """
        self.cluster, self.resources, self._number = cluster, resources, number
        self.delivery, self.closed = Broadcast(cluster), False
        self.moved: dict[str, str] = {}  # nodes of workers that came back, or joined
        self._members: dict[str, RemoteActor] = {}
        self._taken: dict[str, tuple[str, Resources]] = {}  # node and what it gave

    @property
    def names(self) -> set[str]:
        """The workers that have a member."""
        return set(self._members)

    def start(self, place: Slot, name: str) -> RemoteActor:
        """Start a worker's member, which may take a while."""
        shown = name if self._number == 1 else f"{name} ({self._number})"
        platform = platform_of(place.resources)
        member = self.cluster.start(
            shown, place.node, dict(place.resources), name, platform
        )
        self._members[name] = member
        self._taken[name] = place.node.id, place.resources
        return member

    @property
    def taken(self) -> list[tuple[str, Resources]]:
        """The nodes' ids of all members, and what they take there."""
        return [self._taken[name] for name in list(self._members)]

    def members_of(self, names: Sequence[str]) -> list[RemoteActor | None]:
        """The members of workers; None for those that do not answer."""
        asked = {
            name: self._members[name].call("status", queue=HEALTH)[0]
            for name in names
            if name in self._members
        }
        for name, future in asked.items():
            try:
                future.result(timeout=ALIVE)
            except (Unreachable, TimeoutError):
                self.remove(name)
        return [self._members.get(name) for name in names]

    def remove(self, name: str, member: RemoteActor | None = None) -> None:
        """A worker's member is gone, or does not answer: end it.

        If the worker has another one by now than the given one, only that one ends.
        """
        found = self._members.get(name)
        if member is None or found is member:
            self._members.pop(name, None)
        member = found if member is None else member
        if member is not None:
            member.kill()

    def remove_all(self) -> None:
        """End all members."""
        for name in list(self._members):
            self.remove(name)

    def close(self) -> None:
        """End all members, and leave the cluster."""
        self.closed = True
        self.remove_all()
        self.cluster.close()


START = 120.0  # [s] in which a member must have started


def about_of(name: str, place: Slot, member: RemoteActor) -> ActorDevice:
    """Wait for a member that was started; a ValueError says why it was not."""
    (future,) = member.call("about", queue=HEALTH)
    try:
        about: ActorDevice = future.result(timeout=START)
    except TimeoutError:
        raise ValueError(
            f"the process of {name} did not start on {place.node.name} within "
            f"{START:g} s: other programs may have the {dict(place.resources)} that it "
            "waits for (`ray status` tells)"
        ) from None
    except (Unreachable, ImportError) as error:
        raise ValueError(
            f"the process of {name} did not start on {place.node.name}: {error}"
        ) from error
    if platform_of(place.resources) is None and about.platform == "cpu":
        raise ValueError(
            f"{name} was given {dict(place.resources)}, but JAX finds only a CPU on "
            f"{place.node.name}: install jax for its accelerator there (such as "
            "hetjax[cuda12])"
        )
    return about


_numbers = itertools.count()
THINGS = 16  # tasks and settings that a member keeps


class Broadcast:
    """Gives things to members, each once; kept as long as the members.

    Of tasks and settings a member forgets those that were given longest ago, of data
    sets those that came first. Several threads may give to different members at the
    same time.
    """

    def __init__(self, cluster: Cluster):
        """Nothing was given yet."""
        self._cluster, self._lock = cluster, threading.Lock()
        self._parcels: dict[Hashable, tuple[str, Any]] = {}  # by identity, with a key
        # keys by member, as long as there is one: the last given is the last
        self._had: WeakKeyDictionary[RemoteActor, list[str]] = WeakKeyDictionary()
        self._data_had: WeakKeyDictionary[RemoteActor, list[str]] = WeakKeyDictionary()

    def give(self, member: RemoteActor, thing: Any, identity: Hashable) -> str:
        """Give a thing to a member; return its key. Equal identities are one thing."""
        key, parcel = self._parcel_of(identity, lambda: thing)
        had = self._had.setdefault(member, [])
        if key in had:
            had.remove(key)
        else:
            forgotten = had[: 1 - THINGS]
            (known,) = member.call("learn", key, parcel, forgotten, queue=STEPS)
            answer(member, known)
            del had[: len(forgotten)]
        had.append(key)
        return key

    def _parcel_of(self, identity: Hashable, make: Any) -> tuple[str, Any]:
        """The key and the parcel of a thing, which is made and put once."""
        with self._lock:
            if identity not in self._parcels:
                thing = make()
                key = f"{type(thing).__name__} {next(_numbers)}"
                for old in list(self._parcels)[: 1 - THINGS]:
                    del self._parcels[old]
                self._parcels[identity] = key, self._cluster.put(thing)
            return self._parcels[identity]

    def give_data(
        self,
        member: RemoteActor,
        job: Job,
        about: dict[str, Any],
        rows: np.ndarray | None,
    ) -> str:
        """Give the training split, or these rows of it; return the key.

        `about` is the fingerprint of the data, for which they are read as a whole.
        Errors: whatever the member's reader raises; ValueError for other data.
        """
        seed = job.seed if job.num_held_out else None
        shard = None if rows is None else [len(rows), zlib.crc32(rows.tobytes())]
        key = json.dumps([about, seed, shard])
        had = self._data_had.setdefault(member, [])
        if key in had:
            return key
        try:
            recipe = recipe_of(job.data)
            (there,) = member.call("load", key, recipe, about, seed, rows, queue=STEPS)
        except NoRecipe:
            there = self._send(member, key, job, rows)
        answer(member, there)
        had[:] = [*had, key][-DATA_SETS:]
        return key

    def _send(
        self, member: RemoteActor, key: str, job: Job, rows: np.ndarray | None
    ) -> Future:
        if rows is not None:  # a shard is for one member: nobody else gets it
            parcel = self._cluster.put(portable(job.train.take(rows)))
        else:
            _, parcel = self._parcel_of(key, lambda: portable(job.train))
        (there,) = member.call("receive", key, parcel, rows, queue=STEPS)
        return there
