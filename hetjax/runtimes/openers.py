"""Open the runtime of a machine by the machine's type.

A custom machine is any object with a method `open_runtime(strategy, job)` that returns
a `hetjax.engine.protocols.Runtime`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from hetjax.engine.job import Job
from hetjax.engine.protocols import Runtime
from hetjax.machine import Machine
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.cluster.open_cluster import open_cluster
from hetjax.runtimes.mesh.mesh_layout import check_fits, misfit
from hetjax.runtimes.mesh.open_mesh import open_mesh
from hetjax.runtimes.recorded import open_recorded
from hetjax.runtimes.simulated import open_simulated
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.runtimes.threads.open_threads import open_threads
from hetjax.strategies.types import Strategy
from hetjax.tracing.trace import Trace


class CustomMachine(Protocol):
    """A machine of the user's own, which opens its runtime itself."""

    def open_runtime(self, strategy: Strategy, job: Job) -> Runtime:
        """Return the prepared runtime of a run."""
        ...

    def record(self) -> dict[str, Any]:
        """Return a description of the machine for the records of a comparison."""
        ...


def open_real(machine: LocalMachine, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of real workers, as the machine's `placement` says."""
    if machine.placement == "mesh":
        return open_mesh(machine, strategy, job)
    if machine.placement == "threads":
        return open_threads(machine, strategy, job)
    why = misfit(machine, strategy, recorded=job.trace is not None)
    if why and jax.process_count() > 1:
        raise ValueError(
            f"{job.name} cannot be placed on the mesh of all processes: {why}; use "
            "another strategy, or one process"
        )
    if why:
        opened = open_threads(machine, strategy, job)
        return _noted(opened, f"since {why}")
    opened = open_mesh(machine, strategy, job)
    return _noted(opened, "since devices and rounds are alike")


def _noted(runtime: Runtime, why: str) -> Runtime:
    """Add the reason of a placement to its note."""
    placement = f"{runtime.notes['placement']}, {why}"
    return runtime._replace(notes={**runtime.notes, "placement": placement})


_OPENERS: dict[type, Any] = {
    Machine: open_simulated,
    LocalMachine: open_real,
    ClusterMachine: open_cluster,
    Trace: open_recorded,
}


def open_runtime(machine: Any, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a machine for this strategy and job.

    Errors: ValueError for a strategy, data or settings that do not fit the machine.
    """
    custom = getattr(machine, "open_runtime", None)
    if custom is not None:
        return custom(strategy, job)
    return _OPENERS[type(machine)](machine, strategy, job)


def check_machine(machine: Any) -> None:
    """Raise a ValueError unless this is a machine."""
    if type(machine) not in _OPENERS and not hasattr(machine, "open_runtime"):
        shown = repr(machine).partition("\n")[0]
        raise ValueError(
            f"machine is {shown}: pass a Machine, such as machine.preset(...), or "
            "local_machine()"
        )


def check_placement(
    machine: Any, strategies: Mapping[str, Strategy], *, recorded: bool
) -> None:
    """Raise a ValueError for the first strategy that the machine cannot place."""
    if isinstance(machine, LocalMachine) and machine.placement == "mesh":
        for name, strategy in strategies.items():
            check_fits(name, machine, strategy, recorded=recorded)


def is_real_machine(machine: Any) -> bool:
    """Whether the machine's seconds are wall-clock time."""
    return bool(getattr(machine, "real", False))
