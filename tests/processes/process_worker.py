"""One process of a run, as a script: what it does is its first argument."""

import os
import sys
import time

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hetjax.processes import bootstrap, exchange, lifecycle


def say(*words):
    print(*words, flush=True)


def exchange_values(here):
    """Every method once or more, equal and unequal; process 1 ends before the rest."""
    for i in range(2):
        say("gather", here.gather("numbers", [i, here.index]))
    say("broadcast", here.broadcast("name", f"of {here.index}"))
    say("is first", exchange.is_first())
    here.agree({"data": "digits", "settings": "a" * 500})
    for facts in (
        {"jax version": "1", "data": "x" * 200 + ("y" if here.index == 2 else "z")},
        {"settings": str(here.index)},
    ):
        try:
            here.agree(facts)
        except ValueError as error:
            say("unequal", error)
    try:
        if here.index != 2:
            here.gather("late", 0, timeout=1)
    except exchange.NoAnswer as error:
        say("late", error)
    here.gather("after that", 0)  # process 2 waits here
    if here.index == 1:
        lifecycle.end(2, "its file is missing")
    here.gather("never", 0)


def disagree(here):
    """All end with the same error, also those that need process 0 to learn it."""
    try:
        here.agree({"data": f"of {here.index > 1}"})
    except ValueError as error:
        lifecycle.end(2, str(error))


def sum_for_ever(here):
    """Collectives, until one fails."""
    mesh = Mesh(np.array(jax.devices()), ("processes",))
    split = PartitionSpec("processes")
    add = jax.shard_map(
        lambda x: jax.lax.psum(x, "processes"),
        mesh=mesh,
        in_specs=split,
        out_specs=PartitionSpec(),
    )
    program = jax.jit(add)
    x = jax.device_put(np.ones((here.count, 100)), NamedSharding(mesh, split))
    program(x).block_until_ready()
    here.gather("ready", 0)
    say("summing", os.getpid())
    try:
        while True:
            program(x).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        lifecycle.end(1, lifecycle.blame(error))


def fail(here):
    """Process 1 ends by an exception, while the others wait for it at the exit."""
    if here.index == 1:
        raise RuntimeError("no memory left")


def mistake(here):
    """Process 1 blames another one for its own error, while they wait for it."""
    if here.index == 1:
        lifecycle.end(4, exchange.ProcessDied("another process has died"))
    here.gather("never", 0)


def joined():
    """The user has joined the processes; nothing in the environment says so."""
    address, count, index = (os.environ.pop(name) for name in bootstrap.NAMES)
    jax.distributed.initialize(address, int(count), int(index))
    here = lifecycle.initialize()
    say("place", here.index, here.count, exchange.is_first())


def linger(here):
    """Process 0 still works after the others are done, for longer than a heartbeat."""
    if here.index == 0:
        time.sleep(8)
        say("written")


if __name__ == "__main__":
    if sys.argv[1] == "joined":
        joined()
        sys.exit()
    tasks = {
        "exchange": exchange_values,
        "disagree": disagree,
        "fail": fail,
        "linger": linger,
        "mistake": mistake,
    }
    task = {**tasks, "sum": sum_for_ever}[sys.argv[1]]
    task(lifecycle.initialize(timeout=60, heartbeat=5))
