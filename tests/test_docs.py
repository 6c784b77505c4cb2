"""The code of the README runs as written there."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp

import hetjax as hj

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def block(phrase: str) -> str:
    """The one block of the README's code that holds this phrase."""
    (found,) = [block for block in BLOCKS if phrase in block]
    return found


def test_the_ten_lines_of_the_readme_run(tmp_path, monkeypatch, capsys):
    """They are a script: a table is printed, and a picture written."""
    monkeypatch.chdir(tmp_path)
    code = block("runs.plot()")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    short = code.replace("seconds=4", "seconds=0.1, num_evals=2, progress=False")
    assert short != code
    names = {}
    exec(short, names)
    assert [h.strategy for h in names["runs"].histories] == [
        "one GPU",
        "equal steps",
        "steps by speed",
    ]
    assert capsys.readouterr().out.startswith("strategy ")
    assert Path("accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_algorithm_of_the_readme_trains():
    names = {}
    exec(block("def median()"), names)
    data = hj.data.digits()
    history = hj.train(
        hj.classification(hj.models.mlp(hidden=32), data),
        data,
        hj.machine.preset("v100x4"),
        names["strategy"],
        seconds=1.0,
        num_evals=2,
        progress=False,
    )
    assert history.evals[0]["accuracy"] < 0.5
    assert history.best() > 0.9


def test_the_round_of_the_readme_runs():
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    names = {"task": task}
    exec(block("def median()"), names)
    exec(block("hj.make_round"), names)
    assert names["metrics"]["losses"].shape == (4, 8)
    params, model_state = task.init(jax.random.key(0))
    shapes = [jax.tree.map(jnp.shape, p) for p in (params, names["params"])]
    assert shapes[0] == shapes[1]
