"""One reading of `reading.py`: python reading_process.py CONTENDER FOLDER CACHE."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from sklearn.datasets import load_svmlight_files

from hetjax.data import Dataset, read_folder


def by_hetjax(folder: Path, cache: Path | bool) -> list[Any]:
    data: Dataset = read_folder(folder, cache=cache)
    matrices = [m for split in (data.train, data.test) for m in (split.x, split.y)]
    return [a for m in matrices for a in (m.data, m.indices, m.indptr)]


def by_sklearn(folder: Path) -> list[Any]:
    """Arrays of the features; labels are lists of tuples, whose size is left out."""
    files = [str(folder / "train.txt"), str(folder / "test.txt")]
    x_train, _, x_test, _ = load_svmlight_files(files, multilabel=True)
    return [a for x in (x_train, x_test) for a in (x.data, x.indices, x.indptr)]


def peak() -> int | None:
    """The peak memory of this process [bytes]; None if it is not known."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return 1024 * int(fields["VmHWM"].split()[0])


def main(contender: str, folder: Path, cache: Path) -> None:
    before = peak()
    cpu, wall = time.process_time(), time.perf_counter()
    if contender == "sklearn":
        arrays = by_sklearn(folder)
    else:
        arrays = by_hetjax(folder, False if contender == "hetjax" else cache)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    size, after = sum(array.nbytes for array in arrays), peak()
    grown = None if before is None or after is None else after - before
    result = {
        "cpu_s": round(cpu, 4),
        "wall_s": round(wall, 4),
        "arrays_mb": round(size / 1e6, 3),
        "peak_mb": None if grown is None else round(grown / 1e6, 3),
        "peak_over_arrays": None if grown is None else round(grown / size, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
