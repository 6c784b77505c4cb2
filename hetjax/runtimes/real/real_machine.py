"""The base of real machines: workers with slowdowns, and scripted faults."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

from hetjax.arguments import Bounds
from hetjax.machine import ScriptedFault
from hetjax.machine.faults import absent_at_first, check_faults
from hetjax.machine.simulated_machine import check_chosen
from hetjax.machine.types import WorkerInfo
from hetjax.summaries import counted, html_of, two_lines

# a real device can only be made slower: a factor on the time of a step
Slowdown = Annotated[float, Bounds(low=1)]
Slowdowns = Slowdown | Sequence[Slowdown] | Mapping[str, float]


class RealMachine:
    """The base class of real machines, which are frozen dataclasses of these fields."""

    real: ClassVar[bool] = True  # its seconds are wall-clock time
    record_name: ClassVar[str]  # in results.json

    workers: tuple[Any, ...]  # each has a name, a kind, a device_name and a slowdown
    faults: tuple[ScriptedFault, ...]
    step_mode: str | None

    _repr_html_ = html_of

    def __post_init__(self):
        if not self.workers:
            raise ValueError("a machine needs at least one worker: pass a device")
        check_faults(self.faults, [w.name for w in self.workers])

    def summary(self, first: str) -> str:
        """Return two lines: the given one, then the workers and faults."""
        return two_lines(
            first,
            (
                ", ".join(
                    f"{w.name} ({w.kind})"
                    + f" slowed {w.slowdown:g} times" * (w.slowdown != 1)
                    for w in self.workers
                ),
                counted(len(self.faults), "scripted fault") * bool(self.faults),
            ),
        )

    @property
    def away(self) -> set[str]:
        """The names of the workers that are not there when a run begins."""
        return set(absent_at_first(self.faults))

    def infos(self, costs: Mapping[str, tuple[float, float]]) -> tuple[WorkerInfo, ...]:
        """Return the workers as policies see them.

        `costs` are (fixed, per example) seconds by name, without slowdowns, which
        multiply them.
        """
        away = self.away
        return tuple(
            WorkerInfo(
                index,
                w.name,
                w.kind,
                (),
                costs[w.name][0] * w.slowdown,
                costs[w.name][1] * w.slowdown,
                w.device_name,
                w.name not in away,
            )
            for index, w in enumerate(self.workers)
        )

    def most_per_device(self, kind: str) -> int:
        """Return the largest number of workers that share a device of this kind."""
        del kind
        return 1

    def record(self) -> dict[str, Any]:
        """Return the machine as JSON-ready data, for results.json."""
        workers = [
            {"name": w.name, "kind": w.kind, "slowdown": w.slowdown}
            for w in self.workers
        ]
        return {"name": self.record_name, "workers": workers}

    def subset(self, names: Sequence[str]) -> Self:
        """Return the machine with these workers only."""
        check_chosen(names, [w.name for w in self.workers])
        chosen = tuple(w for w in self.workers if w.name in names)
        faults = tuple(f for f in self.faults if f.worker in names)
        return dataclasses.replace(self, workers=chosen, faults=faults)  # pyright: ignore


def slowdowns_of(slowdown: Slowdowns, names: Sequence[str]) -> list[float]:
    """Return each worker's slowdown; raise a ValueError if they do not fit."""
    if isinstance(slowdown, Mapping):
        unknown = set(slowdown) - set(names)
        if unknown:
            raise ValueError(
                f"slowdown has unknown workers {', '.join(sorted(unknown))}: the "
                f"workers are {', '.join(names)}"
            )
        return [float(slowdown.get(name, 1.0)) for name in names]
    if isinstance(slowdown, int | float):
        return [float(slowdown)] * len(names)
    if len(slowdown) != len(names):
        raise ValueError(
            f"slowdown has {len(slowdown)} entries for {len(names)} workers: pass "
            "one number for all, one for each, or {name: number}"
        )
    return [float(s) for s in slowdown]
