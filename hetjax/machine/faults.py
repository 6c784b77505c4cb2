"""Scripted faults: workers that are killed, slow down or join at fixed times."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hetjax.arguments import NotNegative, Positive, checked

AS_SCRIPTED = "as scripted"  # the reason of a worker event that a script caused


@checked
@dataclass(frozen=True)
class ScriptedFault:
    """A fault of a worker at a fixed time of the run.

    "kill": the worker is lost, together with its unmerged updates. "slow": its steps
    take `factor` times as long from then on; a factor of 1 ends that. "join": it takes
    part from then on; a worker that was not killed before is inactive until then.
    """

    seconds: NotNegative
    what: Literal["kill", "slow", "join"]
    worker: str  # the worker's name
    factor: Positive = 1.0


def absent_at_first(faults: Sequence[ScriptedFault]) -> set[str]:
    """Return the names of workers whose first fault other than "slow" is "join"."""
    first: dict[str, str] = {}
    for fault in sorted(faults, key=lambda f: f.seconds):
        if fault.what != "slow":
            first.setdefault(fault.worker, fault.what)
    return {worker for worker, what in first.items() if what == "join"}


def check_faults(faults: Sequence[ScriptedFault], names: Sequence[str]) -> None:
    """Raise for a fault of an unknown worker, or if no worker is active at first."""
    every = set(names)  # there may be very many faults
    for fault in faults:
        if fault.worker not in every:
            known = ", ".join(names[:8])
            raise ValueError(
                f"a fault names {fault.worker!r}, but there is no such worker; "
                f"the workers are {known}"
            )
    if absent_at_first(faults) >= every:
        raise ValueError(
            "no worker is active when the run begins: at least one must not have a "
            '"join" as its first fault'
        )
