"""The factories of strategies: recorded settings, refusals, shared programs."""

import itertools
from inspect import signature

import optax
import pytest
from identity_runs import train

import hetjax
from hetjax import local
from hetjax.engine.decisions import decisions
from hetjax.machine import Cost, Link, Machine, Profile, SimulatedClock, preset

FACTORIES = {
    name: {"batch_size": 8, "learning_rate": 0.1} for name in hetjax.STRATEGIES
}


@pytest.mark.parametrize("name", FACTORIES)
def test_settings_are_recorded(name):
    """All settings, defaults included; settings that are not numbers are described."""
    strategy = hetjax.STRATEGIES[name](**FACTORIES[name])
    assert strategy.settings.items() >= FACTORIES[name].items()
    assert set(strategy.settings) == set(signature(hetjax.STRATEGIES[name]).parameters)
    assert (strategy.batch_size, strategy.learning_rate) == (8, 0.1)
    falling = hetjax.STRATEGIES[name](**{**FACTORIES[name], "learning_rate": abs})
    assert falling.settings["learning_rate"] == "abs"
    assert falling.learning_rate is abs


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        *((name, {"batch_size": 0}, "batch_size=0") for name in list(FACTORIES)[:4]),
        *((name, {"batch_size": -8}, "batch_size=-8") for name in list(FACTORIES)[:4]),
        ("elastic_sgd", {"local_steps": 0}, "local_steps=0"),
        ("elastic_sgd", {"mega_batch": 0}, "mega_batch=0"),
        ("sma", {"local_steps": 0}, "local_steps=0"),
        ("sma", {"alpha": -0.1}, "alpha=-0.1"),
        ("sma", {"restart": "often"}, "restart='often': choose one of"),
        (
            "sma",
            {"two_level": 2, "restart": "on_lr_drop"},
            "restart='on_lr_drop': two levels have no restarts",
        ),
        ("sma", {"two_level": 1}, "two_level=1: pass a whole number of at least 2"),
        ("sma", {"center": "else"}, "center='else': choose one of"),
        ("sma", {"center": "mean"}, "center='mean' has no momentum"),
        (
            "sma",
            {"center": "mean", "merge_momentum": 0.0, "two_level": 2},
            "center='mean' has no momentum, no restarts and no levels",
        ),
        ("sync_sgd", {"weight_decay": -1.0}, "weight_decay=-1.0: pass a number of at"),
        (
            "async_sgd",
            {"weight_decay": 0.1, "optimizer": optax.sgd(1.0)},
            "or an optimizer, not both",
        ),
        (
            "local_sgd",
            {"reset_momentum": True, "aggregation": "fed_acc"},
            "reset_momentum=True: fed_acc keeps",
        ),
        ("downpour", {"blocking": True, "push_every": 0}, "push_every=0: pass a whole"),
        ("eamsgd", {"lr_decay": -0.1}, "lr_decay=-0.1: pass a number of at least 0"),
        ("eamsgd", {"lr_decay_power": -1.0}, "lr_decay_power=-1.0: pass a number of"),
        ("adaptive_sgd", {"order": "random"}, "order='random': choose one of"),
        ("easgd_sync", {"alpha": -1.0}, "alpha=-1.0: pass a number above 0"),
        ("adaptive_sgd", {"batch_size": 0}, "batch_size=0"),
        ("adaptive_sgd", {"min_batch_size": 0}, "min_batch_size=0"),
        (
            "adaptive_sgd",
            {"min_batch_size": 9},
            "min_batch_size=9 is above batch_size=8",
        ),
        ("adaptive_sgd", {"mega_batch": -1}, "mega_batch=-1"),
        ("adaptive_sgd", {"scale_every": 0}, "scale_every=0"),
        ("adaptive_sgd", {"bound": "cut"}, "bound='cut': choose one of"),
        ("adaptive_sgd", {"weights": "fair"}, "weights='fair': choose one of"),
        ("adaptive_sgd", {"norm": "l1"}, "norm='l1': choose one of"),
        # larger batches for slower workers: sizes would diverge
        ("adaptive_sgd", {"beta": -1.0}, "beta=-1.0: pass a number of at least 0"),
        (
            "adaptive_sgd",
            {"delta": -0.1},
            "delta=-0.1: pass a number from 0",
        ),
    ],
)
def test_wrong_settings(name, wrong, message):
    with pytest.raises(ValueError, match=message):
        hetjax.STRATEGIES[name](**{**FACTORIES[name], **wrong})


def test_the_public_codes_warm_up_and_decay():
    """From a hundredth to eta in 10 epochs; in the e-th after them eta / (1 + d e)."""
    strategy = hetjax.adaptive_sgd(
        batch_size=32, learning_rate=1.0, preset="hgpu_code", time_decay=0.5
    )
    learning_rates = [
        strategy.learning_rate.schedule(epochs) for epochs in (0, 5, 10, 10.9, 11, 12.5)
    ]
    expected = [0.01, 0.505, 1 / 1.5, 1 / 1.5, 1 / 2, 1 / 2.5]
    assert learning_rates == pytest.approx(expected)
    assert strategy.learning_rate.over == "epochs"
    state = strategy.sampler.init((), 5, 0)
    state, rows = strategy.sampler.draw(state, 0, 7)
    assert rows.tolist() == [0, 1, 2, 3, 4, 0, 1]


@pytest.mark.parametrize(
    ("preset_name", "in_effect"),
    [
        ("paper", {"delta": 0.1, "merge_momentum": 0.9, "scaling": "paper"}),
        ("hgpu_code", {"delta": 0.1, "merge_momentum": 0.9, "scaling": "hgpu_code"}),
        ("recommended", {"delta": 0.0, "merge_momentum": 0.0, "scaling": "hgpu_code"}),
    ],
)
def test_a_preset_is_its_settings(preset_name, in_effect):
    """They are recorded, they train, and one that is given has precedence."""
    common = {"batch_size": 8, "learning_rate": 0.1, "mega_batch": 16}
    strategy = hetjax.adaptive_sgd(**common, preset=preset_name)
    assert strategy.settings.items() >= in_effect.items()
    machine = preset("v100x4", seed=0)
    one = train(strategy, machine)
    spelled = {k: strategy.settings[k] for k in ("weights", "rule", "order")}
    spelled["warmup_epochs"] = strategy.settings["warmup_epochs"]
    same = train(hetjax.adaptive_sgd(**common, **spelled, **in_effect), machine)
    assert one.evals == same.evals
    given = hetjax.adaptive_sgd(**common, preset=preset_name, merge_momentum=0.5)
    assert given.settings["merge_momentum"] == 0.5
    assert train(given, machine).evals != one.evals


def test_no_scaling_is_a_valid_setting():
    """beta = 0 is a rule that changes nothing, not an error."""
    assert (
        hetjax.adaptive_sgd(batch_size=8, learning_rate=0.1, beta=0.0).settings["beta"]
        == 0.0
    )


@pytest.mark.parametrize("wrong", [0.0, -0.1, float("nan"), float("inf")])
def test_a_learning_rate_must_be_positive(wrong):
    with pytest.raises(
        ValueError, match=f"learning_rate={wrong}: pass a number above 0 or a function"
    ):
        train(hetjax.sync_sgd(batch_size=8, learning_rate=wrong), preset("v100x1"))


def test_rules_of_equal_settings_are_shared():
    """So are their compiled programs."""
    strategies = (
        hetjax.elastic_sgd(batch_size=8, learning_rate=0.1),
        hetjax.adaptive_sgd(batch_size=16, learning_rate=0.3),
        hetjax.sma(batch_size=4, learning_rate=0.2),
    )
    assert {strategy.local for strategy in strategies} == {local.sgd()}


def test_a_users_own_decay_shares_its_programs_too():
    """Equal settings give the same local update; without decay, the plain one."""
    common = {"batch_size": 8, "learning_rate": 0.1, "momentum": 0.5}
    one, other = (hetjax.eamsgd(**common, lr_decay=0.1).local for _ in range(2))
    assert one is other
    plain = local.eamsgd_nesterov(momentum=0.5)
    assert hetjax.eamsgd(**common).local is plain
    assert one != plain


def test_the_tuners_threshold_may_be_absolute():
    """8 examples/s, then 10 and 12: gains of 25 and 20 %, or of 2 examples/s each."""
    profiles = tuple(
        Profile(f"w{k}", "gpu", Cost(1.0, 0.0), device="d", curve=(1.0, 1.25, 1.5))
        for k in range(3)
    )
    machine = Machine("m", profiles, {"": Link(latency=0.0, bandwidth=1e9)})
    common = {"batch_size": 8, "learning_rate": 0.1, "tuner": "stop_at_first_drop"}

    def workers(**settings):
        policy = hetjax.sma(**common, tuner_window=2, **settings).policy
        run = decisions(policy, SimulatedClock(machine, seed=0), num_examples=1)
        sizes = [len(a.dispatch) for _, a in itertools.islice(run, 90) if a.dispatch]
        return sizes[-1]

    assert workers(tuner_threshold=0.1) == 3
    assert workers(tuner_threshold=0.3) == 1
    assert workers(tuner_threshold=0.3, tuner_absolute=True) == 3
    assert workers(tuner_threshold=1.9, tuner_absolute=True) == 3
    assert workers(tuner_threshold=2.1, tuner_absolute=True) == 1
