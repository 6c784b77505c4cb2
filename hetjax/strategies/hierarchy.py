"""HierSGD: hierarchical, bulk-synchronous SGD (Cong & Bhardwaj 2017)."""

from collections.abc import Sequence

from hetjax import local, merge, schedule
from hetjax.schedule import RateLike
from hetjax.strategies.types import Strategy, positive, settings

COUNTS = ("minibatches", "rounds")
Sizes = int | tuple[int, ...]


def hier_sgd(
    *,
    batch_size: int,
    rate: RateLike,
    levels: Sequence[Sizes] | None = None,
    intervals: Sequence[int] = (4, 16),
    gammas: Sequence[float] | None = None,
    t2_counts: str = "minibatches",
) -> Strategy:
    """A tree of learners that sum their gradients, the higher the less often.

        x_1 <- x_1 - gamma_1 g                        T_2 times at every learner
        x_{h,i} <- x_{h,i} - gamma_h G,   G the sum of all gradients below it
        x_{h-1,n} <- x_{h,i}                          T_h times, then the level above

    `levels` are the children of a node below the root, from the lowest: `(4,)` is nodes
    of 4 learners, `(4, 8)` also nodes of 8 such nodes, `()` a root alone (HierSGD_2); a
    tuple in the place of a number gives every node its own. None: one level, a node for
    each place of the machine. `intervals` are T_2, T_3, ..., the root's last. They
    count minibatches, as the paper's Table I does ((4, 16): 4 rounds of 4 steps), or
    rounds of the level below, as its Algorithm 2 (`t2_counts="rounds"`). `gammas` are
    gamma_2, gamma_3, ... over the rate; by default all average: gamma_h =
    gamma_{h-1} / children. Source: HierSGD, Algorithms 1 to 3; ALGORITHMS D.
    """
    given = settings(locals())
    positive(batch_size=batch_size)
    if t2_counts not in COUNTS:
        raise ValueError(f"t2_counts={t2_counts!r}: choose one of {COUNTS}")
    sizes = (None,) if levels is None else workers_per_node(levels)
    rounds = _rounds(tuple(intervals), t2_counts)
    if len(rounds) != len(sizes) + 1:
        raise ValueError(
            f"intervals={tuple(intervals)}: give {len(sizes) + 1}, one for each level "
            f"below the root ({len(sizes)}) and one for the root"
        )
    rates = (None,) * len(rounds) if gammas is None else tuple(gammas)
    if len(rates) != len(rounds):
        raise ValueError(f"gammas={rates}: give {len(rounds)}, one for each interval")
    policy = _tree(sizes, rounds, batch_size)
    merges = tuple(
        merge.hierarchical(gamma=gamma, root=level == len(rates) - 1)
        for level, gamma in enumerate(rates)
    )
    return Strategy(
        policy,
        local.sgd(),
        merges,
        batch_size,
        rate,
        settings=given,
        name="hier_sgd",
    )


def _tree(
    sizes: tuple[Sizes | None, ...], rounds: tuple[int, ...], batch_size: int
) -> schedule.Policy:
    """The policy of a node with such levels below it."""
    if not sizes:
        return schedule.rounds(steps=rounds[0], batch_size=batch_size)
    *below, top = sizes
    if isinstance(top, tuple):  # nodes that may be unlike below, too
        pieces = zip(*(_pieces(level, top) for level in below), strict=True)
        each = list(pieces) if below else [()] * len(top)
        inner = [_tree(piece, rounds[:-1], batch_size) for piece in each]
    else:
        inner = _tree(tuple(below), rounds[:-1], batch_size)
    return schedule.groups(inner, sizes=top, every=rounds[-1])


def _pieces(level: Sizes | None, nodes: tuple[int, ...]) -> list[Sizes | None]:
    """A level's sizes, node by node of so many workers each."""
    if not isinstance(level, tuple):
        return [level] * len(nodes)
    found: list[Sizes | None] = []
    start = 0
    for workers in nodes:
        end = start
        while sum(level[start:end]) < workers:
            end += 1
        found.append(level[start:end])
        start = end
    return found


def _rounds(intervals: tuple[int, ...], t2_counts: str) -> tuple[int, ...]:
    """Steps of the learners, then for each level the merges of the one below."""
    if not intervals or any(not t >= 1 or t != int(t) for t in intervals):
        raise ValueError(f"intervals={intervals}: give whole numbers of at least 1")
    if t2_counts == "rounds":
        return intervals
    for below, above in zip(intervals, intervals[1:], strict=False):
        if above % below:
            raise ValueError(
                f"intervals={intervals}: {above} minibatches are no whole number of "
                f"rounds of {below}; change one, or let t2_counts='rounds'"
            )
    pairs = zip(intervals[1:], intervals, strict=False)
    return (intervals[0], *(above // below for above, below in pairs))


def workers_per_node(levels: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """From children per node to workers per node, level by level.

    >>> workers_per_node((4, 8)), workers_per_node(((3, 1, 2, 2), 2))
    ((4, 32), ((3, 1, 2, 2), (4, 4)))
    """
    found: list[Sizes] = []
    for children in levels:
        below = found[-1] if found else 1
        if isinstance(below, int):
            if isinstance(children, int):
                found.append(children * below)
            else:
                found.append(tuple(c * below for c in children))
            continue
        if isinstance(children, int):
            if children < 1 or len(below) % children:
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
        ends = [sum(children[: i + 1]) for i in range(len(children))]
        starts = (0, *ends[:-1])
        pieces = zip(starts, ends, strict=True)
        found.append(tuple(sum(below[a:b]) for a, b in pieces))
    return tuple(found)
