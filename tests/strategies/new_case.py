"""What the cases of the newer strategies are made of.

A case's `settings` go to the factory and to the oracle; `ours` only to the factory,
`theirs` only to the oracle (functions there are called with the problem).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import fragments_oracle as pieces
import numpy as np
from vector_task import PROBLEMS
from vector_world import Server, Workers

import hetjax as hj

PAIR, TRIO = (1.0, 1.0), (1.0, 1.0, 1.0)
CLOCK, FAR = (2.0, 3.0, 7.0), (1.0, 2.0, 13.0)
TWO_LEAVES = "vectors, two leaves"

# float32 against float64, relative to the largest number: tens of steps and merges
# round by 6e-8 each. A wrong term is of the order of 1e-2 and more.
TOLERANCE, ADAM_TOLERANCE = 1e-5, 1e-4


class NewCase(NamedTuple):
    """A strategy and its oracle, on a problem and a machine until `end` [s]."""

    strategy: str
    oracle: Callable[..., Server]
    problem: str
    seconds: tuple[float, ...]  # per step, by worker
    end: float
    settings: dict[str, Any]
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    tolerance: float = TOLERANCE


def case(strategy, oracle, problem, seconds, end, *, ours=None, theirs=None, **both):
    """A case; the learning rate is 0.5 unless it is given."""
    settings = {"learning_rate": 0.5} | both
    more = ours or {}, theirs or {}
    # Adam's 1 - 0.999^n in float32 is known to 6e-8 / 1e-3
    tolerance = ADAM_TOLERANCE if "optimizer" in more[0] else TOLERANCE
    return NewCase(strategy, oracle, problem, seconds, end, settings, *more, tolerance)


def strategy_of(case):
    """The strategy of a case."""
    return getattr(hj, case.strategy)(batch_size=1, **case.settings, **case.ours)


def replay(case, noise=0.0):
    """Run a case's oracle; its gradients are changed by random numbers of that size."""
    problem = PROBLEMS[case.problem]
    rng = np.random.default_rng(0)

    def gradient(worker, t, x):
        return problem.gradient(worker, t, x) + noise * rng.normal(size=len(x))

    theirs = {k: v(problem) if callable(v) else v for k, v in case.theirs.items()}
    workers = Workers(case.seconds, case.end, gradient, problem.start)
    return case.oracle(workers, **case.settings, **theirs)


def leaves(problem):
    """The indices of each leaf."""
    return problem.leaves


def in_turn(number):
    """Leaf l is in fragment l mod P."""
    return lambda problem: [
        np.concatenate(problem.leaves[p::number]) for p in range(number)
    ]


def by_size(number):
    """Fragments of about equal sizes, largest leaves first."""

    def fragments(problem):
        found = pieces.packed(problem.lengths, number)
        return [np.concatenate([problem.leaves[j] for j in own]) for own in found]

    return fragments


STEPS = {"local_steps": 2}
UNEQUAL = {"local_steps": (3, 1, 2)}
TOKENS = {"tokens": 1}


def rounds_of(strategy, oracle, *, ours=None, theirs=None, **settings):
    """On the vectors with two steps each, and on random quadratics."""
    more = {"ours": ours, "theirs": theirs}
    short = case(strategy, oracle, "vectors", PAIR, 6.5, **more, **STEPS, **settings)
    unequal = settings | UNEQUAL
    long = case(strategy, oracle, "mixed", TRIO, 24.5, **more, **unequal)
    return short, long


def reports_of(
    strategy,
    oracle,
    end=14.5,
    *,
    steps=STEPS,
    mixed=None,
    ours=None,
    theirs=None,
    **settings,
):
    """On the vectors' clock, on it with random quadratics, and with ties."""
    each = steps | settings | {"ours": ours, "theirs": theirs}
    short = case(strategy, oracle, "vectors", CLOCK, end, **each)
    # at the vectors' rates some would diverge
    each = {"learning_rate": 0.25} | each | (mixed or {})
    long = case(strategy, oracle, "mixed", CLOCK, 60.5, **each)
    ties = case(strategy, oracle, "mixed", TRIO, 12.5, **each)
    return short, long, ties


def named(names):
    """One dictionary of all cases: "name", "name, mixed", "name, ties"."""
    words = "", ", mixed", ", ties"
    return {
        name + word: one
        for name, cases in names.items()
        for word, one in zip(words, cases, strict=False)
    }


def streaming(problem, seconds, end, number, **settings):
    theirs = {"fragments": in_turn(number), "tensors": leaves}
    settings = {"delay": 0, "blend": 0.0} | settings
    return case(
        "streaming_diloco",
        pieces.streaming_diloco,
        problem,
        seconds,
        end,
        ours={"fragments": number},
        theirs=theirs,
        **settings,
    )


def decoupled(problem, seconds, end, number, **settings):
    theirs = {"fragments": by_size(number), "tensors": leaves} | TOKENS
    settings = {"average": "mean"} | settings
    return case(
        "decoupled_diloco",
        pieces.decoupled_diloco,
        problem,
        seconds,
        end,
        ours={"fragments": number},
        theirs=theirs,
        **settings,
    )
