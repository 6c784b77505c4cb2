"""Asynchronous SGD whose gradients are never too old: Ringmaster (host world)."""

import math
from typing import Literal

from hetjax.arguments import Count, Positive, checked
from hetjax.machine.types import Arrival, Join, MergeAction
from hetjax.schedule.policies.given_versions import GivenVersions, Unfinished, fetch
from hetjax.schedule.types import Actions, Policy


@checked
def bounded_delay(
    *,
    batch_size: Positive,
    max_delay: Count | Literal["adaptive"] = "adaptive",
    stop: Unfinished = "cancel",
) -> Policy:
    """Each gradient is applied at once, unless R or more others were since it began.

    The delay of a worker is the number of updates since it was given its model, and R
    the `max_delay`, or with "adaptive" R = max(1, floor(sqrt j)) after update j.

        stop="ignore"   a gradient of delay R or more is dropped when it arrives
        stop="cancel"   after an update, every other worker whose delay has become R is
                        cancelled

    In both cases the worker takes the present model and begins again. With an R that is
    never reached this is asynchronous SGD. Source: Ringmaster ASGD (arXiv:2501.16168),
    Algorithms 4 and 5; docs/algorithms L.6.
    """

    def init(infos, num_examples):
        versions = GivenVersions.of("bounded_delay", infos)
        workers = sorted(versions.roster.active)
        return versions.begin_anew((), tuple(workers), (), batch_size)

    def react(versions, event):
        versions = versions.after(event)
        match event:
            case Arrival(worker=k) if versions.delay(k) < bound(versions.updates):
                return apply(versions, k)
            case Arrival(worker=k):
                merges = (fetch((k,)),) if k in versions.roster.active else ()
                return versions.begin_anew(merges, (k,), (), batch_size)
            case Join(worker=k) if k not in versions.roster.working:
                return versions.begin_anew((), (k,), (), batch_size)
        return versions, Actions()

    def bound(updates):
        return max(1, math.isqrt(updates)) if max_delay == "adaptive" else max_delay

    def apply(versions, k):
        """Apply the gradient of worker k; cancel those that have become too old."""
        versions = versions._replace(updates=versions.updates + 1)
        old = ()
        if stop == "cancel":
            limit = bound(versions.updates)
            working = sorted(versions.roster.working)
            old = tuple(w for w in working if versions.delay(w) >= limit)
        return versions.begin_anew((MergeAction((k,)),), (k,), old, batch_size)

    return Policy(init, react)
