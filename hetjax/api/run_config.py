"""`RunConfig`: the settings that all runs of a call share, checked on creation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetjax.api.value_checks import NumEvals
from hetjax.arguments import Count, Positive, Seed, checked
from hetjax.engine.job import Compiled, DataOn, OnLostWorker, OnNan
from hetjax.engine.placement import Device
from hetjax.machine import Machine
from hetjax.runtimes.devices import simulation_devices
from hetjax.runtimes.openers import check_machine


@checked
@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of runs except task, data, machine, strategies and seeds.

    `train` describes them. Errors: a ValueError that names the setting.
    """

    seconds: Positive
    num_evals: NumEvals = 50
    eval_examples: Count | None = None
    target: float | None = None
    epochs: Positive | None = None
    on_nan: OnNan | None = None
    on_lost_worker: OnLostWorker = "continue"
    devices: Sequence[Device | str] | None = None
    compiled: Compiled = "auto"
    data_on: DataOn = "auto"
    schedule_seed: Seed | None = None
    # evaluation times [s]; (): 0 s, then `num_evals` evenly spaced ones
    instants: tuple[float, ...] = ()

    def __post_init__(self):
        if not self.instants:
            instants = _evenly(self.seconds, self.num_evals)
            object.__setattr__(self, "instants", instants)

    def with_seconds(self, seconds: float) -> "RunConfig":
        """Return the settings with other seconds and the same number of evaluations."""
        return replace(self, seconds=seconds, instants=())

    def without_limits(self) -> "RunConfig":
        """Return the settings without target and epochs, so that no run ends early."""
        return replace(self, target=None, epochs=None)

    def check_machine(self, machine: Any) -> None:
        """Raise a ValueError unless this is a machine that fits the settings."""
        check_machine(machine)
        if isinstance(machine, Machine):
            if self.devices is not None:
                simulation_devices(self.devices)
            return
        if self.devices is not None:
            raise ValueError(
                f"devices={self.devices!r}: only simulated workers are spread over "
                "devices; pass those of a real machine to local_machine(devices)"
            )
        if self.compiled is True:
            raise ValueError(
                "compiled=True: only runs on a simulated machine are compiled: leave "
                "it out"
            )
        if self.data_on != "auto":
            raise ValueError(
                f"data_on={self.data_on!r}: only a simulated machine has a choice of "
                "where its training data are: leave it out"
            )
        if self.schedule_seed is not None:
            raise ValueError(
                f"schedule_seed={self.schedule_seed!r}: the schedule of a real machine "
                "does not follow from a seed: leave it out"
            )


def _evenly(seconds: float, num_evals: int) -> tuple[float, ...]:
    """Return the start and `num_evals` evenly spaced times until the end [s]."""
    # rounding must not move the end: seconds * 3 / 3 may differ from seconds
    return (*(seconds * k / num_evals for k in range(num_evals)), seconds)
