"""HierSGD: hierarchical, bulk-synchronous SGD (Cong & Bhardwaj 2017)."""

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Literal

from hetjax import local, merge, schedule
from hetjax.arguments import Count, NotNegative
from hetjax.schedule import LearningRateLike
from hetjax.strategies.types import Strategy, factory

Sizes = Count | tuple[Count, ...]


@factory
def hier_sgd(
    *,
    batch_size: Count,
    learning_rate: LearningRateLike,
    levels: Sequence[Sizes] | None = None,
    local_steps: Sequence[Count] = (4, 16),
    gammas: Sequence[NotNegative] | None = None,
    local_steps_unit: Literal["minibatches", "rounds"] = "minibatches",
) -> Strategy:
    """A tree of workers that sum their gradients, less often at higher levels.

        x_1 <- x_1 - gamma_1 g                        T_2 times at every worker
        x_{h,i} <- x_{h,i} - gamma_h G,   G the sum of all gradients below it
        x_{h-1,n} <- x_{h,i}                          T_h times, then the level above

    `levels` are the numbers of children of the nodes below the root, from the lowest
    level: `(4,)` means nodes of 4 workers, `(4, 8)` also nodes of 8 such nodes, `()`
    only the root (HierSGD_2). A tuple in place of a number has one number per node.
    None means one level, with a node for each place of the machine.

    `local_steps` are T_2, T_3, ... in the paper; the root's is last. They count
    minibatches, as in the paper's Table I ((4, 16): 4 rounds of 4 steps), or rounds of
    the level below, as in its Algorithm 2 (`local_steps_unit="rounds"`). `gammas` are
    gamma_2, gamma_3, ... relative to gamma_1, which is `learning_rate`; by default all
    levels average: gamma_h = gamma_{h-1} / children. Source: HierSGD, Algorithms 1 to
    3; docs/algorithms D.
    """
    sizes = (None,) if levels is None else workers_per_node(levels)
    rounds = tuple(local_steps)
    if len(rounds) != len(sizes) + 1:
        raise ValueError(
            f"local_steps={rounds} with levels={levels}: pass {len(sizes) + 1} "
            f"numbers, one for each level below the root ({len(sizes)}) and one for "
            "the root"
        )
    if local_steps_unit == "minibatches":
        rounds = _rounds(rounds)
    of_levels = (None,) * len(rounds) if gammas is None else gammas
    if len(of_levels) != len(rounds):
        raise ValueError(
            f"gammas={gammas}: pass {len(rounds)}, one for each entry of local_steps"
        )
    *below, top = of_levels
    merges = (
        *(merge.hierarchical(gamma=gamma) for gamma in below),
        merge.hierarchical(gamma=top, root=True),
    )
    policy = _tree(sizes, rounds, batch_size)
    return Strategy(policy, local.sgd(), merges, batch_size, learning_rate)


def _tree(
    sizes: tuple[Sizes | None, ...], rounds: tuple[int, ...], batch_size: int
) -> schedule.Policy:
    """The policy of a node with these levels below it."""
    if not sizes:
        return schedule.rounds(local_steps=rounds[0], batch_size=batch_size)
    *below, top = sizes
    if isinstance(top, tuple):  # the levels below may differ between these nodes
        pieces = zip(*(_split_level(level, top) for level in below), strict=True)
        each = list(pieces) if below else [()] * len(top)
        inner = [_tree(piece, rounds[:-1], batch_size) for piece in each]
    else:
        inner = _tree(tuple(below), rounds[:-1], batch_size)
    return schedule.hierarchical(inner, sizes=top, every=rounds[-1])


def _split_level(level: Sizes | None, nodes: tuple[int, ...]) -> list[Sizes | None]:
    """Split a level's sizes among the nodes above it, by their numbers of workers."""
    if not isinstance(level, tuple):
        return [level] * len(nodes)
    found, rest = [], iter(level)
    for workers in nodes:
        piece = ()
        while sum(piece) < workers:
            piece += (next(rest),)
        found.append(piece)
    return found


def _rounds(local_steps: tuple[int, ...]) -> tuple[int, ...]:
    """The steps of workers; then, for each level, the merges of the level below."""
    for below, above in pairwise(local_steps):
        if above % below:
            raise ValueError(
                f"local_steps={local_steps}: {above} minibatches are not a whole "
                f"number of rounds of {below}; change one, or pass "
                "local_steps_unit='rounds'"
            )
    above = (b // a for a, b in pairwise(local_steps))
    return (local_steps[0], *above)


def workers_per_node(levels: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """From children per node to workers per node, level by level.

    >>> workers_per_node((4, 8)), workers_per_node(((3, 1, 2, 2), 2))
    ((4, 32), ((3, 1, 2, 2), (4, 4)))
    """
    found: list[Sizes] = []
    for children in levels:
        below = found[-1] if found else 1
        if isinstance(below, int):
            found.append(
                children * below
                if isinstance(children, int)
                else tuple(c * below for c in children)
            )
            continue
        if isinstance(children, int):
            if len(below) % children:
                raise ValueError(
                    f"levels={tuple(levels)}: {len(below)} nodes do not make whole "
                    f"groups of {children}"
                )
            children = (children,) * (len(below) // children)
        if sum(children) != len(below):
            raise ValueError(
                f"levels={tuple(levels)}: {children} does not sum to the {len(below)} "
                "nodes below"
            )
        rest = iter(below)
        found.append(tuple(sum(islice(rest, n)) for n in children))
    return tuple(found)
