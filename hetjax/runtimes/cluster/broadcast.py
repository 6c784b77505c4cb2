"""What members must have before a run: the task, settings and data.

Data sets are loaded by every member itself, if their recipe says how (a path, a
generator); all others go to each node once, but for memory maps, of which the path
does. Neither is done again for the next run.
"""

import itertools
import json
import threading
import zlib
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from hetjax.engine.job import Job
from hetjax.recipes import NoRecipe, recipe_of
from hetjax.runtimes.cluster.actor import DATA_SETS
from hetjax.runtimes.cluster.mapped import portable
from hetjax.runtimes.cluster.remote_calls import STEPS, Cluster, RemoteActor
from hetjax.runtimes.cluster.worker_group import answer

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
