"""The folder of a comparison's results: what is written, what is kept."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from hetjax.report.comparison import Comparison

NAMES = (
    "results.json",
    "results.csv",
    "time_to_accuracy.png",
    "batch_sizes.png",
    "timeline.png",
)


def check_out(out_dir: str | Path, overwrite: bool = False) -> None:
    """Refuse a folder that holds results or cannot be written, before the work."""
    folder = Path(out_dir)
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"{folder} is a file: choose another --out")
    found = [name for name in NAMES if (folder / name).exists()]
    if found and not overwrite:
        raise FileExistsError(
            f"{folder} already holds {', '.join(found)}: "
            "use --overwrite, or choose another --out"
        )
    active = next(p for p in (folder, *folder.absolute().parents) if p.exists())
    if not os.access(active, os.W_OK):
        raise PermissionError(f"{active} cannot be written to: choose another --out")


def write_results(
    runs: Comparison,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    version: str | None = None,
) -> list[Path]:
    """Write all files of a comparison; returns their paths."""
    check_out(out_dir, overwrite)
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    writers = (
        partial(runs.to_json, version=version),
        runs.to_csv,
        lambda path: _save(runs.plot(), path),
        lambda path: _save(runs.plot_batch_sizes(), path),
        lambda path: _save(runs.plot_timeline(), path),
    )
    paths = [folder / name for name in NAMES]
    for path, write in zip(paths, writers, strict=True):
        _write_whole(path, write)
    return paths


def _save(figure: Figure, path: Path) -> None:
    """A PNG; the format is said because the temporary name does not."""
    figure.savefig(path, format="png", dpi=150)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Write beside, then rename: an interruption leaves the old file or none."""
    partial_path = path.with_name(f".{path.name}.partial")
    try:
        write(partial_path)
        os.replace(partial_path, path)
    finally:
        partial_path.unlink(missing_ok=True)
