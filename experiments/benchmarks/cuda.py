"""Tests and benchmarks on a GPU that can be had for a few minutes.

    python experiments/benchmarks/cuda.py --minutes=8
    python experiments/benchmarks/cuda.py --parts=mesh_rounds,merges

Parts run one after another, in the order of their importance, each in a process of its
own: first the tests on CUDA, then the most important part of each benchmark. After each
part, all results are written to the JSON file --out, so that nothing is lost when the
time is up: then the running part is ended, and later ones are omitted (all of them
take a quarter of an hour on an H100). At the end the tables of "On CUDA" (README.md)
are printed. Peers that are not installed are null.

Without a GPU all parts run with tiny settings, which shows that each of them works; the
figures mean nothing then. The exit status is 1 if a part or a test failed.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from absl import flags

from experiments.benchmarks.child import output_of
from experiments.benchmarks.cuda_parts import PARTS, has_failed, markdown, measured
from experiments.common import bounds, scripts
from experiments.common.bounds import bounded

FLAGS = flags.FLAGS
flags.DEFINE_float("minutes", 8.0, "time for all parts")
flags.DEFINE_list("parts", list(PARTS), "some of the parts; they keep their order")
flags.DEFINE_string("out", "results/cuda.json", "JSON file of the results")
bounded("minutes", 0.1, 10_000, "it is a time that passes")

_ABOUT = """
import json, jax
from experiments.benchmarks.models_peers import version
device = jax.devices()[0]
print(json.dumps({"platform": device.platform, "device": device.device_kind,
    "jax": jax.__version__, "torch": version()}))
"""


def _write(path: Path, found: dict[str, Any]) -> None:
    """Replace the file at once: it is whole whenever this process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(found, indent=1) + "\n")
    new.replace(path)


def measure(deadline: float, path: Path) -> dict[str, Any]:
    """Run the parts until the deadline; Ctrl-C keeps the results of finished parts."""
    about = output_of(["-c", _ABOUT], deadline - time.monotonic())
    if "failed" in about:
        raise ValueError(f"JAX does not start here: {about['failed']}")
    found: dict[str, Any] = {"about": about, "parts": {}}
    tiny = about["platform"] == "cpu"
    if tiny:
        print("no GPU: tiny settings, whose figures mean nothing", file=sys.stderr)
    chosen = [name for name in PARTS if name in FLAGS.parts]
    try:
        for number, name in enumerate(chosen, 1):
            left = deadline - time.monotonic()
            print(
                f"{name} ({number} of {len(chosen)}), {left:.0f} s left",
                file=sys.stderr,
            )
            found["parts"][name] = measured(name, tiny=tiny, left=left)
            _write(path, found)
    except KeyboardInterrupt:
        print("interrupted: later parts are left out", file=sys.stderr)
    return found


def main() -> int:
    bounds.check_some_of("parts", FLAGS.parts, PARTS)
    path = Path(FLAGS.out)
    found = measure(time.monotonic() + 60 * FLAGS.minutes, path)
    print(markdown(found))
    print(f"all figures: {path}", file=sys.stderr)
    parts = found["parts"].values()
    return int(any(map(has_failed, parts)))


if __name__ == "__main__":
    scripts.run(main)
