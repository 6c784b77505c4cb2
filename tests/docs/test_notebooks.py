"""The notebooks run, on tiny settings, and what is stored in them is clean.

The settings of a notebook are in its cell with the tag "parameters", as papermill has
it. The tests add a cell behind it that sets them to those of TINY, so that readers see
nothing of it.
"""

import ast
import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TINY = {
    "adaptive_sgd": {"seconds": 5, "seeds": 1, "num_evals": 2},
    "biased_local_sgd": {"seconds": 40, "seeds": 1, "num_evals": 2},
    "crossbow": {"seconds": 0.05, "seeds": 1, "num_evals": 2},
    "diloco_in_forty_lines": {"seconds": 0.3, "num_evals": 2},
    "extreme_classification": {
        "labels": 500,
        "steps": 1,
        "few_labels": 100,
        "seconds": 0.1,
    },
    "hier_sgd": {"seconds": 3, "seeds": 1, "num_evals": 2},
    "magmadnn": {"seconds": 0.05, "workers": (2, 4)},
    "own_algorithm": {"seconds": 0.2, "seeds": 1, "num_evals": 2},
    "quickstart": {"seconds": 0.2, "seeds": 1, "num_evals": 2},
    "real_devices": {"seconds": 0.4, "repeats": 1},
}


def by_stem(path: Path) -> str:
    return path.stem


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def made_tiny(path: Path) -> nbformat.NotebookNode:
    """The notebook, with a cell behind its parameters that sets them to TINY's."""
    notebook = read(path)
    if path.stem not in TINY:
        return notebook
    (at,) = (
        k
        for k, cell in enumerate(notebook.cells)
        if "parameters" in cell.metadata.get("tags", ())
    )
    nodes = ast.walk(ast.parse(notebook.cells[at].source))
    given = {node.id for node in nodes if isinstance(node, ast.Name)}
    assert given == set(TINY[path.stem]), "the settings are others than those of TINY"
    lines = [f"{name} = {value!r}" for name, value in TINY[path.stem].items()]
    cell = nbformat.v4.new_code_cell("\n".join(lines))
    notebook.cells.insert(at + 1, cell)
    return notebook


@pytest.mark.full
@pytest.mark.parametrize("path", PATHS, ids=by_stem)
def test_the_notebook_runs(path, monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(
        made_tiny(path), timeout=300, kernel_name="python3", resources=resources
    ).execute()


@pytest.mark.parametrize("path", PATHS, ids=by_stem)
def test_what_is_stored_is_clean(path):
    """Executed from the first cell to the last, and nothing of the machine is in it."""
    notebook = read(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    counts = [cell.execution_count for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text  # warnings, progress bars
    # pictures are bytes: what looks like a path in them is none
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert not re.findall(r"/(?:home|root|tmp|usr|opt|Users|work|var)/\S*", text)
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    assert path.stat().st_size < 300_000
