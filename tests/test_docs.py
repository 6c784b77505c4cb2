"""The code of the README and the notebooks runs as written there."""

import json
import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from quick import quick

import hetjax as hj

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def block(phrase: str) -> str:
    """The one block of the README's code that holds this phrase."""
    (found,) = [block for block in BLOCKS if phrase in block]
    return found


def test_the_ten_lines_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.txt", "test.txt"):
        rows = [f"{i % 3} {i % 3}:1 {3 + i % 5}:0.5\n" for i in range(300)]
        Path(name).write_text("300 8 3\n" + "".join(rows))
    code = (
        block("train.txt.gz")
        .replace("train.txt.gz", "train.txt")
        .replace("test.txt.gz", "test.txt")
    )
    code = code.replace(
        "seconds=6, seeds=3", "seconds=0.02, num_evals=2, progress=False"
    )
    assert "num_evals=2" in code
    names = {}
    exec(code, names)
    assert [h.strategy for h in names["runs"].histories] == ["elastic", "adaptive"]


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


@pytest.mark.parametrize(
    "name",
    quick(
        ["biased_adaptive", "tree_of_adaptive", "easgd_of_adapted_batches"],
        "biased_adaptive",
    ),
)
def test_the_combinations_of_the_readme_train(name):
    names = {}
    exec(block("biased_adaptive = "), names)
    data = hj.data.digits()
    history = hj.train(
        hj.classification(hj.models.mlp(hidden=32), data),
        data,
        hj.machine.preset("v100x4"),
        names[name],
        seconds=1.0,
        num_evals=2,
        progress=False,
    )
    assert history.evals[0]["accuracy"] < 0.5
    assert history.best() > 0.9


@pytest.mark.slow
def test_the_real_devices_of_the_readme(tmp_path, monkeypatch):
    """On two of the CPU devices, for less than a minute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    code = block("local_machine()  ")
    tiny = 'path="machine.json", batch_sizes=(8,), local_steps=(1,)'
    for shown, short in {
        "local_machine()": 'local_machine(["cpu:0", "cpu:1"])',
        "seconds=60": "seconds=0.5, num_evals=2, progress=False",
        'path="machine.json"': tiny,
        "target=0.95": "target=0.2, seconds=0.2, progress=False",
    }.items():
        assert shown in code
        code = code.replace(shown, short)
    code = code.replace("hj.replay(history", "same = hj.replay(history")
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=8), data)
    names = {"hj": hj, "data": data, "task": task}
    exec(code, names)
    assert names["same"] == "equal"
    assert json.loads(Path("run.json").read_text())["traceEvents"]
    assert hj.machine.load_machine("machine.json") == names["profile"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_the_notebook_runs(path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
