"""When a claim counts as reproduced: hand-made tables for every verdict."""

import importlib
from math import inf, nan

import pytest
from absl import flags
from script_parts import no_scripts

import hetjax as hj
from hetjax.machine import MergeAction, SimulatedClock

OURS = [1.0, 1.1, 0.9]
OVERLAP = "partly reproduced: the seeds overlap"
DIRECTION = "partly reproduced: the direction is right, the size is not"


@pytest.fixture
def load():
    """Import a script, and remove it after the test: scripts define the same flags."""

    def script(name):
        module = importlib.import_module(f"experiments.{name}")
        flags.FLAGS.mark_as_parsed()
        return module

    with no_scripts():
        yield script


@pytest.fixture
def claims(load):
    return load("common.claims")


@pytest.mark.parametrize(
    ("one", "other", "sign"),
    [
        ([2, 3], [0, 1], 1),
        ([0, 1], [2, 3], -1),
        ([0, 2], [1, 3], 0),
        ([1], [1], 0),
        ([inf], [1], 1),
        ([inf], [inf], 0),
    ],
)
def test_ahead_is_every_seed_of_one_above_all_of_the_other(claims, one, other, sign):
    assert claims.ahead(one, other) == sign


@pytest.mark.parametrize(
    ("larger", "smaller", "paper", "verdict"),
    [
        ([1.8, 2.0, 2.2], OURS, 2.0, "reproduced"),
        ([1.8, 2.0, 2.2], OURS, 4.0, DIRECTION),
        ([3.8, 4.0, 4.2], OURS, 2.0, DIRECTION),
        ([1.0, 2.0, 2.2], OURS, 2.0, OVERLAP),
        (
            [0.5, 0.6, 0.7],
            OURS,
            2.0,
            "not reproduced: the opposite holds in every seed",
        ),
        (
            [1.02, 1.02, 1.02],
            [1.0, 1.0, 1.0],
            2.0,
            "not reproduced: the gain is below 5 %",
        ),
        ([1.02, 1.02, 1.02], [1.0, 1.0, 1.0], 1.03, "reproduced"),
        ([1.2, 1.3, 1.4], OURS, "sooner", "reproduced"),
        (
            [1.02, 1.02, 1.02],
            [1.0, 1.0, 1.0],
            "sooner",
            "not reproduced: the gain is below 5 %",
        ),
        (
            [inf] * 3,
            OURS,
            2.0,
            "partly reproduced: only one of the two reaches the target",
        ),
        ([inf, inf, 1.2], OURS, 2.0, DIRECTION),
        ([inf] * 3, [inf, inf, 1.0], 2.0, OVERLAP),
        (OURS, [inf] * 3, 2.0, "not reproduced: the opposite holds in every seed"),
        ([inf] * 3, [inf] * 3, 2.0, "not reproduced: neither reaches the target"),
    ],
)
def test_a_gain_counts_if_all_seeds_have_it(claims, larger, smaller, paper, verdict):
    assert claims.by_gain(larger, smaller, paper) == verdict


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        (1.04, "reproduced"),
        (0.96, "reproduced"),
        (1.06, "not reproduced: it differs by +6.0 %"),
        (inf, "not reproduced: the target is never reached"),
        (nan, "not reproduced: the target is never reached"),
    ],
)
def test_a_number_is_close_or_differs(claims, ours, verdict):
    assert claims.within(ours, 1.0, 0.05) == verdict


def test_only_a_reproduced_claim_is_met_by_construction(claims):
    made = "reproduced (met by construction)"
    assert claims.by_construction("reproduced") == made
    assert (
        claims.by_construction("not reproduced: above the limit")
        == "not reproduced: above the limit"
    )


@pytest.mark.parametrize(
    ("gap", "behind", "where", "verdict"),
    [
        (-0.5, -1, ("hier2", 8), "reproduced"),
        (-0.5, 0, ("hier2", 8), OVERLAP),
        (0.1, 0, ("hier2", 8), OVERLAP),
        (0.5, 1, ("hier2", 8), "not reproduced: the gap is 0.50 points"),
        (0.9, 1, ("hier2", 32), "reproduced"),  # similar
        (1.1, 1, ("hier2", 32), "not reproduced: the gap is 1.10 points"),
        (-1.1, -1, ("hier2", 32), "not reproduced: the gap is -1.10 points"),
        (1.0, 1, ("hier2", 64), "reproduced"),
        (0.1, 0, ("hier2", 64), OVERLAP),
        (-1.0, -1, ("hier2", 64), "not reproduced: the gap is -1.00 points"),
        (9.0, 1, ("hier2", 128), "not reproduced: the gap is 9.00 points"),
        (2.0, 1, ("hier3", 128), "reproduced"),
        (1.0, 1, ("hier3", 128), "not reproduced: the gap is 1.00 points"),
    ],
)
def test_a_gap_has_a_side_and_a_range(load, gap, behind, where, verdict):
    hier_sgd = load("papers.hier_sgd")
    _, low, high = hier_sgd.PAPER_GAPS[where]
    assert hier_sgd.gap_verdict(gap, low, high, behind) == verdict


@pytest.mark.parametrize(
    ("ratio", "most", "verdict"),
    [
        (1.9, 1, "reproduced"),
        (2.1, 1, "not reproduced: the times are not similar"),
        (0.4, 1, "not reproduced: the times are not similar"),
        (5.0, 10, "reproduced"),
        (15.0, 10, "reproduced"),
        (15.1, 10, "partly reproduced: the ratio is larger than the paper's"),
        (4.9, 10, DIRECTION),
        (1.4, 10, "not reproduced: the rival is hardly slower"),
    ],
)
def test_the_verdict_on_a_servers_time(load, ratio, most, verdict):
    assert load("papers.minsky_times").server_verdict(ratio, most) == verdict


@pytest.mark.parametrize(
    ("spreads", "settled", "verdict"),
    [
        ([9] * 4 + [2] * 36, 5, "reproduced"),
        ([9] * 12 + [1] * 28, 13, "partly reproduced: they settle later"),
        ([0] * 40, 1, "reproduced"),
        ([9] * 39 + [1], None, "not reproduced: the sizes never settle"),
        ([1] * 39 + [9], None, "not reproduced: the sizes never settle"),
    ],
)
def test_sizes_settle_if_they_stay(load, spreads, settled, verdict):
    settling = load("papers.settling")
    assert settling.settled_from(spreads) == settled
    assert settling.verdict(settled) == verdict


def history(accuracies, per_epoch=2):
    """Evaluations at every half epoch of ten examples, a second apart."""
    evals = [
        {"seconds": float(i), "examples": 10 * i // per_epoch, "accuracy": a}
        for i, a in enumerate(accuracies)
    ]
    return hj.History("s", 0, {}, "accuracy", evals=evals)


def test_the_median_of_five_epochs(load, monkeypatch):
    class Ten:
        train = range(10)

    crossbow = load("papers.crossbow")
    monkeypatch.setattr(crossbow, "problem", lambda: (None, Ten))
    #           0 |     1 |     2 |     3 |     4 |     5 |     6
    run = history([0, 1, 0.5, 1, 0.1, 1, 0.6, 1, 0.7, 1, 0.8, 1, 0.9])
    assert crossbow.medians(run) == [
        (run.evals[10], 0.6),  # of .5 .1 .6 .7 .8
        (run.evals[12], 0.7),
    ]
    assert crossbow.epochs_to(run, 0.6) == (5.0, 10.0)
    assert crossbow.epochs_to(run, 0.65) == (6.0, 12.0)
    assert crossbow.epochs_to(run, 0.75) == (inf, inf)


@pytest.mark.parametrize(
    ("name", "transfers", "locked"),
    [
        # additions of four workers, one after the other
        ("sync", 2, 4 * 0.0637),
        ("async", 1, 0.0637),
        ("parameter server", 2, 0.0637 + 0.228),
    ],
)
def test_only_additions_take_the_lock(load, name, transfers, locked):
    threads = load("papers.magma_threads")
    clock = SimulatedClock(threads.machine(4, name, 1000.0), seed=0)
    members = (0, 1, 2, 3) if name == "sync" else (0,)
    transfer = clock.merge(MergeAction(members, transfers=transfers), 1000.0)
    assert transfer.finish == pytest.approx(1e-3 * locked)


def test_no_claim_is_made_of_some_of_the_runs(claims):
    """A comparison that is interrupted interrupts the script, with its signal."""
    data = hj.data.digits()
    task = hj.classification(hj.models.mlp(hidden=4), data)
    strategies = {"sync": hj.sync_sgd(batch_size=64, learning_rate=0.1)}

    def interrupt(history):
        raise KeyboardInterrupt("SIGTERM")

    arguments = (task, data, hj.machine.preset("v100x1"), strategies)
    settings = {"seconds": 0.01, "seeds": 2, "num_evals": 1, "progress": False}
    assert len(claims.compare(*arguments, **settings).histories) == 2
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        claims.compare(*arguments, **settings, on_history=interrupt)
