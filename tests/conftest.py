"""Every test runs on eight CPU devices, and rank promotion is an error.

On a GPU: `JAX_PLATFORMS=cuda,cpu XLA_FLAGS=--xla_gpu_deterministic_ops=true
JAX_DEFAULT_MATMUL_PRECISION=highest XLA_PYTHON_CLIENT_PREALLOCATE=false python -m
pytest -n 8`. JAX's default precision there is that of TensorFloat-32, 3e-4 of a matrix
product, so that oracles in float64 differ by more than they may.

Most of the tests' time is XLA's. A program that several tests, or the scripts and
notebooks that they run, compile is compiled once per session: JAX keeps it in a
temporary folder that all processes of the session share. On CPUs XLA leaves out its
costly optimizations and its newer code generators, since programs run for microseconds:
a small training step compiles in 40 ms instead of 260. JAX_DISABLE_MOST_OPTIMIZATIONS=0
compiles what users run, as .ci/run does for some of the tests. Python looks for garbage
more seldom than by default, which saves another tenth.
"""

import atexit
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # else: of xdist's workers, or yours
    _compiled = tempfile.mkdtemp(prefix="hetjax-compiled-")
    atexit.register(shutil.rmtree, _compiled, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _compiled
if os.environ["JAX_PLATFORMS"] == "cpu":
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1":
    _quickly = (
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )
    if _quickly not in os.environ.get("XLA_FLAGS", ""):  # not again in processes of it
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_quickly}"
# Ray reads it once in a process; some tests start nodes one by one, without a token
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
# XLA's threads for CPUs. By default they are as many as the devices, and a collective
# holds all of them: with one busy, the last device would never come (seen once)
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import pytest
from fake_time import World
from tiers import NoDeviceWorld, Tiers, is_host_alone

from hetjax.runtimes.real import wall_clock

MOST_MAPS = 25_000

# a shell's background job, or nohup, ignores them, and so would all tests of signals
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config):
    config.pluginmanager.register(Tiers(config))
    if is_host_alone(config):
        sys.meta_path.insert(0, NoDeviceWorld())
        return
    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()  # modules and tests stay: no collection looks at them again
    gc.set_threshold(20_000, 20, 10)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """What is measured of devices is kept apart from the user's measurements."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HETJAX_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


_tests = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    del item
    done = yield
    _free_programs()  # after its reports: this takes seconds, which are no test's cost
    return done


def _free_programs():
    """Free compiled programs in time, since each takes several memory maps.

    At the kernel's limit of them (65,530, by default) the process crashes in XLA.
    """
    if next(_tests) % 20 or "jax" not in sys.modules:
        return
    from experiments.common.memory_maps import free_programs

    if free_programs(MOST_MAPS):
        # its programs are in no test's count of compilations
        sys.modules["jax"].random.key(0)


@pytest.fixture
def cpu_alone():
    """Skip where JAX's default device is no CPU: its bits are not those of a CPU's."""
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("compares CPU devices with JAX's default one: JAX_PLATFORMS=cpu")


@pytest.fixture
def world(monkeypatch):
    """A world whose time is scripted, for the wall clock."""
    scripted = World()
    monkeypatch.setattr(wall_clock, "time", scripted)
    monkeypatch.setattr(wall_clock, "queue", scripted)
    return scripted
