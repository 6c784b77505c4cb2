"""A cluster of this process: actors are objects, and threads carry the calls.

Runs on it go through everything but Ray, in a fraction of the time; its nodes and
actors die, hang and join when a test says so.
"""

import pickle
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial

import numpy as np

from hetjax.engine.capabilities import Unreachable
from hetjax.runtimes.cluster.actor import WorkerActor
from hetjax.runtimes.cluster.cluster_machine import make_machine
from hetjax.runtimes.cluster.node_slots import ClusterNode
from hetjax.runtimes.cluster.worker_group import HEALTH, REPLICA, STEPS


class Payload:
    """A value that was put; its arrays are read-only, like Ray's."""

    def __init__(self, value):
        self.value = value


def _opened(value):
    return value.value if isinstance(value, Payload) else value


class InProcessCluster:
    """Nodes of one CPU each, unless other resources are given."""

    def __init__(self, *nodes):
        self._nodes = [
            ClusterNode(f"id of {name}", name, {"CPU": 1.0}, number == 0)
            for number, name in enumerate(nodes)
        ]
        self.actors = []
        self.puts = 0  # number of calls
        self.closed = False

    def nodes(self):
        return list(self._nodes)

    def join(self, name):
        """A node joins."""
        self._nodes.append(ClusterNode(f"id of {name}", name, {"CPU": 1.0}))

    def leave(self, name):
        """A node dies, with all its actors."""
        self._nodes = [n for n in self._nodes if n.name != name]
        for actor in self.actors:
            if actor.node.name == name:
                actor.kill()

    def start(self, name, node, resources, *settings):
        del name, resources
        actor = InProcessActor(node, partial(WorkerActor, *settings))
        self.actors.append(actor)
        return actor

    def put(self, value):
        self.puts += 1
        if isinstance(value, list):
            value = [_read_only(array) for array in value]
        return Payload(value)

    def share(self, value):
        return SharedInProcess(_pickled(value))

    def close(self):
        self.closed = True


class SharedInProcess:
    """A value that actors fetch; all share tasks, so that they are compiled once."""

    def __init__(self, pickled):
        self._pickled = pickled

    def get(self):
        return _copied_once(self._pickled)


def _read_only(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


class InProcessActor:
    """A actor that can be killed, or made to hang."""

    def __init__(self, node, make):
        self.node = node
        self._queues = {
            q: ThreadPoolExecutor(1, f"hetjax {node.name} {q}")
            for q in (STEPS, REPLICA, HEALTH)
        }
        self._open = {}  # futures of waiting calls
        self._dead = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self.calls = []  # (method, bytes of its arguments) of every call
        self._actor = self._queues[STEPS].submit(make)

    def call(self, method, *args, queue, parts=1):
        futures = [Future() for _ in range(parts)]
        self.calls.append((method, *args[:1]))
        # arguments must be picklable: a process would get a copy
        args = [
            a if isinstance(a, Payload) else pickle.loads(_pickled(a)) for a in args
        ]
        self._open[id(futures)] = futures
        if self._dead.is_set():
            self._end(futures, Unreachable("it was killed"))
            return futures
        self._queues[queue].submit(self._do, futures, method, args)
        return futures

    def _do(self, futures, method, args):
        self._running.wait()
        try:
            found = getattr(self._actor.result(), method)(*map(_opened, args))
        except BaseException as error:
            self._end(futures, error)
            return
        parts = [found] if len(futures) == 1 else found
        if self._open.pop(id(futures), None) is not None:
            for future, part in zip(futures, parts, strict=True):
                future.set_result(part)

    def _end(self, futures, error):
        if self._open.pop(id(futures), None) is not None:
            for future in futures:
                future.set_exception(error)

    def hang(self):
        """Answer nothing until `resume`."""
        self._running.clear()

    def wait(self):
        """Wait until `resume`, like a step that hangs."""
        self._running.wait(60.0)

    def resume(self):
        self._running.set()

    def kill(self):
        """Fail all waiting calls, and all later ones."""
        self._dead.set()
        for futures in list(self._open.values()):
            self._end(futures, Unreachable("it was killed"))
        self._running.set()


_copied_once = cache(pickle.loads)


def _pickled(value):
    import cloudpickle  # as Ray does

    return cloudpickle.dumps(value)


def three_actors(*nodes, **settings):
    """A machine of three actors in this process, the last of which is slow."""
    cluster = InProcessCluster(*(nodes or ("a", "b", "c")))
    settings = {"slowdown": (1, 1, 2), "step_mode": "dispatch", **settings}
    return cluster, make_machine(cluster, **settings)
