"""Runs that are cut after every event, in memory, and what two runs have in common.

A cut goes through the same JSON and the same copies as one on the disk.
"""

import json

import jax
import numpy as np

from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.checkpoint.checkpoint_manager import Snapshot
from hetjax.checkpoint.values import decode
from hetjax.engine.loop import Loop
from hetjax.runtimes.openers import open_runtime


class Memory:
    """Keeps cuts in a list: one after every event, or after every n-th."""

    problem = ""

    def __init__(self, every=1, prefers_rest=False):
        self.cuts, self._every, self._asked = [], every, 0
        self.prefers_rest = prefers_rest

    def is_due(self, evals):
        self._asked += 1
        return self._asked % self._every == 0

    def begin(self, evals, *, wait):
        return Snapshot(self)

    def write(self, values, arrays):
        self.cuts.append(({k: json.dumps(v) for k, v in values.items()}, arrays))


def load(cut):
    """The values of a cut, as a new process would read them."""
    values, arrays = cut
    copies = [np.array(x) for x in arrays]  # a run may change what it is given
    return {k: decode(json.loads(v), copies) for k, v in values.items()}


def run(
    session,
    strategy,
    *,
    seed=0,
    saver=None,
    saved=None,
    on_eval=lambda point: "",
    **changes,
):
    """One run of a session; `saver`, `saved` and `on_eval` as for the loop."""
    job = session.job(strategy.name, strategy, seed)._replace(**changes)
    runtime = open_runtime(session.machine, strategy, job)
    loop = Loop(
        strategy,
        job,
        runtime,
        on_eval,
        manager=saver,
        saved=saved,
    )
    return loop.run()


def session(task, data, machine, seconds, num_evals=10, **settings):
    """A session with few evaluations."""
    return Session(
        task, data, machine, RunConfig(seconds=seconds, num_evals=num_evals, **settings)
    )


def outcome(history):
    """Everything that a run found, but for what compiling and the host cost."""
    leaves = jax.tree.leaves((history.params, history.model_state))
    return {
        "evals": history.evals,
        "workers": history.workers,
        "timeline": list(history.timeline.numbers),
        "merges": history.merges,
        "merge times": list(history.merge_times),
        "events": history.events,
        "duration": history.duration,
        "last members": history.last_members,
        "stopped": history.stopped,
        "bits": [np.asarray(x).tobytes() for x in leaves],
    }


def some(cuts, number):
    """At most so many of the cuts, evenly, with the last one."""
    return cuts[:: -max(1, len(cuts) // number)][:number]
