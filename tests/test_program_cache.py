"""Compiled programs are kept for the next process, where the user wants that."""

import ast
import os
import subprocess
import sys

import jax
import pytest

from hetjax import program_cache
from hetjax.cache import programs_folder
from hetjax.program_cache import enable_program_cache

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
RUN = """
import collections, jax.monitoring
events = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: events.update([name]))
import hetjax as hj
data = hj.data.digits()
task = hj.classification(hj.models.mlp(hidden=8), data)
machine = hj.machine.preset("v100x2")
strategies = {"sma": hj.sma(batch_size=32, learning_rate=0.1)}
runs = hj.compare(task, data, machine, strategies, seconds=0.1, progress=False)
names = "compile_requests_use_cache", "cache_hits"
print([events["/jax/compilation_cache/" + name] for name in names])
"""


@pytest.fixture
def unset(monkeypatch):
    """JAX's settings are those of a user who has set none; they are put back."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    jax.config.update("jax_compilation_cache_dir", None)
    for name in SETTINGS:
        monkeypatch.delenv(name.upper(), raising=False)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def chosen():
    enable_program_cache()
    return tuple(getattr(jax.config, name) for name in SETTINGS)


def test_programs_are_kept_in_the_cache_folder(unset, monkeypatch, tmp_path):
    monkeypatch.delenv("HETJAX_COMPILATION_CACHE", raising=False)
    monkeypatch.setenv("HETJAX_CACHE", str(tmp_path))
    folder, *smallest = chosen()
    assert folder == str(programs_folder())
    assert folder.startswith(str(tmp_path / "programs"))
    assert os.path.isdir(folder)
    assert smallest == [0.0, -1]  # all of them


def test_a_folder_of_the_user_s_choice(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("HETJAX_COMPILATION_CACHE", str(tmp_path / "mine"))
    assert chosen()[0].startswith(str(tmp_path / "mine"))


@pytest.mark.parametrize("off", ["0", "off", "OFF", ""])
def test_nothing_is_kept_where_it_is_turned_off(unset, monkeypatch, off):
    monkeypatch.setenv("HETJAX_COMPILATION_CACHE", off)
    assert chosen()[0] is None


def test_jax_s_own_setting_stays(unset, monkeypatch, tmp_path):
    monkeypatch.setenv("HETJAX_COMPILATION_CACHE", str(tmp_path / "mine"))
    jax.config.update("jax_compilation_cache_dir", "elsewhere")
    assert chosen()[0] == "elsewhere"
    assert not (tmp_path / "mine").exists()


def test_a_folder_that_cannot_be_written_is_not_used(unset, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETJAX_COMPILATION_CACHE", str(tmp_path / "file"))
    assert chosen()[0] is None


def test_another_processor_has_a_folder_of_its_own(monkeypatch):
    here = programs_folder()
    monkeypatch.setattr("hetjax.cache._instructions", lambda: "flags: none")
    assert programs_folder() != here


def test_the_oldest_programs_are_removed_and_those_that_were_never_written(
    unset, monkeypatch, tmp_path
):
    monkeypatch.setenv("HETJAX_COMPILATION_CACHE", str(tmp_path))
    monkeypatch.setattr(program_cache, "MOST", 100)
    folder = programs_folder()
    assert folder is not None
    folder.mkdir()
    for age, size in enumerate([30, 40, 0, 45]):  # 115 bytes: at most 50 stay
        (folder / f"{age}").write_bytes(bytes(size))
        os.utime(folder / f"{age}", (1000 + age, 1000 + age))
    enable_program_cache()
    assert [path.name for path in folder.iterdir()] == ["3"]


@pytest.mark.full
def test_a_second_process_compiles_nothing(tmp_path):
    environment = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    environment["HETJAX_CACHE"] = str(tmp_path)

    def run():
        command = [sys.executable, "-c", RUN]
        found = subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        )
        return ast.literal_eval(found.stdout.splitlines()[-1])

    requests, hits = run()
    assert 0 <= hits < requests
    assert run() == [requests, requests]
