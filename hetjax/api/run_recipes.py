"""Recipes of a run's parts, from which `resume` makes them again by name."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

from hetjax.checkpoint.values import Encoder, decode
from hetjax.data.dataset import Dataset
from hetjax.machine import Machine
from hetjax.recipes import NoRecipe, make, recipe_of, recipe_of_call
from hetjax.report.record import plain
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine, cluster_machine
from hetjax.runtimes.devices import all_devices, chosen_devices
from hetjax.runtimes.threads.local_machine import LocalMachine, LocalWorker
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task


def _strategy_recipe(strategy: Strategy) -> dict[str, Any]:
    factory = strategy.factory
    if not isinstance(factory, functools.partial):
        raise NoRecipe(f"{strategy.name} is not as one of hetjax's factories made it")
    return recipe_of_call(factory.func, factory.args, factory.keywords)


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
        found = {
            "cluster": plain(machine.request),
            "slowdown": {w.name: w.slowdown for w in machine.workers if w.slowdown > 1},
            "workers": [w.name for w in machine.workers],
            "faults": encoder.encode(machine.faults, "faults"),
        }
    else:
        raise NoRecipe(f"it is a {type(machine).__qualname__}")
    if encoder.arrays:
        raise NoRecipe("it holds arrays")
    return found


_RECIPES = {
    "data": recipe_of,
    "task": recipe_of,
    "strategy": _strategy_recipe,
    "machine": _machine_recipe,
}


def recipes(
    strategy: Strategy, task: Task, data: Dataset, machine: Any
) -> dict[str, Any]:
    """Return recipes of strategy, task, data and machine, as JSON data."""
    parts = {"data": data, "task": task, "strategy": strategy, "machine": machine}
    found: dict[str, Any] = {}
    for name, part in parts.items():
        try:
            found[name] = _RECIPES[name](part)
        except NoRecipe as error:
            found[name] = {"unknown": str(error)}
    return found


def given_or_remade(
    folder: Path, found: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Return data, task, strategy and machine, as given or made by their recipes.

    Errors: a ValueError that names an argument that cannot be made and must be passed.
    """
    made: dict[str, Any] = {}
    parts = {name: part for name, part in given.items() if part is not None}
    for name in [name for name in _RECIPES if name not in parts]:
        recipe = found[name]
        try:
            if "unknown" in recipe:
                raise NoRecipe(recipe["unknown"])
            again = _machine_of(recipe) if name == "machine" else make(recipe, made)
            parts[name] = again
        except (ValueError, OSError, TypeError) as error:
            raise ValueError(
                f"{folder}: its {name} cannot be made again by name ({error}): run the "
                f"script again, which continues the run, or pass {name}="
            ) from error
    return parts


def _machine_of(recipe: dict[str, Any]) -> Machine | LocalMachine | ClusterMachine:
    if "simulated" in recipe:
        return decode(recipe["simulated"], [])
    faults = decode(recipe["faults"], [])
    if "real" in recipe:
        known = all_devices()
        workers = tuple(
            LocalWorker(name, chosen_devices([device], known)[0], slowdown)
            for name, device, slowdown in recipe["real"]
        )
        return LocalMachine(workers, faults, recipe["step_mode"], recipe["placement"])
    # the cluster's machine, with the workers and slowdowns that the run had
    machine = cluster_machine(**recipe["cluster"])
    here = [w.name for w in machine.workers]
    chosen = [name for name in recipe["workers"] if name in here] or here
    some = machine if chosen == here else machine.subset(chosen)
    slowdown = recipe["slowdown"]
    workers = tuple(
        dataclasses.replace(w, slowdown=slowdown.get(w.name, 1.0)) for w in some.workers
    )
    faults = tuple(f for f in faults if f.worker in chosen)
    return dataclasses.replace(some, workers=workers, faults=faults)
