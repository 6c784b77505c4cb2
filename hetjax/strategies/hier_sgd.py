"""HierSGD: hierarchical, bulk-synchronous SGD (Cong & Bhardwaj 2017)."""

from collections.abc import Sequence

from hetjax import local, merge, schedule
from hetjax.merge.merge_checks import check_positive
from hetjax.schedule import LearningRateLike
from hetjax.strategies.types import Strategy, factory, settings

STEP_UNITS = ("minibatches", "rounds")
Sizes = int | tuple[int, ...]


@factory
def hier_sgd(
    *,
    batch_size: int,
    learning_rate: LearningRateLike,
    levels: Sequence[Sizes] | None = None,
    local_steps: Sequence[int] = (4, 16),
    gammas: Sequence[float] | None = None,
    local_steps_unit: str = "minibatches",
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
    given = settings(locals())
    check_positive(batch_size=batch_size)
    if local_steps_unit not in STEP_UNITS:
        raise ValueError(
            f"local_steps_unit={local_steps_unit!r}: choose one of {STEP_UNITS}"
        )
    sizes = (None,) if levels is None else workers_per_node(levels)
    rounds = _rounds(tuple(local_steps), local_steps_unit)
    if len(rounds) != len(sizes) + 1:
        raise ValueError(
            f"local_steps={tuple(local_steps)} with levels={levels}: pass "
            f"{len(sizes) + 1} numbers, one for each level below the root "
            f"({len(sizes)}) and one for the root"
        )
    gammas_h = (None,) * len(rounds) if gammas is None else tuple(gammas)
    if len(gammas_h) != len(rounds):
        raise ValueError(
            f"gammas={gammas_h}: pass {len(rounds)}, one for each entry of local_steps"
        )
    policy = _tree(sizes, rounds, batch_size)
    merges = tuple(
        merge.hierarchical(gamma=gamma, root=level == len(gammas_h) - 1)
        for level, gamma in enumerate(gammas_h)
    )
    return Strategy(
        policy,
        local.sgd(),
        merges,
        batch_size,
        learning_rate,
        settings=given,
        name="hier_sgd",
    )


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
    found: list[Sizes | None] = []
    start = 0
    for workers in nodes:
        end = start
        while sum(level[start:end]) < workers:
            end += 1
        found.append(level[start:end])
        start = end
    return found


def _rounds(local_steps: tuple[int, ...], local_steps_unit: str) -> tuple[int, ...]:
    """The steps of workers; then, for each level, the merges of the level below."""
    if not local_steps or any(t < 1 for t in local_steps):
        raise ValueError(f"local_steps={local_steps}: pass whole numbers of at least 1")
    if local_steps_unit == "rounds":
        return local_steps
    for below, above in zip(local_steps, local_steps[1:], strict=False):
        if above % below:
            raise ValueError(
                f"local_steps={local_steps}: {above} minibatches are not a whole "
                f"number of rounds of {below}; change one, or pass "
                "local_steps_unit='rounds'"
            )
    pairs = zip(local_steps[1:], local_steps, strict=False)
    return (local_steps[0], *(above // below for above, below in pairs))


def workers_per_node(levels: Sequence[Sizes]) -> tuple[Sizes, ...]:
    """From children per node to workers per node, level by level.

    >>> workers_per_node((4, 8)), workers_per_node(((3, 1, 2, 2), 2))
    ((4, 32), ((3, 1, 2, 2), (4, 4)))
    """
    sizes = [
        n for level in levels for n in ((level,) if isinstance(level, int) else level)
    ]
    if any(n < 1 for n in sizes):
        raise ValueError(f"levels={tuple(levels)}: every node needs at least 1 child")
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
        ends = [sum(children[: i + 1]) for i in range(len(children))]
        starts = (0, *ends[:-1])
        pieces = zip(starts, ends, strict=True)
        found.append(tuple(sum(below[a:b]) for a, b in pieces))
    return tuple(found)
