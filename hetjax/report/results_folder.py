"""The folder of a comparison's results; every file is written completely or not."""

import json
import os
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hetjax.atomic_files import write_whole
from hetjax.report.comparison import Comparison
from hetjax.report.record import batch_sizes_changed
from hetjax.report.runs import first_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = (
    *("results.json", "results.csv", "time_to_accuracy.png", "batch_sizes.png"),
    *("timeline.png", "report.html"),
)
RUNS = "runs"  # its subfolder for checkpointed runs (`compare(out=...)`)


def check_out(
    out_dir: str | Path,
    overwrite: bool = False,
    runs: Collection[tuple[str, int]] = (),
) -> None:
    """Raise an error if the folder already holds results or cannot be written.

    Results of checkpointed runs may be replaced by results of the same `runs`
    (strategy, seed), and more.
    """
    folder = Path(out_dir)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another --out")
    found = [name for name in NAMES if (folder / name).exists()]
    again = (folder / RUNS).is_dir() and _runs_in(folder) <= set(runs)
    if found and not overwrite and not again:
        raise FileExistsError(
            f"{folder} already holds {', '.join(found)}: "
            "use --overwrite, or choose another --out"
        )
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"{existing} cannot be written to: choose another --out")


def _runs_in(folder: Path) -> set[tuple[str, int]]:
    """(strategy, seed) of all runs in results.json; empty without the file."""
    try:
        found = json.loads((folder / NAMES[0]).read_text(encoding="utf-8"))
        return {(run["strategy"], run["seed"]) for run in found["runs"]}
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError):
        return {("not read", -1)}


def _is_first() -> bool:
    """Whether this is process 0; without JAX, a process has not joined any others."""
    if "jax" not in sys.modules:
        return True
    from hetjax.processes.exchange import is_first

    return is_first()


def write_results(
    runs: Comparison,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    version: str | None = None,
    command: str = "",
) -> list[Path]:
    """Write all files of a comparison; return their paths.

    There is no batch_sizes.png if no strategy changed batch sizes. `command` is the
    command that made the comparison; the page shows it instead of a call. Of several
    processes, only process 0 writes.

    Errors: FileExistsError as in `check_out`; OSError if files could not be written, as
    on a full disk. It is raised after trying all files, and names those that failed and
    those that were written.
    """
    folder = Path(out_dir)
    writers: dict[str, Callable[[Path], object]] = {
        "results.json": partial(runs.to_json, version=version),
        "results.csv": runs.to_csv,
        "time_to_accuracy.png": lambda path: _save(runs.plot(), path),
        "batch_sizes.png": lambda path: _save(runs.plot_batch_sizes(), path),
        "timeline.png": lambda path: _save(runs.plot_timeline(), path),
        "report.html": partial(runs.report, command=command),
    }
    if not any(map(batch_sizes_changed, first_seeds(runs.histories))):
        del writers["batch_sizes.png"]
    if not _is_first():
        return [folder / name for name in writers]
    check_out(folder, overwrite, [(h.strategy, h.seed) for h in runs.histories])
    folder.mkdir(parents=True, exist_ok=True)
    for name in set(NAMES) - set(writers):
        (folder / name).unlink(missing_ok=True)  # of the results that are replaced
    written: list[Path] = []
    failures: list[OSError] = []
    for name, write in writers.items():
        try:
            write_whole(folder / name, write)
            written.append(folder / name)
        except OSError as error:
            failures.append(error)
    if failures:
        found = ", ".join(map(str, written)) or "no other file"
        raise OSError(f"{'; '.join(map(str, failures))}; written: {found}")
    return written


def _save(figure: "Figure", path: Path) -> None:
    """Save as PNG; the temporary file's name does not imply the format."""
    figure.savefig(path, format="png", dpi=150)
