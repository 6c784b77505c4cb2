"""Play runs that share a schedule at once, such as those of a learning-rate grid.

The tape of such runs is written once; see `hetjax.runtimes.compiled.side_by_side`. All
other runs are played one by one.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hetjax.api.progress import ProgressBar
from hetjax.api.run_folder import (
    is_finished,
    open_run_folder,
    process_folder,
    values_of,
)
from hetjax.api.session import Session
from hetjax.checkpoint.checkpoint_files import find
from hetjax.engine.loop import Loop
from hetjax.engine.programs.sharing import shared_parts
from hetjax.engine.records.history import EPOCHS_DONE, Evaluation, History
from hetjax.machine import Machine
from hetjax.runtimes.compiled.player_choice import max_runs_at_once
from hetjax.runtimes.compiled.side_by_side import SideBySidePlayer
from hetjax.runtimes.compiled.stretch_launcher import RunVariants
from hetjax.runtimes.devices import simulation_devices
from hetjax.strategies.types import Strategy


class ComparedRun(NamedTuple):
    """One run of a comparison, with its checkpoint arguments of `Session.run`."""

    name: str
    strategy: Strategy
    seed: int
    checkpointing: dict[str, Any]


def run_all(
    session: Session,
    runs: Sequence[ComparedRun],
    bar: ProgressBar,
    *,
    trace: Path | None = None,
) -> Iterator[list[History]]:
    """Yield the histories of runs that differ only in learning rates and seeds.

    Runs that are played at once are yielded as one list, all others one by one.
    """
    for several in _groups(session, runs):
        histories = _run_at_once(session, several, bar)
        if histories is not None:
            yield histories
            continue
        for run in several:
            yield [_run_alone(session, run, bar, trace)]


def _run_alone(
    session: Session, run: ComparedRun, bar: ProgressBar, trace: Path | None = None
) -> History:
    name, strategy, seed, checkpointing = run
    return session.run(name, strategy, seed, bar, trace=trace, **checkpointing)


def _groups(session: Session, runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Group runs that can be played at once: that share a schedule, and fit."""
    found: dict[tuple[int, int, int | str], list[ComparedRun]] = {}
    for i, run in enumerate(runs):
        most, seed = _max_at_once(session, run), session.schedule_of(run.seed)
        found.setdefault((seed, most, i if most == 1 else ""), []).append(run)
    parts: list[list[ComparedRun]] = []
    for (_, most, _), group in found.items():
        parts += [group[i : i + most] for i in range(0, len(group), most)]
    return parts


def _max_at_once(session: Session, run: ComparedRun) -> int:
    """Return the maximum number of such runs that are played at once."""
    strategy, machine = shared_parts(session.programs, run.strategy), session.machine
    if not isinstance(machine, Machine) or callable(strategy.learning_rate):
        return 1
    if _has_checkpoint(run):
        return 1  # it resumes from its own checkpoint
    job = session.job(run.name, strategy, run.seed)
    devices = simulation_devices(job.devices)
    if len(devices) != 1:
        return 1
    return max_runs_at_once(strategy, job, len(machine.workers), devices[0])


def _has_checkpoint(run: ComparedRun) -> bool:
    checkpoint = run.checkpointing.get("checkpoint")
    if checkpoint is None or run.checkpointing["resume"] == "never":
        return False
    return find(process_folder(checkpoint.folder), about_alone=True) is not None


def _run_at_once(
    session: Session, runs: list[ComparedRun], bar: ProgressBar
) -> list[History] | None:
    """Play runs at once; return their histories, or None if each has to run alone."""
    if len(runs) < 2:
        return None
    strategy = shared_parts(session.programs, runs[0].strategy)
    if not strategy.learning_rate:
        return None  # no other rate is a multiple of 0
    rates: list[Any] = [run.strategy.learning_rate for run in runs]
    factors = [rate / rates[0] for rate in rates]
    variants = RunVariants(tuple(run.seed for run in runs), tuple(factors))
    seed = runs[0].seed
    job = session.job(runs[0].name, strategy, seed)._replace(
        schedule_seed=session.schedule_of(seed),
        variants=variants,
        tracks_best=any(run.checkpointing for run in runs),
    )
    played = _play(session, strategy, job, bar, len(runs))
    if played is None:
        return None
    history, player = played
    # DiffersBetweenRuns, or an error that is raised again when a run is played alone
    if history.error is not None:
        return None
    models = player.models(visible=history.ends_at_evaluation)
    histories = []
    for i, run in enumerate(runs):
        if player.failed[i]:  # it ends early, for a reason of its own
            histories.append(_run_alone(session, run, bar))
            continue
        histories.append(_history_of_run(session, history, player, models[i], i, run))
        _save_finished(session, histories[-1], run)
    return histories


def _play(
    session: Session,
    strategy: Strategy,
    job: Any,
    bar: ProgressBar,
    number: int,
) -> tuple[History, SideBySidePlayer] | None:
    """Play runs at once; return the first run's history, and the player.

    None if the first rounds show that compiled runs would be slower.
    """
    runtime = session.opened(strategy, job)
    player, metric = runtime.player, session.programs.task.metric
    if not isinstance(player, SideBySidePlayer):
        runtime.player.close()
        return None
    epochs = session.config.epochs

    def each(point: dict[str, float]) -> str:
        bar.advance(number * point["seconds"], point, metric)
        done = epochs and point["examples"] >= epochs * len(session.data.train)
        return f"{epochs:g} {EPOCHS_DONE}" if done else ""

    clock = runtime.clock
    bar.begin(f"{number} x {job.name}", number * job.instants[-1])
    loop = Loop(strategy, job, runtime, each)
    with bar.following(lambda: number * clock.now):
        history = loop.run()
    if not history.interrupted:
        bar.finish()
    return history, player


def _history_of_run(
    session: Session,
    first: History,
    player: SideBySidePlayer,
    model: Any,
    number: int,
    run: ComparedRun,
) -> History:
    """Return the history of one of several runs, based on that of the first."""
    history, several = copy.copy(first), player.num_runs
    history.strategy, history.seed = run.name, run.seed
    history.settings = run.strategy.recorded_settings
    points = zip(first.evals, player.evaluations[number], strict=True)
    history.evals = [Evaluation({**point, **own}) for point, own in points]
    history.workers = copy.deepcopy(first.workers)
    history.params, history.model_state = model
    history.model = session.programs.task.restore(*model)
    if first.at_end:
        history.at_end = player.evaluate_whole_test(model)
    best = player.best[number]
    if best is not None:
        history.best_params, history.best_model_state = best[1]
    history.host_seconds = first.host_seconds / several
    if number:  # the first one has compiled for all
        history.programs, history.compilations = {}, 0
        history.compile_seconds = 0.0
    history.played = f"compiled, one of {several} runs at once"
    return history


def _save_finished(session: Session, history: History, run: ComparedRun) -> None:
    """Save a finished run in its folder, if it has one."""
    if not run.checkpointing or not is_finished(history):
        return
    job = session.job(run.name, run.strategy, run.seed)
    about = session.described(run.strategy, job)
    with open_run_folder(
        run.checkpointing["checkpoint"], run.checkpointing["resume"], about
    ) as folder:
        folder.manager.finish(values_of(history))
        folder.manager.wait_for_writer()
