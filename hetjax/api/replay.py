"""`replay`: run a recorded run again, bit for bit the same."""

from pathlib import Path

import jax

from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session
from hetjax.data.dataset import Dataset
from hetjax.engine.records.history import History
from hetjax.runtimes.recorded import missing_kinds
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Task
from hetjax.tracing.fingerprint import as_trace, digest, recorded_strategy
from hetjax.tracing.trace import Recording, Trace


def replay(
    trace: Trace | Recording | str | Path,
    task: Task | None = None,
    data: Dataset | None = None,
    strategy: Strategy | None = None,
    *,
    progress: bool = True,
) -> History:
    """Run a recorded run again, event by event, at the times of its trace.

    `trace` is a `history.trace`, a file, or a `hetjax.tracing.Trace`. A file does not
    hold the task and the data: pass those of the recorded run. Also pass the strategy
    if some of its settings are not plain values. On the same kinds of device the
    parameters are the same bit for bit (on CUDA with
    `--xla_gpu_deterministic_ops=true` in XLA_FLAGS), and `history.replayed` says
    whether they are. A kind of device that this process does not have is replaced by
    JAX's default device: then numbers agree to rounding, about 1e-5 of a parameter
    after a hundred steps. The strategy's policy is not called.

    Errors: ValueError for a damaged trace, or for a task, data or strategy with other
    settings than the recorded ones.
    """
    recorded = as_trace(trace)
    if isinstance(trace, Recording) and trace.context:
        known: tuple[Task, Dataset, Strategy] = trace.context
        task, data = task or known[0], data or known[1]
        strategy = strategy or known[2]
    if task is None or data is None:
        raise ValueError("replay: a trace file does not hold task and data: pass both")
    strategy = strategy or recorded_strategy(recorded)
    instants = recorded.header["instants"]
    config = RunConfig(
        seconds=instants[-1],
        num_evals=len(instants) - 1,
        instants=tuple(instants),
        eval_examples=recorded.header.get("eval_examples"),
        on_nan=recorded.header["on_nan"],
        on_lost_worker=recorded.header["on_lost_worker"],
    )
    session = Session(task, data, recorded, config)
    name = recorded.header.get("name") or getattr(strategy, "name", "strategy")
    session.check_strategies({name: strategy})
    bar = ProgressBar(instants[-1], shown=progress)
    try:
        history = session.run(name, strategy, recorded.header["seed"], bar)
    finally:
        bar.close()
    if "params" not in recorded.end:
        history.replayed = "up to the end of the trace: the recorded run was cut off"
        return history
    same = digest(history.params) == recorded.end["params"]
    differs = "the parameters differ from the recorded ones"
    history.replayed = "equal" if same else differs
    version = recorded.header.get("jax")
    if version != jax.__version__ and not same:
        history.replayed += f", of JAX {version}; this is JAX {jax.__version__}"
    kinds = missing_kinds(recorded)
    if kinds and not same:
        history.replayed += f": there is no {', '.join(kinds)} here"
    return history
