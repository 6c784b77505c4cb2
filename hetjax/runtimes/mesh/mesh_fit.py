"""Which strategies and machines fit on a mesh, and what to do if they do not."""

from collections import Counter

import jax

from hetjax.merge.types import MergeProperty
from hetjax.runtimes.mesh.mesh_layout import MeshLayout
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import Strategy


def layout_of(machine: LocalMachine) -> MeshLayout:
    """The layout of a machine's workers, which `check_fits` has let pass."""
    counts = Counter(w.device for w in machine.workers)
    return MeshLayout(tuple(counts), next(iter(counts.values())))


def misfit_of_machine(machine: LocalMachine) -> str:
    """Why these workers make no mesh; "" if they do."""
    kinds = dict.fromkeys(w.kind for w in machine.workers)
    if len(kinds) > 1:
        return (
            f"a mesh has devices of one kind, but there are {' and '.join(kinds)}: one "
            "program cannot span them"
        )
    counts = Counter(w.device for w in machine.workers)
    if len(set(counts.values())) > 1:
        return "on a mesh every device has equally many workers"
    owners = [d.process_index for d in counts]
    if owners[0] != 0 or set(owners) != set(range(jax.process_count())):
        return (
            f"there are {jax.process_count()} processes, and each needs a device of "
            "the mesh, process 0 the first one"
        )
    slow = [w.name for w in machine.workers if w.slowdown != 1]
    if slow:
        return f"{slow[0]} is slowed down on purpose, which a program cannot do"
    if machine.faults:
        return "scripted faults concern single workers, but a mesh runs all as one"
    return ""


def misfit_of_strategy(strategy: Strategy) -> str:
    """Why a strategy cannot run as one program per wave; "" if it can."""
    if not strategy.policy.bulk_synchronous:
        return (
            "the policy is not bulk-synchronous: what it does next depends on which "
            "worker arrives first, or workers come and go"
        )
    if any(
        MergeProperty.UPDATES_BUSY_WORKERS in merge.properties
        for merge in strategy.merges
    ):
        return "the merge changes replicas while their workers compute"
    return ""


def misfit(machine: LocalMachine, strategy: Strategy, *, recorded: bool) -> str:
    """Why a strategy does not fit on a mesh of this machine; "" if it does."""
    if recorded:
        return "only runs on threads are recorded"
    return misfit_of_machine(machine) or misfit_of_strategy(strategy)


def check_fits(
    name: str, machine: LocalMachine, strategy: Strategy, *, recorded: bool
) -> None:
    """Raise a ValueError if the strategy of this name does not fit on a mesh."""
    why = misfit(machine, strategy, recorded=recorded)
    if why:
        raise ValueError(
            f'{name} cannot be placed on a mesh: {why}; take placement="threads" '
            "(in scripts --machine=local)"
        )
