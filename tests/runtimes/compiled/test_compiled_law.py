"""The law of compiled runs: they equal those of the reference player.

What is decided and counted is equal to the bit, and models up to rounding. Rounds of a
superstep run in turn on a CPU, and side by side on accelerators: both are tried here.
"""

from functools import cache
from itertools import product

import pytest
from compiled_runs import (
    IN_TURN,
    SIDE_BY_SIDE,
    assert_agree,
    compiled,
    reference,
    runs_of,
)
from quick import quick, quick_if
from small_runs import strategy
from tiers import ALIKE
from zoo import FORMS, WAYS

KINDS = ("mlp", "sparse", "convolution", "statistics")
TROUBLES = ("", "faults", "reset", "stop")
SOME = ("async_sgd", "ad_psgd", "hier_sgd", "adaptive_sgd", "biased_local_sgd")
ORDERS = {"in turn": IN_TURN, "side by side": SIDE_BY_SIDE}
USUAL = ("side by side", "in turn")  # without and with troubles


def is_tested(name, kind, trouble, order):
    """What happens to workers has little to do with the kind of their model.

    So it has with the order of their rounds. Each strategy meets faults in its usual
    order, and one of the other kinds of models; each way to merge also meets NaNs.
    """
    if kind == "mlp" and name not in (*SOME, *WAYS) and trouble in ("reset", "stop"):
        return False  # what follows a NaN has little to do with formulas
    if kind == "mlp":
        both = name in SOME and trouble in ("", "faults")
        return both or order == USUAL[bool(trouble)]
    if name in SOME:
        return (trouble, order) == ("", USUAL[0])
    its_kind = KINDS[1 + FORMS.index(name) % 3]
    return (kind, trouble, order) == (its_kind, "", USUAL[0])


ROWS = [row for row in product(FORMS, KINDS, TROUBLES, ORDERS) if is_tested(*row)] + [
    (name, "mlp", "faults", "in turn") for name in ALIKE
]


@cache
def expected(name, kind, trouble):
    return reference(runs_of(kind, trouble), strategy(name, 6))


@pytest.mark.parametrize(
    ("name", "kind", "trouble", "order"),
    quick_if(lambda row: row[0] in SOME and row[1:3] == ("mlp", ""), ROWS),
)
def test_a_compiled_run_equals_that_of_the_reference_player(name, kind, trouble, order):
    found = compiled(runs_of(kind, trouble), strategy(name, 6), ORDERS[order])
    assert_agree(found, expected(name, kind, trouble))


@pytest.mark.parametrize("name", quick(WAYS, "async_sgd"))
def test_a_callback_is_told_each_evaluation_once(name):
    """Even if the run goes back behind a round that was not finite."""
    seen, runs, made = [], runs_of("mlp", "reset"), strategy(name, 6)
    history = compiled(runs, made, on_eval=lambda point: seen.append(dict(point)) or "")
    assert [event.what for event in history.events].count("nan") > 2
    assert seen == list(map(dict, history.evals))
