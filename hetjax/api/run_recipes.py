"""What a run was made from, so that `resume` finds it again by name."""

from typing import Any

from hetjax.checkpoint.values import Encoder, decode
from hetjax.data.dataset import Dataset
from hetjax.machine import Machine
from hetjax.recipes import NoRecipe, make, recipe_of
from hetjax.report.record import plain
from hetjax.runtimes.devices import all_devices, chosen_devices
from hetjax.runtimes.threads.machine import RealMachine, RealWorker
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import strategy_of


def recipes(
    strategy: Strategy, task: Task, data: Dataset, machine: Any
) -> dict[str, Any]:
    """How strategy, task, data and machine can be made again, as JSON data."""
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
    elif isinstance(machine, RealMachine):
        found = {
            "real": [[w.name, w.device_name, w.slowdown] for w in machine.workers],
            "faults": encoder.encode(machine.faults, "faults"),
            "step_mode": machine.step_mode,
            "placement": machine.placement,
        }
    else:
        return {"unknown": f"it is a {type(machine).__qualname__}"}
    return {"unknown": "it holds arrays"} if encoder.arrays else found


def made_again(folder: Any, found: dict[str, Any], given: dict[str, Any]) -> dict:
    """Task, data, strategy and machine: what was given, or made by its recipe.

    Errors: a ValueError that names an argument that cannot be made and has to be given.
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
                f"{folder}: its {name} cannot be found by name ({error}): give {name}="
            ) from error
    return given


def _machine_of(recipe: dict[str, Any]) -> Machine | RealMachine:
    if "simulated" in recipe:
        return decode(recipe["simulated"], [])
    known = all_devices()
    workers = [
        RealWorker(name, chosen_devices([device], known)[0], slowdown)
        for name, device, slowdown in recipe["real"]
    ]
    faults = decode(recipe["faults"], [])
    step_mode, placement = recipe["step_mode"], recipe["placement"]
    return RealMachine(tuple(workers), faults, step_mode, placement)
