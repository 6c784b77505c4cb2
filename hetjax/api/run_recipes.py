"""Recipes of a run's parts, from which `resume` makes them again by name."""

import dataclasses
from typing import Any

from hetjax.checkpoint.values import Encoder, decode
from hetjax.data.dataset import Dataset
from hetjax.machine import Machine, ScriptedFault
from hetjax.recipes import NoRecipe, make, recipe_of
from hetjax.report.record import plain
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine, cluster_machine
from hetjax.runtimes.devices import all_devices, chosen_devices
from hetjax.runtimes.threads.local_machine import LocalMachine, LocalWorker
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import strategy_of


def recipes(
    strategy: Strategy, task: Task, data: Dataset, machine: Any
) -> dict[str, Any]:
    """Return recipes of strategy, task, data and machine, as JSON data."""
    return {
        "task": _recipe(task),
        "data": _recipe(data),
        "strategy": {"name": strategy.name, "settings": plain(strategy.settings)},
        "machine": _machine_recipe(machine),
    }


def _recipe(thing: Any) -> dict[str, Any]:
    try:
        return recipe_of(thing)
    except NoRecipe as error:
        return {"unknown": str(error)}


def _machine_recipe(machine: Any) -> dict[str, Any]:
    encoder = Encoder()
    if isinstance(machine, Machine):
        found = {"simulated": encoder.encode(machine, "machine")}
    elif isinstance(machine, LocalMachine):
        found = {
            "real": [[w.name, w.device_name, w.slowdown] for w in machine.workers],
            "faults": encoder.encode(machine.faults, "faults"),
            "step_mode": machine.step_mode,
            "placement": machine.placement,
        }
    elif isinstance(machine, ClusterMachine):
        faults = encoder.encode(machine.faults, "faults")
        found = {
            "cluster": plain(machine.request),
            "slowdown": {w.name: w.slowdown for w in machine.workers if w.slowdown > 1},
            "workers": [w.name for w in machine.workers],
            "faults": faults,
        }
    else:
        return {"unknown": f"it is a {type(machine).__qualname__}"}
    return {"unknown": "it holds arrays"} if encoder.arrays else found


def given_or_remade(folder: Any, found: dict[str, Any], given: dict[str, Any]) -> dict:
    """Return task, data, strategy and machine, as given or made by their recipes.

    Errors: a ValueError that names an argument that cannot be made and must be passed.
    """
    made: dict[str, Any] = {}
    makers = {
        "data": lambda recipe: make(recipe, made),
        "task": lambda recipe: make(recipe, made),
        "strategy": lambda recipe: strategy_of(recipe["name"], recipe["settings"]),
        "machine": _machine_of,
    }
    for name, maker in makers.items():
        if given.get(name) is not None:
            continue
        recipe = found[name]
        try:
            if "unknown" in recipe:
                raise NoRecipe(recipe["unknown"])
            given = {**given, name: maker(recipe)}
        except (ValueError, OSError, TypeError) as error:
            raise ValueError(
                f"{folder}: its {name} cannot be found by name ({error}): pass {name}="
            ) from error
    return given


def _machine_of(recipe: dict[str, Any]) -> Machine | LocalMachine | ClusterMachine:
    if "simulated" in recipe:
        return decode(recipe["simulated"], [])
    if "cluster" in recipe:
        faults = decode(recipe["faults"], [])
        machine = cluster_machine(**recipe["cluster"])
        return _as_before(machine, recipe["workers"], recipe["slowdown"], faults)
    known = all_devices()
    workers = [
        LocalWorker(name, chosen_devices([device], known)[0], slowdown)
        for name, device, slowdown in recipe["real"]
    ]
    faults = decode(recipe["faults"], [])
    step_mode, placement = recipe["step_mode"], recipe["placement"]
    return LocalMachine(tuple(workers), faults, step_mode, placement)


def _as_before(
    machine: ClusterMachine,
    names: list[str],
    slowdown: dict[str, float],
    faults: tuple[ScriptedFault, ...],
) -> ClusterMachine:
    """Return the machine with the workers and slowdowns that a run had."""
    here = [w.name for w in machine.workers]
    chosen = [name for name in names if name in here] or here
    some = machine if chosen == here else machine.subset(chosen)
    workers = tuple(
        dataclasses.replace(w, slowdown=slowdown.get(w.name, 1.0)) for w in some.workers
    )
    faults = tuple(f for f in faults if f.worker in chosen)
    return dataclasses.replace(some, workers=workers, faults=faults)
