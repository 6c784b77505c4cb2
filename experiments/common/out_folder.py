"""The folder of a script's results: --out, or the first folder that fits."""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from hetjax.api import OtherRun

USUAL = "results"
_Result = TypeVar("_Result")


def in_folder(out: str | None, work: Callable[[Path], _Result]) -> _Result:
    """Return what `work(folder)` returns, in --out or in the first folder that fits.

    Those are results, results-2, results-3, ...: a folder does not fit if `work` raises
    an OtherRun, or a FileExistsError, before it has written anything there. With --out
    such an error is raised.
    """
    if out is not None:
        return work(Path(out))
    for folder in _numbered():
        try:
            return work(folder)
        except (OtherRun, FileExistsError) as error:
            if folder == Path(USUAL):  # one line is enough
                print(f"{_why(folder, error)}: taking the next one", file=sys.stderr)
    raise AssertionError("there is always a next number")


def _why(folder: Path, error: Exception) -> str:
    """The reason why a folder does not fit."""
    if isinstance(error, OtherRun):
        return error.what
    return f"{folder} holds the results of other runs"


def _numbered() -> Iterator[Path]:
    yield Path(USUAL)
    for number in itertools.count(2):
        yield Path(f"{USUAL}-{number}")
