"""The folder of one run: its checkpoints, and the one from which the run continues.

    runs/a/
      000011/  000012/    the last checkpoints; the run continues from the newest
      000013/             or, alone: the history and the models of a finished run
      lock                held by the process that runs it

Numbers only rise, so that the newest folder is always the valid one, wherever a process
was killed while it wrote, renamed or deleted.

In a run of several processes, each has a folder of its own, with its own devices'
replicas. All take snapshots at the same moments, under the same numbers; the run
continues from the newest number that all of them have.
"""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hetjax.checkpoint import checkpoint_files
from hetjax.checkpoint.checkpoint_files import Damaged
from hetjax.checkpoint.values import decode
from hetjax.recipes import NoRecipe

Gather = Callable[[str, Any], list[Any]]
"""gather(name, value) -> the values of all processes, as JSON returns them."""
LOCK = "lock"
STATE_VERSION = 3  # of the state and the settings of a run


class FoundCheckpoint(NamedTuple):
    """The newest checkpoint in a folder that is not damaged."""

    about: dict[str, Any]  # the settings of the run
    values: dict[str, Any]  # its state, or that of its end
    number: int
    finished: bool
    damaged: tuple[str, ...]  # why newer checkpoints were skipped


def gather_alone(name: str, value: Any) -> list[Any]:
    """The `Gather` of a single process."""
    return [value]


def checkpoint_path(folder: Path, number: int) -> Path:
    """Return the folder of the checkpoint with this number."""
    return folder / f"{number:06}"


def find(
    folder: Path,
    gather: Gather = gather_alone,
    *,
    about_alone: bool = False,
    any_version: bool = False,
) -> FoundCheckpoint | None:
    """Return the newest checkpoint in a folder that is not damaged; None without any.

    Of several processes, it is damaged in none. `about_alone`: do not read arrays, and
    return no `values`. `any_version`: also a finished run of another version, to which
    no other run can be compared. Errors: Damaged, with the reasons, if all checkpoints
    are, or if the processes have none in common.
    """
    everyone = gather("found checkpoints", numbers_in(folder))
    damaged: list[str] = []
    for number in sorted(set.intersection(*map(set, everyone)), reverse=True):
        found = _read(checkpoint_path(folder, number), number, about_alone, any_version)
        problems = [found] if isinstance(found, str) else []
        problems = sum(gather("damage", problems), [])
        if not problems and isinstance(found, FoundCheckpoint):
            return found._replace(damaged=tuple(damaged))
        damaged += problems
    if not any(everyone):
        return None
    why = "; ".join(damaged) or "the processes have none in common"
    raise Damaged(
        f"{folder} has no usable checkpoint: {why}; start over with "
        'resume="never", or choose another folder'
    )


def _read(
    checkpoint: Path, number: int, about_alone: bool, any_version: bool
) -> FoundCheckpoint | str:
    """Return a checkpoint, or why it cannot be used."""
    try:
        document, arrays = checkpoint_files.read(checkpoint, document_alone=about_alone)
        version = document.get("version", 1)
        if version != STATE_VERSION and not (any_version and document["finished"]):
            return (
                f"{checkpoint} has version {version}, but this hetjax continues runs "
                f"of version {STATE_VERSION}: use the hetjax that wrote it"
            )
        encoded = {} if about_alone else document["values"]
        values = {k: decode(v, arrays) for k, v in encoded.items()}
        return FoundCheckpoint(
            document["about"], values, number, document["finished"], ()
        )
    except Damaged as error:
        return str(error)
    except NoRecipe as error:
        raise ValueError(
            f"{checkpoint} was written by a program that defines a name which this "
            f"one does not: {error}; use that program, or define the name in a module "
            "of both"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{checkpoint}: {error_prefix(error)}{error}"


def holds_run(folder: Path) -> bool:
    """Whether this is the folder of a run."""
    return bool(numbers_in(folder))


def numbers_in(folder: Path, *, of_runs: bool = True) -> list[int]:
    """Return the numbers of all checkpoints, rising; or of all names like theirs."""
    if not folder.is_dir():
        return []
    paths = [p for p in folder.iterdir() if re.fullmatch(r"\d{6,}", p.name)]
    if of_runs:  # a folder of another program may have the name 20261123
        names = (checkpoint_files.STATE, checkpoint_files.MANIFEST)
        paths = [p for p in paths if any((p / name).exists() for name in names)]
    return sorted(int(p.name) for p in paths)


def delete(path: Path) -> None:
    """Delete a folder or file, if it exists and can be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def error_prefix(error: Exception) -> str:
    """Return the type of an error, if its message alone does not tell it."""
    return "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
