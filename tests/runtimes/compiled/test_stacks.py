"""Programs of stretches write rows of stacks in place, without copies of the stacks."""

import re

import jax
import pytest
from quick import quick

import hetjax as hj
from hetjax.runtimes.compiled import stretch_launcher
from hetjax.runtimes.compiled.stretch_program import stretch_program

WORKERS = 6
HIDDEN = 24


def loops_of(program):
    """The lines of an optimized program but for those that run once, at its start."""
    inside = True
    for line in program.splitlines():
        if line.startswith(("%", "ENTRY")):
            inside = not line.startswith("ENTRY")
        if inside:
            yield line


@pytest.mark.parametrize(
    "name",
    quick(
        [
            *("sequential_sgd", "easgd_sync", "sma", "local_sgd", "async_sgd"),
            *("magma_async_sgd", "downpour", "easgd", "eamsgd", "ad_psgd", "hier_sgd"),
        ],
        "sma",
        "easgd",
    ),
)
def test_a_merge_or_a_round_of_one_worker_copies_no_other(monkeypatch, name):
    """It would take the time of all: with 64 workers SMA was eight times slower."""
    programs = []

    def call(self, shape, arrays, tables):
        run = jax.jit(stretch_program(self.parts, shape, self._source.batch_maker))
        compiled = run.lower(self.run_state, arrays, tables).compile()
        programs.append(compiled.as_text())
        return compiled(self.run_state, arrays, tables)

    monkeypatch.setattr(stretch_launcher.StretchLauncher, "_call", call)
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=HIDDEN), data)
    own = {"levels": (2,)} if name == "hier_sgd" else {}  # a merge of some workers
    strategy = hj.STRATEGIES[name](batch_size=8, learning_rate=0.1, **own)
    machine = hj.machine.preset(f"uniform:{WORKERS}")
    hj.train(
        task,
        data,
        machine,
        strategy,
        seconds=0.05,
        num_evals=1,
        compiled=True,
        progress=False,
    )
    assert programs
    kernel = rf"f32\[{WORKERS},64,{HIDDEN}\]\S* "
    for program in programs:
        lines = list(loops_of(program))
        assert any(re.search(kernel, line) for line in lines)
        assert not [line for line in lines if re.search(kernel + r"copy\(", line)]
