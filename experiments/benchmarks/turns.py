"""Contenders that take turns: the usual seconds of a round of each, turn by turn.

A contender runs rounds for some seconds and returns when they ended [s].
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import jax

import hetjax as hj
from hetjax.api.progress import ProgressBar
from hetjax.api.run_config import RunConfig
from hetjax.api.session import Session

Contender = Callable[[float], Sequence[float]]
FEWEST = 5  # rounds of a turn
WINDOW = 8  # rounds
LONGEST = 1000.0  # [s] of a turn: longer ones hold no rounds at all


def usual_gap(times: Sequence[float], window: int = WINDOW) -> float:
    """Median seconds between successive times, without the first two (cold caches).

    Each is a mean over `window` rounds, if there are that many, since the host sees the
    ends of some queued rounds with a delay.
    """
    rest = times[2:] if len(times) > 3 else times
    width = min(window, len(rest) - 1)
    pairs = zip(rest, rest[width:], strict=False)
    return median((later - earlier) / width for earlier, later in pairs)


def by_hand(one_round: Callable[[int], Any], *, ahead: int = 0) -> Contender:
    """The contender that calls one_round(number) and waits for its return value.

    `ahead` rounds may be queued behind the running one; the return value of a round
    must then not be donated to the next.
    """

    def run(seconds: float) -> list[float]:
        ends, queued, number = [time.perf_counter()], deque(), 0
        # the first two rounds, which may compile, do not count
        while len(ends) <= FEWEST or ends[-1] - ends[2] < seconds:
            queued.append(one_round(number))
            number += 1
            if len(queued) > ahead:
                jax.block_until_ready(queued.popleft())
                ends.append(time.perf_counter())
        jax.block_until_ready(list(queued))
        return ends

    return run


def session(task: hj.Task, data: hj.data.Dataset, machine: Any) -> Session:
    """Runs that share their compiled programs."""
    return Session(task, data, machine, RunConfig(seconds=1.0, num_evals=1))


def trained(session: Session, strategy: hj.Strategy) -> Contender:
    """The contender that trains as `hj.train` does, on a real machine.

    Programs are compiled in its first turn, while the run's clock stands. Turns with
    fewer than FEWEST rounds are made longer.
    """
    needed = 0.0

    def run(seconds: float) -> Sequence[float]:
        nonlocal needed
        while True:
            lasting = session.with_seconds(max(seconds, needed))
            bar = ProgressBar(1.0, shown=False)
            history = lasting.run(strategy.name, strategy, 0, bar)
            if len(history.merge_times) > FEWEST:
                return history.merge_times
            needed = 3 * lasting.config.seconds
            if needed > LONGEST:
                raise ValueError(f"{strategy.name} does not merge")

    return run


def in_turn(
    contenders: Mapping[str, Contender],
    seconds: float,
    turns: int,
    about: str,
    *,
    window: int = WINDOW,
) -> dict[str, list[float]]:
    """The usual seconds of a round of every contender, in each turn."""
    found: dict[str, list[float]] = {who: [] for who in contenders}
    for number in range(turns):
        for who, run in contenders.items():
            found[who].append(usual_gap(run(seconds), window))
        last = {who: f"{1e6 * gaps[-1]:.1f} us" for who, gaps in found.items()}
        print(f"{about}, turn {number + 1} of {turns}: {last}", file=sys.stderr)
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median over the turns of above / below."""
    return median(a / b for a, b in zip(above, below, strict=True))


def fastest(found: Mapping[str, Sequence[float]], prefix: str = "") -> str:
    """The contender with the smallest median, among those of a prefix."""
    chosen = {
        who: median(gaps) for who, gaps in found.items() if who.startswith(prefix)
    }
    return min(chosen, key=lambda who: chosen[who])


def microseconds(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median over the turns of every contender [us]."""
    return {f"{who}_us": round(1e6 * median(gaps), 1) for who, gaps in found.items()}
