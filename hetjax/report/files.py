"""The folder of a comparison's results: all its files, written completely or not."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from hetjax.report.comparison import Comparison
from hetjax.runtimes.mesh.processes import is_first

NAMES = (
    "results.json",
    "results.csv",
    "time_to_accuracy.png",
    "batch_sizes.png",
    "timeline.png",
)


def check_out(out_dir: str | Path, overwrite: bool = False) -> None:
    """Raise an error if the folder already holds results or cannot be written."""
    folder = Path(out_dir)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another --out")
    found = [name for name in NAMES if (folder / name).exists()]
    if found and not overwrite:
        raise FileExistsError(
            f"{folder} already holds {', '.join(found)}: "
            "use --overwrite, or choose another --out"
        )
    existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(existing, os.W_OK):
        raise PermissionError(f"{existing} cannot be written to: choose another --out")


def write_results(
    runs: Comparison,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    version: str | None = None,
) -> list[Path]:
    """Write all files of a comparison; return their paths.

    Of several processes, process 0 alone writes them.
    """
    folder = Path(out_dir)
    paths = [folder / name for name in NAMES]
    if not is_first():
        return paths
    check_out(folder, overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    writers = (
        partial(runs.to_json, version=version),
        runs.to_csv,
        lambda path: _save(runs.plot(), path),
        lambda path: _save(runs.plot_batch_sizes(), path),
        lambda path: _save(runs.plot_timeline(), path),
    )
    for path, write in zip(paths, writers, strict=True):
        _write_whole(path, write)
    return paths


def _save(figure: Figure, path: Path) -> None:
    """Save as PNG; the temporary file's name does not imply the format."""
    figure.savefig(path, format="png", dpi=150)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write a temporary file, then rename it: an interruption leaves no half file."""
    partial_path = path.with_name(f".{path.name}.partial")
    try:
        write(partial_path)
        os.replace(partial_path, path)
    finally:
        partial_path.unlink(missing_ok=True)
