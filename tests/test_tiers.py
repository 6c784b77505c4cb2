"""The tiers of the tests: which files are of the host tier, and what is too much."""

import pytest
import tiers
from tiers import BUDGET, FACTOR, HOST, ROOT, NoDeviceWorld, Tiers, in_host


def test_every_file_and_folder_of_the_host_tier_is_there():
    assert [name for name in HOST if not (ROOT / name).exists()] == []


def test_a_folder_is_looked_into_only_on_the_way_to_host_tests():
    assert in_host(ROOT / "tests/machine/test_clock.py")
    assert not in_host(ROOT / "tests/merge/test_laws.py")
    assert tiers.leads_to_host(ROOT / "tests")
    assert tiers.leads_to_host(ROOT / "tests/checkpoint")
    assert not tiers.leads_to_host(ROOT / "tests/merge")
    assert not tiers.leads_to_host(ROOT / "tests/checkpoint/test_files.py")


@pytest.mark.parametrize("name", ["jax", "jax.numpy", "flax.nnx", "optax"])
def test_jax_is_refused(name):
    with pytest.raises(ImportError, match=f"{name} is imported by a test"):
        NoDeviceWorld().find_spec(name)


def test_others_are_not():
    assert NoDeviceWorld().find_spec("jaxtyping") is None


@pytest.mark.parametrize("tier", BUDGET)
def test_a_test_that_costs_several_budgets_fails_the_run(tier, pytestconfig):
    plugin = Tiers(pytestconfig)
    plugin.tiers = {"cheap": tier, "dear": tier}
    plugin.costs |= {"cheap": FACTOR * BUDGET[tier], "dear": FACTOR * BUDGET[tier] + 1}
    assert plugin.beyond() == ["dear"]


def test_a_slow_machine_is_granted_more(pytestconfig):
    plugin = Tiers(pytestconfig)
    plugin.tiers = {"slowly": "core", "dear": "core"}
    plugin.costs |= dict.fromkeys(plugin.tiers, 2 * FACTOR * BUDGET["core"])
    plugin.slowness |= {"slowly": 2.5, "dear": 1.5}
    assert plugin.beyond() == ["dear"]


def test_a_machine_is_never_quicker_than_a_quick_one():
    assert tiers.slowness() >= 1.0
