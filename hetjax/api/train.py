"""`train`: run one strategy on a task, data and a machine; return its history."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.api.value_checks import NumEvals, Resume, check_folder
from hetjax.arguments import Count, Positive, Seed, checked
from hetjax.callbacks import OnEval
from hetjax.checkpoint.settings import EVERY, Checkpoint
from hetjax.data.dataset import Dataset
from hetjax.engine.job import Compiled, DataOn, OnLostWorker, OnNan
from hetjax.engine.placement import Device
from hetjax.engine.records.history import History
from hetjax.machine import Machine
from hetjax.runtimes.cluster.cluster_machine import ClusterMachine
from hetjax.runtimes.openers import CustomMachine, check_placement
from hetjax.runtimes.threads.local_machine import LocalMachine
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task

OnError = Literal["raise", "keep"]  # an exception of a callback


@checked
def train(
    task: Task,
    data: Dataset,
    machine: Machine | LocalMachine | ClusterMachine | CustomMachine,
    strategy: Strategy,
    *,
    seconds: Positive,
    seed: Seed = 0,
    num_evals: NumEvals = 50,
    eval_examples: Count | None = None,
    target: float | None = None,
    epochs: Positive | None = None,
    on_eval: OnEval | Sequence[OnEval] | None = None,
    on_error: OnError = "raise",
    on_nan: OnNan | None = None,
    on_lost_worker: OnLostWorker = "continue",
    trace: str | Path | None = None,
    devices: Sequence[Device | str] | None = None,
    compiled: Compiled = "auto",
    data_on: DataOn = "auto",
    schedule_seed: Seed | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    every: str = EVERY,
    resume: Resume = "auto",
    progress: bool = True,
) -> History:
    """Train one model with one strategy for `seconds` of the machine's clock.

    `machine` is simulated (`machine.preset`, or a file) or real (`local_machine`). On a
    real machine `seconds` is wall-clock time and every worker computes in its own
    thread; a dry run predicts the shapes that the run will need, and they are compiled
    before the clock starts.

    The model is evaluated on the test split at the start and at `num_evals` evenly
    spaced times; evaluations are never charged to the clock. `on_eval`, a function or
    several, is called with each evaluation: {"seconds", "updates", "examples", "loss",
    metrics...}. If it returns `hetjax.STOP`, the run ends (`hetjax.callbacks` has early
    stopping, and writers). `seed` determines the initial parameters, the order of the
    examples and the machine's noise. With `eval_examples`, evaluations use that many
    examples of the test split (the same ones for every strategy and seed), and the
    final model is also evaluated on the whole split: `history.at_end`, empty if the run
    was interrupted.

    The run ends early at the first evaluation whose main metric has reached `target`,
    or by which `epochs` passes over the training data are done. Ctrl-C also ends the
    run early; `train` then returns the history so far. An exception in `on_eval`, or
    in a part of the strategy, also ends it: with on_error="raise" the exception is
    raised again, with the history as its attribute `history`; with "keep" it is stored
    in `history.error` and described in `history.stopped`.

    A replica that is no longer finite stops the run (on_nan="stop", the default on
    simulated machines), or it is counted, left out of the merge and reset to the
    center (on_nan="reset", the default on real machines). When a worker is lost, the
    run continues without it (on_lost_worker="continue") or stops ("stop").

    A real run is recorded in the file `trace`, or in a temporary file; `history.trace`
    is the recording, which `replay` runs again.

    `devices` are the devices of this host over which simulated workers are spread in
    turn: a list of devices of one kind, or of names, as in `local_machine`. By default
    these are all GPUs or other accelerators (only one for a single worker, or if it was
    chosen with `jax.default_device`), or one CPU device, since CPU devices share the
    cores. Merges and evaluations run on the first one. The results are bitwise the same
    as on one device (on CUDA with `--xla_gpu_deterministic_ops=true` in XLA_FLAGS).

    A run on a simulated machine is compiled if that is faster: stretches of it become
    one program each (`hetjax.runtimes.compiled`). With compiled=False the reference
    player takes one step after the other; `history.played` names the player, and why it
    was chosen. Both play exactly the same events, and their parameters agree to
    rounding. A compiled run has its training data on the device if they fit
    (data_on="auto"); otherwise, or with data_on="host", batches are sent from the host.

    With `checkpoint`, a folder (or a `Checkpoint` with more settings), the run is saved
    there `every` "60s" of the host or "5 evals". The same call again resumes from the
    last checkpoint, or returns the history of a finished run (resume="auto"). "must" is
    an error if there is nothing to resume, "never" begins anew. Ctrl-C, SIGTERM and
    SIGUSR1 then save a last checkpoint before the run ends. On a simulated machine, a
    resumed run is bitwise equal to an uninterrupted one (with compiled="auto" it keeps
    the player with which it began). Compilations and host seconds are those since the
    run was resumed.

    The history holds the evaluations, each worker's time, and the final model:
    `params`, `model_state`, and `model`, the user's own module with both put back.

    Errors: a ValueError that names the argument, before anything is compiled, for a
    request that cannot be met.
    """
    if checkpoint is None and every != EVERY:
        raise ValueError(f"every={every!r}: pass the folder as checkpoint=, too")
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        check_folder("checkpoint", checkpoint)
        checkpoint = Checkpoint(checkpoint, every=every)
    config = RunConfig(
        seconds=seconds,
        num_evals=num_evals,
        eval_examples=eval_examples,
        target=target,
        epochs=epochs,
        on_nan=on_nan,
        on_lost_worker=on_lost_worker,
        devices=devices,
        compiled=compiled,
        data_on=data_on,
        schedule_seed=schedule_seed,
    )
    return train_as(
        getattr(strategy, "name", "strategy"),
        Session(task, data, machine, config),
        strategy,
        seed,
        on_eval=on_eval,
        on_error=on_error,
        trace=trace,
        checkpoint=checkpoint,
        resume=resume,
        progress=progress,
    )


def train_as(
    name: str,
    session: Session,
    strategy: Strategy,
    seed: int,
    *,
    on_eval: OnEval | Sequence[OnEval] | None = None,
    on_error: OnError = "raise",
    trace: str | Path | None = None,
    checkpoint: Checkpoint | None = None,
    resume: Resume = "auto",
    progress: bool = True,
) -> History:
    """As `train`, for a run with this name in its history."""
    if resume == "must" and checkpoint is None:
        raise ValueError('resume="must": pass the checkpoint to continue from')
    if trace is not None and not session.real:
        raise ValueError(
            f"trace={str(trace)!r}: only real runs are recorded; a simulated run "
            "can be repeated bit for bit, and its history.log lists its events"
        )
    session.check_strategies({name: strategy})
    check_placement(session.machine, {name: strategy}, recorded=trace is not None)
    seconds = session.config.seconds
    bar = ProgressBar(seconds, shown=progress, real=session.real)
    try:
        return session.run(
            name,
            strategy,
            seed,
            bar,
            on_eval=on_eval,
            on_error=on_error,
            trace=trace,
            checkpoint=checkpoint,
            resume=resume,
        )
    finally:
        bar.close()
