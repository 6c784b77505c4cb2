"""Runs that have one schedule, such as those of a grid of learning rates, as one.

See `hetjax.runtimes.compiled.side_by_side`: the tape of such runs is written once, and
they are played side by side. What cannot be is run alone, one after the other.
"""

import copy
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hetjax.api.progress import ProgressBar
from hetjax.api.run_folder import is_finished, open_run_folder, own_folder, values_of
from hetjax.api.session import Session
from hetjax.checkpoint.checkpoint_folder import find
from hetjax.engine.loop import Loop
from hetjax.engine.programs.sharing import shared_parts
from hetjax.engine.records.history import EPOCHS_DONE, Evaluation, History
from hetjax.machine import Machine
from hetjax.runtimes.compiled.player_choice import max_runs_at_once
from hetjax.runtimes.compiled.side_by_side import RunVariants, SideBySidePlayer
from hetjax.runtimes.devices import simulation_devices
from hetjax.strategies.types import Strategy


class ComparedRun(NamedTuple):
    """One run of a comparison; `keep` are the arguments that say where it is kept."""

    name: str
    strategy: Strategy
    seed: int
    checkpointing: dict[str, Any]


def run_all(
    session: Session,
    runs: Sequence[ComparedRun],
    bar: ProgressBar,
    *,
    epochs: float | None = None,
) -> Iterator[list[History]]:
    """Yield the histories of runs that differ in learning rates and seeds alone.

    Those that are played together come at once, all others one by one.
    """
    for several in _groups(session, runs):
        histories = _together(session, several, bar, epochs)
        if histories is not None:
            yield histories
            continue
        for run in several:
            name, strategy, seed, keep = run
            yield [session.run(name, strategy, seed, bar, epochs=epochs, **keep)]


def _groups(session: Session, runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Runs that may be played together: of one schedule, and as many as fit."""
    found: dict[tuple[int, int, int | str], list[ComparedRun]] = {}
    for i, run in enumerate(runs):
        most, seed = _most(session, run), session.schedule_of(run.seed)
        found.setdefault((seed, most, i if most == 1 else ""), []).append(run)
    parts: list[list[ComparedRun]] = []
    for (_, most, _), group in found.items():
        parts += [group[i : i + most] for i in range(0, len(group), most)]
    return parts


def _most(session: Session, run: ComparedRun) -> int:
    """How many such runs are played together, at most."""
    strategy, machine = shared_parts(session.programs, run.strategy), session.machine
    if not isinstance(machine, Machine) or callable(strategy.learning_rate):
        return 1
    if _is_begun(run):
        return 1  # it goes on from what was kept
    job = session.job(run.name, strategy, run.seed)
    devices = simulation_devices(job.devices)
    if len(devices) != 1:
        return 1
    return max_runs_at_once(strategy, job, len(machine.workers), devices[0])


def _is_begun(run: ComparedRun) -> bool:
    checkpoint = run.checkpointing.get("checkpoint")
    if checkpoint is None or run.checkpointing["resume"] == "never":
        return False
    return find(own_folder(checkpoint.folder), about_alone=True) is not None


def _together(
    session: Session, runs: list[ComparedRun], bar: ProgressBar, epochs: float | None
) -> list[History] | None:
    """The histories of runs that were played together; None: each has to run alone."""
    if len(runs) < 2:
        return None
    strategy = shared_parts(session.programs, runs[0].strategy)
    if not strategy.learning_rate:
        return None  # no other rate is a multiple of it
    rates: list[Any] = [run.strategy.learning_rate for run in runs]
    factors = [rate / rates[0] for rate in rates]
    variants = RunVariants(tuple(run.seed for run in runs), tuple(factors))
    seed = runs[0].seed
    job = session.job(runs[0].name, strategy, seed)._replace(
        schedule_seed=session.schedule_of(seed),
        variants=variants,
        keeps_best=any(run.checkpointing for run in runs),
    )
    history, player = _played(session, strategy, job, bar, epochs, len(runs))
    if history.error is not None:  # `Differs`, or raised again where it belongs
        return None
    models = player.models(visible=history.ends_at_evaluation)
    histories = []
    for i, run in enumerate(runs):
        if player.failed[i]:  # it ends where it turned out so, with a reason
            name, own, seed, keep = run
            histories.append(session.run(name, own, seed, bar, epochs=epochs, **keep))
            continue
        histories.append(_of_run(session, history, player, models[i], i, run))
        _keep(session, histories[-1], run, epochs)
    return histories


def _played(
    session: Session,
    strategy: Strategy,
    job: Any,
    bar: ProgressBar,
    epochs: float | None,
    number: int,
) -> tuple[History, SideBySidePlayer]:
    """The history of the first run, and the player that knows those of all."""
    runtime = session.opened(strategy, job)
    player, metric, last = runtime.player, session.programs.task.metric, 0.0

    def each(point: dict[str, float]) -> str:
        nonlocal last
        bar.advance(number * (point["seconds"] - last), point, metric, ran=True)
        last = point["seconds"]
        done = epochs and point["examples"] >= epochs * len(session.data.train)
        return f"{epochs:g} {EPOCHS_DONE}" if done else ""

    seconds = job.instants[-1]
    bar.begin(f"{number} x {job.name}", number * seconds)
    history = Loop(job.name, strategy, job, runtime, each).run()
    if not history.interrupted:
        bar.skip(number * (seconds - last))
    return history, player


def _of_run(
    session: Session,
    first: History,
    player: SideBySidePlayer,
    model: Any,
    number: int,
    run: ComparedRun,
) -> History:
    """The history of one of several runs, from that of the first one."""
    history, several = copy.copy(first), player.variants.num_runs
    history.strategy, history.seed = run.name, run.seed
    history.settings = run.strategy.recorded_settings
    points = zip(first.evals, player.evaluations[number], strict=True)
    history.evals = [Evaluation({**point, **own}) for point, own in points]
    history.workers = copy.deepcopy(first.workers)
    history.params, history.model_state = model
    history.model = session.programs.task.restore(*model)
    if first.at_end:
        history.at_end = player.look_at_all(model)
    best = player.best[number]
    if best is not None:
        history.best_params, history.best_model_state = best[1]
    history.host_seconds = first.host_seconds / several
    if number:  # the first one has compiled for all
        history.programs, history.compilations = {}, 0
        history.compile_seconds = 0.0
    history.played = f"compiled, one of {several} runs at once"
    return history


def _keep(
    session: Session, history: History, run: ComparedRun, epochs: float | None
) -> None:
    """Keep the end of a run in its folder, if it has one."""
    if not run.checkpointing or not is_finished(history):
        return
    job = session.job(run.name, run.strategy, run.seed)
    about = session.described(run.strategy, job, epochs=epochs)
    with open_run_folder(
        run.checkpointing["checkpoint"], run.checkpointing["resume"], about
    ) as folder:
        folder.keeper.finish(values_of(history))
        folder.keeper.join()
