"""Loss-biased sampling for slow workers: Biased Local SGD (host world, no JAX)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetjax.arguments import per_worker
from hetjax.machine.types import WorkerInfo
from hetjax.sampling.types import Sampler

Workers = tuple[WorkerInfo, ...]
_STREAM = 20_011  # separates these draws from other uses of a seed

# the slow workers together draw N times this number per pass over N examples; tau are
# the workers' local steps
POOL_FORMULAS: dict[str, Callable[[list[int], list[int]], float]] = {
    "steps": lambda tau, slow: sum(tau[i] for i in slow) / (len(tau) * max(tau)),
    "work": lambda tau, slow: sum(tau[i] for i in slow) / sum(tau),
    "ratio": lambda tau, slow: max((tau[i] for i in slow), default=0) / max(tau),
}


class BiasedState(NamedTuple):
    """One entry per worker in `queues` and `counts`."""

    seed: int
    draws: int  # of pools and passes so far
    losses: np.ndarray  # [N] float32, as last seen; inf if never seen
    queues: tuple[np.ndarray, ...]  # rows that are still to be drawn
    counts: tuple[int, ...]  # rows per pass
    slow: tuple[int, ...]
    pool: int  # size of the pool that the slow workers choose from


def biased(
    *,
    local_steps: Callable[[Workers], Any],
    pool_factor: float | None = None,
    unified: bool = False,
    pool_formula: str = "steps",
) -> Sampler:
    """Draws examples for slow workers by their losses: the highest in a random pool.

    The slow workers S are those with fewer `local_steps` (tau) than the fastest. When a
    slow worker's queue is empty, a pool of d n_S examples (d is `pool_factor`) is drawn
    without replacement for all of S; the n_S examples with the highest stored losses
    (ties are broken at random, losses never seen count as highest) are split among
    them. A fast worker's queue is N / m examples, drawn without replacement and
    independently of all other queues; with `unified=True` the slow workers choose first
    and the fast ones split the rest. Losses come from the training steps of any worker,
    and count after the merge. With m workers and N examples,

        n_S = N |S| / m * tau_s / tau_f       per pass         (`pool_formula="steps"`)

    or N |S| tau_s / sum tau ("work"), or N tau_s / tau_f ("ratio"). A pool of N or more
    (for the other two formulas, of more than N) is an error, as in the N/A cells of the
    paper's table. By default d is 2, or less if such a pool would be too large. Source:
    Biased Local SGD, Algorithm 1; docs/algorithms E.2, E.3, E.5.
    """
    if pool_formula not in POOL_FORMULAS:
        known = ", ".join(POOL_FORMULAS)
        raise ValueError(f"pool_formula={pool_formula!r}: choose one of {known}")
    if pool_factor is not None and not 1 <= pool_factor < float("inf"):
        raise ValueError(
            f"pool_factor={pool_factor}: pass a number of at least 1, or None"
        )

    def init(workers: Workers, num_examples: int, seed: int) -> BiasedState:
        m = len(workers)
        if num_examples < m:  # a draw would never end
            raise ValueError(
                f"biased: {num_examples} examples for {m} workers: each needs one"
            )
        tau = [int(s) for s in per_worker("local_steps", local_steps(workers), m)]
        slow = [i for i in range(m) if tau[i] < max(tau)]
        total = num_examples * POOL_FORMULAS[pool_formula](tau, slow)
        too_large = pool_factor is not None and pool_factor * total >= num_examples
        if pool_factor is not None and pool_formula != "steps":
            # ">" fits the paper's N/A cells
            too_large = pool_factor * total > num_examples * (1 + 1e-9)
        if slow and pool_factor is not None and too_large:
            raise ValueError(
                f"pool_factor={pool_factor:g}: the slow workers draw {total:.0f} "
                f"examples per pass from a pool of {pool_factor * total:.0f}, which is "
                f"not below the {num_examples} in the data; pass a smaller "
                "pool_factor, or fewer steps to slow workers"
            )
        steps = sum(tau[i] for i in slow) or 1
        counts = tuple(
            max(
                1,
                round(total * tau[i] / steps if i in slow else num_examples / m),
            )
            for i in range(m)
        )
        losses = np.full(num_examples, np.inf, np.float32)
        empty = (np.empty(0, np.int64),) * m
        pool = round((pool_factor or 2) * total)
        pool = min(pool, num_examples - (pool_factor is None)) if slow else 0
        return BiasedState(seed, 0, losses, empty, counts, tuple(slow), pool)

    def draw(state: BiasedState, worker: int, n: int) -> tuple[BiasedState, np.ndarray]:
        pieces = []
        while n > 0:
            if not len(state.queues[worker]):
                state = _refill(state, worker, unified)
            queue = state.queues[worker]
            pieces.append(queue[:n])
            state = _with_queues(state, {worker: queue[n:]})
            n -= len(pieces[-1])
        return state, np.concatenate(pieces) if pieces else np.empty(0, np.int64)

    def observe(
        state: BiasedState, worker: int, indices: np.ndarray, losses: np.ndarray
    ) -> BiasedState:
        del worker
        stored = state.losses.copy()
        stored[indices] = losses
        return state._replace(losses=stored)

    return Sampler(init, draw, observe)


def _refill(state: BiasedState, worker: int, unified: bool) -> BiasedState:
    """Fills the queues of the worker, of all slow workers, or (unified) of all."""
    rng = np.random.default_rng((_STREAM, state.seed, state.draws))
    state = state._replace(draws=state.draws + 1)
    n = len(state.losses)
    if not unified and worker not in state.slow:
        own = rng.permutation(n)[: state.counts[worker]]
        return _with_queues(state, {worker: own})
    new: dict[int, np.ndarray] = {}
    taken = np.empty(0, np.int64)
    fast = [i for i in range(len(state.counts)) if i not in state.slow]
    if state.slow:
        wanted = sum(state.counts[i] for i in state.slow)
        wanted = min(wanted, n - len(fast))  # leaves one for each fast worker
        pool = rng.permutation(n)[: max(state.pool, wanted)]
        # a stable sort of a random order breaks ties at random
        highest = np.argsort(-state.losses[pool], kind="stable")[:wanted]
        taken = rng.permutation(pool[highest])
        new |= _split(taken, [(i, state.counts[i]) for i in state.slow])
    if unified:
        free = np.ones(n, bool)
        free[taken] = False
        rest = rng.permutation(np.flatnonzero(free))
        new |= _split(rest, [(i, state.counts[i]) for i in fast])
    appended = {i: np.concatenate([state.queues[i], rows]) for i, rows in new.items()}
    return _with_queues(state, appended)


def _split(rows: np.ndarray, counts: list[tuple[int, int]]) -> dict[int, np.ndarray]:
    """Split rows in order by the workers' counts, or equally if there are too few."""
    if not counts:
        return {}
    ends = np.cumsum([count for _, count in counts])
    enough = ends[-1] <= len(rows)
    parts = np.split(rows, ends[:-1]) if enough else np.array_split(rows, len(counts))
    return {i: part[:count] for (i, count), part in zip(counts, parts, strict=True)}


def _with_queues(state: BiasedState, queues: dict[int, np.ndarray]) -> BiasedState:
    new = tuple(queues.get(i, queue) for i, queue in enumerate(state.queues))
    return state._replace(queues=new)
