"""The folder of one run: which checkpoints it holds, and the one that counts.

    runs/a/
      000011/  000012/    the last checkpoints; the run goes on from the newest
      000013/             or, alone: the history and the models of a run that is over
      lock                held by the process that runs it

Numbers only rise, so that the newest folder is always the one that counts, wherever a
process was killed amid writing, renaming and deleting.

Of several processes each has a folder of its own, with its own devices' replicas. They
cut a run at the same moments, under the same numbers; it goes on from the newest number
that all of them have.
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
VERSION = 2  # of what is kept of a run that is not over


class FoundCheckpoint(NamedTuple):
    """What a folder holds of a run."""

    about: dict[str, Any]  # the settings with which it was made
    values: dict[str, Any]  # of the newest checkpoint that is not damaged, or the end
    number: int  # of that checkpoint
    finished: bool
    damaged: tuple[str, ...]  # why newer ones were passed over


def alone(name: str, value: Any) -> list[Any]:
    """`Gather` of one process."""
    return [value]


def place(folder: Path, number: int) -> Path:
    """Where the checkpoint with this number is."""
    return folder / f"{number:06}"


def find(
    folder: Path, gather: Gather = alone, *, about_alone: bool = False
) -> FoundCheckpoint | None:
    """Return what a folder holds of a run; None if it holds nothing.

    The newest checkpoint that is not damaged is taken; of several processes the newest
    that is damaged for none. `about_alone`: its arrays are not read, and there are no
    `values`. Errors: Damaged, with the reasons, if all are, or if the processes have
    none in common.
    """
    everyone = gather("kept checkpoints", numbers_in(folder))
    damaged: list[str] = []
    for number in sorted(set.intersection(*map(set, everyone)), reverse=True):
        found = _read(place(folder, number), number, about_alone)
        problems = [found] if isinstance(found, str) else []
        problems = sum(gather("damage", problems), [])
        if not problems and isinstance(found, FoundCheckpoint):
            return found._replace(damaged=tuple(damaged))
        damaged += problems
    if not any(everyone):
        return None
    why = "; ".join(damaged) or "the processes have none in common"
    raise Damaged(
        f"{folder}: no checkpoint can be used: {why}; begin anew with "
        'resume="never", or choose another folder'
    )


def _read(checkpoint: Path, number: int, about_alone: bool) -> FoundCheckpoint | str:
    """What a checkpoint holds, or why it cannot be used."""
    try:
        document, arrays = checkpoint_files.read(checkpoint, document_alone=about_alone)
        version = document.get("version", 1)
        if version != VERSION and not document["finished"]:
            return (
                f"{checkpoint}: of version {version}, but this hetjax goes on with "
                f"runs of version {VERSION}: go on with the hetjax that wrote it"
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
            f"{checkpoint} was written by a program that has what this one has not: "
            f"{error}; go on with that program, or define it in a module of both"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{checkpoint}: {kind_of(error)}{error}"


def holds_run(folder: Path) -> bool:
    """Is this the folder of a run?"""
    return bool(numbers_in(folder))


def numbers_in(folder: Path, *, of_runs: bool = True) -> list[int]:
    """The numbers of all checkpoints, rising; or of all that is called like one."""
    if not folder.is_dir():
        return []
    paths = [p for p in folder.iterdir() if re.fullmatch(r"\d{6,}", p.name)]
    if of_runs:  # a folder of another program may be called 20261123
        names = (checkpoint_files.STATE, checkpoint_files.MANIFEST)
        paths = [p for p in paths if any((p / name).exists() for name in names)]
    return sorted(int(p.name) for p in paths)


def delete(path: Path) -> None:
    """Delete a folder or file, if it is there and that can be done."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def kind_of(error: Exception) -> str:
    """The kind of an error, where its message alone does not tell it."""
    return "" if type(error) in (OSError, ValueError) else f"{type(error).__name__}: "
