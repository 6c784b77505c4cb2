"""Replay a recorded run: its trace is the tape, on the same kinds of device."""

from collections.abc import Sequence

from hetjax.engine.job import Job
from hetjax.engine.placement import Placement
from hetjax.engine.player_parts import Assignment
from hetjax.engine.protocols import Runtime
from hetjax.engine.reference_player import ReferencePlayer
from hetjax.engine.replica_store import ReplicaStore
from hetjax.engine.split_merges import SplitMergeStore
from hetjax.engine.step_runner import RoundOutcome, StepRunner, StepSettings
from hetjax.runtimes.devices import all_devices, default_device
from hetjax.runtimes.inline import GroupedExecutor
from hetjax.strategies.types import Strategy
from hetjax.tracing.fingerprint import check_same
from hetjax.tracing.stored_tape import StoredTape
from hetjax.tracing.trace import Trace


def open_recorded(trace: Trace, strategy: Strategy, job: Job) -> Runtime:
    """Return the runtime of a trace, with devices of the same kinds as recorded."""
    check_same(trace, strategy, job.programs.task, job.data)
    workers, step_modes = trace.workers, trace.header["step_modes"]
    by_kind = {d.device_kind: d for d in reversed(all_devices())}
    devices = [by_kind.get(w.kind, default_device()) for w in workers]
    steps = StepRunner(StepSettings.of(strategy), job)

    def run(group: Sequence[Assignment]) -> list[RoundOutcome]:
        k = group[0].worker
        step_mode = step_modes[workers[k].kind]
        if step_mode == "vmapped" and len(group) > 1:
            return steps.vmapped(group, devices[k])
        return [steps.run(a, step_mode, devices[k]) for a in group]

    slowdowns = trace.header["slowdowns"]
    device_classes = list(zip([w.device for w in workers], slowdowns, strict=True))
    # the header notes a kind if merges ran on a device without workers
    nodes_kind = trace.header.get("nodes_kind", workers[trace.header["nodes"]].kind)
    placement = Placement(devices, by_kind.get(nodes_kind, default_device()))
    tape = StoredTape(trace)
    executor = GroupedExecutor(run, device_classes)
    # on a cluster, merges ran in parts
    split = trace.header.get("split_merges", False)
    open_store = SplitMergeStore if split else ReplicaStore
    player = ReferencePlayer(strategy, job, workers, executor, placement, open_store)
    return Runtime(tape, player, step_modes)


def missing_kinds(trace: Trace) -> list[str]:
    """Return the kinds of device in the trace that this process lacks."""
    here = {d.device_kind for d in all_devices()}
    return sorted({w.kind for w in trace.workers} - here)
