"""A small run in a folder, and what happens to it: signals, a full disk."""

import os
import re
import signal
import threading
from functools import cache

from tiny_problems import PROBLEMS, three_workers
from zoo import make

import hetjax as hj

RUN = {"seconds": 0.2, "num_evals": 10, "progress": False}


@cache
def problem():
    return PROBLEMS["perceptron"]()


strategy = cache(make)


def train(folder=None, name="easgd", *, learning_rate=0.1, **more):
    p = problem()
    given = {"machine": three_workers(), "task": p.task, "data": p.data, **RUN, **more}
    made = strategy(name, 6, learning_rate)
    return hj.train(strategy=made, checkpoint=folder, **given)


def at(number, do):
    """A callback that calls `do()` at its n-th call."""
    calls = []

    def on_eval(point):
        calls.append(point)
        if len(calls) == number:
            do()

    return on_eval


def send(name):
    return lambda: os.kill(os.getpid(), getattr(signal, name))


def numbers(folder):
    """Of the checkpoints, as text, rising."""
    found = [re.match(r"checkpoint-(\d+)", p.name) for p in folder.iterdir()]
    return sorted(match[1] for match in found if match)


def path_of(folder, number):
    return folder / f"checkpoint-{number}.npz"


def full(*arguments):
    raise OSError(28, "No space left on device")


def wait_for_writers():
    """Wait until the checkpoint that is being written is there, or has failed."""
    for thread in threading.enumerate():
        # not those on which a run computes, if its rounds are slow
        if thread.name.startswith("hetjax ") and "hetjax pool" not in thread.name:
            thread.join()
