"""Damaged checkpoints: the behavior of runs with a damaged folder."""

import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hetjax as hj
from hetjax.checkpoint import checkpoint_files

SECONDS, EVALS = 0.4, 12


def truncate(file: Path, rng: np.random.Generator) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.integers(len(content))])


def flip(file: Path, rng: np.random.Generator) -> None:
    content = bytearray(file.read_bytes())
    content[rng.integers(len(content))] ^= 1 << rng.integers(8)
    file.write_bytes(bytes(content))


def remove(file: Path, rng: np.random.Generator) -> None:
    file.unlink()


def say_another_version(file: Path, rng: np.random.Generator) -> None:
    set_version(file, int(rng.integers(5, 99)))


def set_version(file: Path, version: int) -> None:
    """Change a checkpoint's version, with the right checksums."""
    document, arrays = checkpoint_files.read(file)
    checkpoint_files.write(file, {**document, "version": version}, arrays)


MUTATIONS: dict[str, Callable[[Path, np.random.Generator], None]] = {
    "truncated": truncate,
    "bit flipped": flip,
    "file missing": remove,
    "of another version": say_another_version,
}


def mutations(number: int, folder: Path, seed: int) -> dict[str, Any]:
    """Damage a folder of two checkpoints `number` times; count the outcomes of a call.

    "equal": the run continued, and the result was equal; it named each damaged file
    that it did not use; "error": one line, nothing trained; "other": anything else.
    """
    data = hj.data.digits()
    tasks = hj.classification(hj.models.mlp(hidden=16), data)
    others = hj.data.digits(seed=1)  # other data
    machine = hj.machine.preset("v100x2")
    strategy = hj.adaptive_sgd(batch_size=32, learning_rate=0.1)

    def run(path: Path | None, data: Any = data, **more: Any) -> hj.History:
        return hj.train(
            tasks,
            data,
            machine,
            strategy,
            seconds=SECONDS,
            num_evals=EVALS,
            checkpoint=hj.Checkpoint(path, every="1 eval") if path else None,
            progress=False,
            **more,
        )

    whole, good = run(None).evals, folder / "good"
    _interrupt(run, good)
    rng, counts = np.random.default_rng(seed), Counter()
    for i in range(number):
        copy = folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(good, copy)
        kinds = [*MUTATIONS, "of other data"]
        kind = kinds[i % len(kinds)]
        newest, *rest = sorted(copy.glob("checkpoint-*"))[::-1]
        broken = [newest, *rest] if rng.random() < 0.3 else [newest]
        for checkpoint in broken if kind in MUTATIONS else ():
            MUTATIONS[kind](checkpoint, rng)
        given = others if kind == "of other data" else data
        counts[kind, _outcome(run, copy, given, newest, whole)] += 1
        if (i + 1) % 50 == 0:
            print(f"{i + 1} of {number}: {dict(counts)}", file=sys.stderr)
    return {f"{kind}: {what}": n for (kind, what), n in sorted(counts.items())}


def _interrupt(run: Callable[..., hj.History], folder: Path) -> None:
    """Leave two checkpoints of a run that did not end."""

    class Stop(Exception):
        pass

    def on_eval(point: dict[str, float]) -> None:
        if point["seconds"] > SECONDS / 2:
            raise Stop

    run(folder, on_eval=on_eval, on_error="keep")


def _outcome(
    run: Callable[..., hj.History], copy: Path, data: Any, newest: Path, whole: list
) -> str:
    there = newest.exists()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            history = run(copy, data)
        except ValueError as error:
            return "error" if "\n" not in str(error) else "other"
    named = any(newest.name in str(w.message) for w in caught)
    used = [i.checkpoint for i in history.interruptions]
    skipped = there and used != [int(newest.stem.split("-")[1])]
    right = history.evals == whole and named == skipped
    return "equal" if right else "other"
