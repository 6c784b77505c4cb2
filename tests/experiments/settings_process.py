"""What compare.py makes of each .flags file on standard input, as JSON.

In a process of its own, since several scripts define flags of the same names. Some runs
have up to a million arrivals: their seconds are extrapolated from a few. Made data have
a two-hundredth of their rows; their features and labels are all there.
"""

import importlib
import json
import sys
from unittest import mock

import jax
from absl import flags
from absl.testing import flagsaver

from hetjax import tree
from hetjax.data import SHAPES
from hetjax.schedule import Progress
from hetjax.schedule.learning_rates import learning_rate_at

for shape in SHAPES.values():
    shape.update(rows=shape["rows"] // 200, test_rows=shape["test_rows"] // 200)

from experiments import compare  # noqa: E402  it takes the shapes

# the attribute `plan` of the package is the function
plan = importlib.import_module("hetjax.api.plan")

EXACT = "table5"  # whose seconds are compared with the paper's


def described(path):
    events = plan.EVENTS if EXACT in path else 500
    with flagsaver.flagsaver(), mock.patch.object(plan, "EVENTS", events):
        flags.FLAGS(["compare.py", f"--flagfile={path}", "--plan"])
        task, data, machine, strategies = compare.setting()
        model = jax.eval_shape(task.init, jax.random.key(0))
        epochs = flags.FLAGS.epochs

        def rates(strategy):
            instants = [Progress(0, epochs * k / 8, 0, 0.0) for k in range(9)]
            return [learning_rate_at(strategy.learning_rate, at) for at in instants]

        return {
            "epochs": epochs,
            "out": flags.FLAGS.out,
            "target": flags.FLAGS.target,
            "data": data.name,
            "parameters": tree.size(model[0]),
            "machine": machine.name,
            "workers": len(machine.workers),
            "seconds": compare.durations((task, data, machine, strategies)),
            "strategies": {
                name: {
                    "batch_size": s.batch_size,
                    "rates": rates(s),
                    "settings": {k: repr(v) for k, v in s.settings.items()},
                }
                for name, s in strategies.items()
            },
        }


if __name__ == "__main__":
    print(json.dumps({path: described(path) for path in json.load(sys.stdin)}))
