"""`resume`: continue a checkpointed run, given only the path of its folder."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetjax.api.run_config import RunConfig
from hetjax.api.run_folder import process_folder
from hetjax.api.run_recipes import given_or_remade
from hetjax.api.session import Session
from hetjax.api.train import OnError, train_as
from hetjax.arguments import checked
from hetjax.callbacks import OnEval
from hetjax.checkpoint.checkpoint_files import find
from hetjax.checkpoint.settings import EVERY, Checkpoint
from hetjax.data.dataset import Dataset
from hetjax.engine.placement import Device
from hetjax.engine.records.history import History
from hetjax.machine import Machine
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task

_SETTINGS = (
    *("seconds", "num_evals", "eval_examples", "target", "epochs"),
    *("on_nan", "on_lost_worker", "compiled", "data_on"),
)


@checked
def resume(
    path: str | Path | Checkpoint,
    task: Task | None = None,
    data: Dataset | None = None,
    machine: Machine | LocalMachine | ClusterMachine | None = None,
    strategy: Strategy | None = None,
    *,
    devices: Sequence[Device | str] | None = None,
    every: str = EVERY,
    on_eval: OnEval | Sequence[OnEval] | None = None,
    on_error: OnError = "raise",
    progress: bool = True,
) -> History:
    """Resume the run of `train(checkpoint=path)`; return a finished run's history.

    `path` is the run's folder, or a `Checkpoint` with more settings.

    Task, data, machine and strategy are made again if hetjax's own functions made them
    from plain values, or from functions and classes at the top level of a module:
    `data.digits()`, `classification(models.mlp(hidden=64), data)`, `sma(...)`,
    `machine.preset(...)`, the devices of a local machine, the machine of a cluster (at
    the same address, or with its `local_workers` started again, and closed at the end).
    Pass the others: an error names those that are missing. A real run may continue on
    another `machine`: absent workers have left, new ones have joined, and the policy
    begins anew from the root's model.

    `devices`, `every`, `on_eval`, `on_error` and `progress` are those of `train`, and
    are not remembered from there. All other settings are unchanged, also the player of
    a simulated run.

    Errors: a ValueError for a folder that has no checkpoints, or only damaged ones, and
    for a task, data or strategy that differs from that of the run.
    """
    checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path, every=every)
    folder = checkpoint.folder
    found = find(process_folder(folder), about_alone=True)
    if found is None:
        raise ValueError(f"{folder} holds no checkpoint of a run")
    about = found.about
    given = {"task": task, "data": data, "machine": machine, "strategy": strategy}
    parts: dict[str, Any] = given_or_remade(folder, about["recipes"], given)
    try:
        seed = None if about["real"] else about["schedule_seed"]
        settings = {name: about[name] for name in _SETTINGS}
        config = RunConfig(**settings, devices=devices, schedule_seed=seed)
        return train_as(
            about["name"],
            Session(parts["task"], parts["data"], parts["machine"], config),
            parts["strategy"],
            about["seed"],
            on_eval=on_eval,
            on_error=on_error,
            checkpoint=checkpoint,
            resume="must",
            progress=progress,
        )
    finally:
        if machine is None and isinstance(parts["machine"], ClusterMachine):
            parts["machine"].close()  # it was made for this run
