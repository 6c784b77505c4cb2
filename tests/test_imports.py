"""Host code imports no JAX, and `import hetjax` nothing that is seldom needed."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import hetjax

ROOT = Path(__file__).resolve().parent.parent
HOST = (
    "hetjax.arguments",
    "hetjax.machine",
    "hetjax.schedule",
    "hetjax.sampling",
    "hetjax.engine.capabilities",
    "hetjax.engine.drawn_examples",
    "hetjax.engine.expected_draws",
    "hetjax.engine.protocols",
    "hetjax.engine.decisions",
    "hetjax.engine.launched_merge",
    "hetjax.engine.player_parts",
    "hetjax.engine.tape",
    "hetjax.engine.tape_writer",
    "hetjax.engine.records.ledger",
    "hetjax.engine.records.moved_models",
    "hetjax.engine.records.timeline",
    "hetjax.checkpointable",
    "hetjax.summaries",
    "hetjax.atomic_files",
)
LAZY = ("matplotlib", "sklearn", "scipy.optimize", "orbax")  # each takes 0.1 to 2 s
DEVICE = ("jax", "jaxlib", "flax", "optax", "chex")


def is_within(module, packages):
    return any(module == name or module.startswith(name + ".") for name in packages)


def imports(source, package):
    """Dotted names of all imports of `source`, a module in `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from hetjax import merge` imports a module too
            yield from (f"{base}.{alias.name}" for alias in node.names)


def forbidden(source, package, allowed=HOST):
    """The imports of device libraries, and of hetjax outside `allowed`."""
    return [
        name
        for name in imports(source, package)
        if is_within(name, DEVICE)
        or (is_within(name, ("hetjax",)) and not is_within(name, allowed))
    ]


def modules(*names):
    """The files of these modules and packages, with their packages."""
    found = []
    for name in names:
        base = ROOT.joinpath(*name.split("."))
        files = sorted(base.rglob("*.py")) or [base.with_suffix(".py")]
        found += [path for path in files if path.exists()]
    return [pytest.param(path, id=str(path.relative_to(ROOT))) for path in found]


def package_of(path):
    return ".".join(path.relative_to(ROOT).parent.parts)


@pytest.mark.parametrize("path", modules(*HOST))
def test_host_modules_import_no_device_code(path):
    assert forbidden(path.read_text(), package_of(path)) == []


@pytest.mark.parametrize("path", modules("hetjax.machine"))
def test_machines_import_nothing_but_machines(path):
    found = forbidden(
        path.read_text(),
        package_of(path),
        (
            "hetjax.machine",
            "hetjax.arguments",
            "hetjax.checkpointable",
            "hetjax.summaries",
            "hetjax.atomic_files",
        ),
    )
    assert found == []


def test_there_is_something_to_check():
    ids = {param.id for param in modules(*HOST)}
    files = ("machine/simulated_clock.py", "schedule/types.py", "engine/tape.py")
    assert {f"hetjax/{name}" for name in files} <= ids


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import jax", ["jax"]),
        ("import jax.numpy as jnp", ["jax.numpy"]),
        ("from jax import numpy", ["jax.numpy"]),
        ("import os, optax", ["optax"]),
        ("def f():\n    from flax import nnx", ["flax.nnx"]),
        ("import hetjax", ["hetjax"]),
        ("from hetjax import merge", ["hetjax.merge"]),
        ("from hetjax.engine.loop import run", ["hetjax.engine.loop.run"]),
        ("from ..merge import base", ["hetjax.merge.base"]),
        ("from .. import merge", ["hetjax.merge"]),
        ("from . import types", []),
        ("from .types import Policy", []),
        ("from hetjax import machine", []),
        ("from hetjax.machine.types import Work", []),
        ("from hetjax.machinery import x", ["hetjax.machinery.x"]),
        ("import jaxtyping, numpy", []),
    ],
)
def test_the_check_itself(source, found):
    assert forbidden(source, "hetjax.schedule") == found


def modules_after(code):
    """The modules that a new process has loaded after running the code."""
    code = f"{code}; import sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_tape_is_written_without_device_code():
    found = modules_after("import hetjax; hetjax.decisions")
    assert "hetjax.engine.tape" in found
    assert [name for name in found if is_within(name, DEVICE)] == []


def test_importing_hetjax_imports_nothing_else():
    found = modules_after("import hetjax; hetjax.__version__; dir(hetjax)")
    assert "hetjax" in found
    assert not {"jax", "numpy", "hetjax.api"} & set(found)


WITHOUT_RAY = """
import json, sys

asked = []

class NoRay:  # as if it were not installed
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "ray":
            asked.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoRay())
from hetjax import *
import hetjax as hj
hj.train, hj.local_machine, hj.api.ClusterMachine, hj.cluster_machine
found = {"modules": list(sys.modules), "asked": list(asked), "error": ""}
try:
    hj.cluster_machine(local_workers=2)
except ImportError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


def test_all_of_hetjax_imports_nothing_that_is_seldom_needed_and_no_ray():
    """Without Ray a cluster's error names the extra, and all else is as with it."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert "hetjax.report.comparison" in found["modules"]
    assert [name for name in found["modules"] if name in LAZY] == []
    assert found["asked"] == []  # before a cluster is asked for
    assert "pip install 'hetjax[cluster]'" in found["error"]


def test_every_public_name_is_there():
    """Of the stub, which type checkers read."""
    assert {"train", "task", "sweep", "plot", "STOP"} <= set(hetjax.__all__)
    assert sorted(hetjax.__all__) == sorted(set(hetjax.__all__))
    for name in hetjax.__all__:
        assert getattr(hetjax, name) is not None
    with pytest.raises(AttributeError, match="No hetjax attribute trian"):
        hetjax.trian  # noqa: B018


def test_ray_is_imported_by_one_module():
    found = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "hetjax").rglob("*.py")
        if any(is_within(name, ("ray",)) for name in imports(path.read_text(), ""))
    ]
    assert found == ["hetjax/runtimes/cluster/ray_cluster.py"]
