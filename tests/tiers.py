"""The three tiers of the tests, and what a test may cost.

host   needs no JAX: `pytest -m host` collects the files below alone, and refuses to
       import JAX
core   everything else that is not marked `full`; README's command runs host and core
full   is marked `pytest.mark.full`: `pytest -m full`, which .ci/run does besides

Costs are seconds of the processor, of a test with its fixtures and the processes that
it waits for, since these depend little on what else a machine does. Tests over their
budget are listed at the end of every run. One that takes several times its budget lets
the run fail. How slow the machine is at that moment counts: a fixed piece of work is
timed beside such a test, since machines of one kind differ threefold from day to day.
"""

import json
import os
import time
from collections import defaultdict
from pathlib import Path

import pytest

HOST = (  # files and folders
    "hetjax/machine",
    "hetjax/sampling",
    "hetjax/schedule",
    "tests/checkpoint/test_values.py",
    "tests/docs/test_citations.py",
    "tests/docs/test_links.py",
    "tests/engine/test_answers.py",
    "tests/engine/test_tape.py",
    "tests/engine/test_writer.py",
    "tests/machine",
    "tests/report",
    "tests/runtimes/real/test_deadlines.py",
    "tests/runtimes/real/test_wall_clock.py",
    "tests/runtimes/real/test_wall_clock_membership.py",
    "tests/sampling",
    "tests/schedule",
    "tests/test_by_name.py",
    "tests/test_tiers.py",
    "tests/tracing",
)
DEVICE_WORLD = ("chex", "flax", "jax", "jaxlib", "optax", "orbax")
# Their parts are those of other strategies, in other combinations or with other
# formulas: in tables of all strategies they are full, but for the tests named below,
# and the longest tables are without them (`zoo.FORMS`)
ALIKE = (
    "async_diloco",
    "dc_asgd",
    "delayed_nesterov",
    "eamsgd",
    "easgd_sync",
    "fed_adp",
    "fed_async",
    "fed_buff",
    "fed_opt",
    "fed_prox",
    "heloco",
    "malenia_sgd",
    "mla",
    "rennala_sgd",
    "ringleader_asgd",
    "slow_mo",
    "sparse_loco",
    "streaming_diloco",
)
OWN_TABLES = (
    "test_factories.py",
    "test_new_oracles.py",
    "test_oracles.py",
    "test_second_oracles.py",
    "test_tapes_of_strategies.py",
    "test_wrong_new_settings.py",
)
BUDGET = {"host": 1.0, "core": 2.0, "full": 20.0}  # of one test [s]
TOTAL = {"host": 60, "core": 12 * 60, "full": 45 * 60}  # of all tests [s]
FACTOR = 5.0  # above so many budgets, on a quick machine, the run fails
YARDSTICK = 0.1  # what `slowness` times, on a quick machine [s]
LISTED = 20
ROOT = Path(__file__).parents[1]


def is_host_alone(config: pytest.Config) -> bool:
    """Whether only tests of the host tier are asked for."""
    return config.getoption("markexpr") == "host"


def processor_seconds() -> float:
    """Of this process, and of those that it started and that ended."""
    return sum(os.times()[:4])


def limit(tier: str) -> float:
    """Seconds above which a test lets the run fail, on a quick machine."""
    return FACTOR * BUDGET[tier]


def slowness() -> float:
    """How many times as long as a quick machine this one takes now; at least 1."""
    begin = time.process_time()
    for _ in range(20):
        text = json.dumps({str(k): [k, float(k)] for k in range(5_000)})
        sorted(json.loads(text).items(), key=lambda item: -item[1][1])
    return max(1.0, (time.process_time() - begin) / YARDSTICK)


class Tiers:
    """A plugin that knows the tier and the costs of every test."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.costs: dict[str, float] = defaultdict(float)
        self.tiers: dict[str, str] = {}
        self.slowness: dict[str, float] = {}  # beside tests that are dear
        self.of_workers = 0.0  # processes of xdist, with their start
        self.host_alone = is_host_alone(config)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path):
        if not self.host_alone:
            return None
        return None if leads_to_host(collection_path) else True

    @pytest.hookimpl(tryfirst=True)  # before pytest selects those of `-m`
    def pytest_collection_modifyitems(self, items):
        for item in items:
            if is_alike(item):
                item.add_marker(pytest.mark.full)
            if in_host(item.path) and not item.get_closest_marker("full"):
                item.add_marker(pytest.mark.host)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        cost = processor_seconds() - item.stash[_LAST]
        item.stash[_COST] += cost
        # xdist sends such attributes along
        report.processor_seconds = cost
        report.tier = tier_of(item)
        if item.stash[_COST] > limit(report.tier):
            report.slowness = slowness()
        item.stash[_LAST] = processor_seconds()
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        item.stash[_COST] = 0.0
        item.stash[_LAST] = processor_seconds()
        return (yield)

    def pytest_runtest_logreport(self, report):
        if hasattr(report, "tier"):  # xdist reports itself that a process crashed
            self.costs[report.nodeid] += report.processor_seconds
            self.tiers[report.nodeid] = report.tier
        if hasattr(report, "slowness"):
            self.slowness[report.nodeid] = report.slowness

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        output = getattr(self.config, "workeroutput", None)
        if output is not None:  # a process of xdist
            output["processor_seconds"] = processor_seconds()
        elif self.beyond() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.of_workers += getattr(node, "workeroutput", {}).get("processor_seconds", 0)

    def beyond(self) -> list[str]:
        """Tests that cost too many budgets."""
        return [
            name
            for name, cost in self.costs.items()
            if cost > limit(self.tiers[name]) * self.slowness.get(name, 1.0)
        ]

    def pytest_terminal_summary(self, terminalreporter):
        if not self.costs:
            return
        write = terminalreporter.write_line
        over = [n for n, c in self.costs.items() if c > BUDGET[self.tiers[n]]]
        over.sort(key=lambda name: -self.costs[name] / BUDGET[self.tiers[name]])
        beyond = self.beyond()
        if over:
            terminalreporter.section("over their budget of processor time")
        for name in over[:LISTED]:
            tier = self.tiers[name]
            mark = "  TOO MUCH" if name in beyond else ""
            budget = f"{BUDGET[tier]:.0f} s in {tier}"
            write(f"{self.costs[name]:6.1f} s ({budget})  {name}{mark}")
        if len(over) > LISTED:
            write(f"... and {len(over) - LISTED} more")
        sums: dict[str, float] = defaultdict(float)
        for name, cost in self.costs.items():
            sums[self.tiers[name]] += cost
        shown = [f"{k} {v:.0f} s (of {TOTAL[k]})" for k, v in sorted(sums.items())]
        whole = self.of_workers or processor_seconds()
        write(f"processor time: {', '.join(shown)}; {whole:.0f} s with all starts")


_LAST = pytest.StashKey[float]()
_COST = pytest.StashKey[float]()  # of the phases of a test so far


class NoDeviceWorld:
    """An importer that refuses what host tests do without."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in DEVICE_WORLD:
            raise ImportError(f"{name} is imported by a test of the host tier")


def in_host(path: Path) -> bool:
    """Whether a file is one of those of the host tier."""
    if not path.is_relative_to(ROOT):
        return False
    name = path.relative_to(ROOT).as_posix()
    return any(name == host or name.startswith(f"{host}/") for host in HOST)


def leads_to_host(path: Path) -> bool:
    """Whether a file or folder is of the host tier, or a folder that holds such."""
    return in_host(path) or any((ROOT / host).is_relative_to(path) for host in HOST)


def is_alike(item: pytest.Item) -> bool:
    """Whether a test of a table is of a strategy that is like others."""
    given = getattr(item, "callspec", None)
    if given is None or item.path.name in OWN_TABLES:
        return False
    return any(isinstance(x, str) and x in ALIKE for x in given.params.values())


def tier_of(item: pytest.Item) -> str:
    if item.get_closest_marker("full"):
        return "full"
    return "host" if item.get_closest_marker("host") else "core"
