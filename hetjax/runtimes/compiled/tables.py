"""Writes a stretch as tables of few shapes: supersteps, merges, rounds and rows.

Tables are padded to few lengths; rows beyond their ends are not read.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hetjax.data.batching import RATIO, Bucket
from hetjax.data.device_rows import check_rows, pad_rows
from hetjax.runtimes.compiled.batch_sources import BucketSteps
from hetjax.runtimes.compiled.stretch import FIELDS, Stretch
from hetjax.runtimes.compiled.stretch_types import StretchTables

RoundGroups = list[
    list[list[int]]
]  # by superstep: groups of rounds that run side by side


class TableLengths(NamedTuple):
    """The lengths of all tables, which only grow, so that few programs compile."""

    supersteps: int = 1
    rounds: int = 1  # in turn, or groups
    steps: int = 1
    merges: int = 1
    members: int = 1
    lanes: int = 1  # rounds that run side by side

    def grown_to(self, least: "TableLengths") -> "TableLengths":
        """Return lengths of at least `least`, grown to powers of two."""
        pairs = zip(self, least, strict=True)
        return TableLengths(
            *(a if a >= b else 1 << (b - 1).bit_length() for a, b in pairs)
        )


def lengths_of(stretch: Stretch, groups: RoundGroups | None) -> TableLengths:
    """Return the lengths that a stretch needs; without `groups`, rounds run in turn."""
    every = [] if groups is None else [group for of in groups for group in of]
    return TableLengths(
        len(stretch.ends) + 1,
        max(1, len(stretch.rounds) if groups is None else len(every)),
        max(1, len(stretch.rows)),
        max(1, len(stretch.merges)),
        max(1, max((len(m) - 2 for m in stretch.merges), default=1)),
        max(map(len, every), default=1),
    )


def round_groups_of(stretch: Stretch, buckets: np.ndarray, lanes: int) -> RoundGroups:
    """Group the rounds of each superstep that run side by side, `lanes` at most.

    Rounds of one worker are in different groups, in order, and so are rounds of
    different buckets; `buckets` has the bucket of each round.
    """
    found = []
    for _, rounds in stretch.supersteps():
        groups: dict[tuple[int, int], list[int]] = {}
        turn: dict[int, int] = {}  # the number of earlier rounds of each worker
        for i in rounds:
            worker = stretch.rounds[i][0]
            number = turn.get(worker, 0)
            turn[worker] = number + 1
            groups.setdefault((number, int(buckets[i])), []).append(i)
        found.append(
            [
                groups[key][i : i + lanes]
                for key in sorted(groups)
                for i in range(0, len(groups[key]), lanes)
            ]
        )
    return found


def tables_of(
    stretch: Stretch,
    groups: RoundGroups | None,
    buckets: np.ndarray,
    rows: np.ndarray,
    lengths: TableLengths,
    *,
    seed: int,
    absent: int,
) -> StretchTables:
    """Return the tables of a stretch; empty lanes have the worker `absent`."""
    supersteps = np.zeros((lengths.supersteps, 4), np.int32)
    ends = np.array(
        [*stretch.ends, (len(stretch.merges), len(stretch.rounds))], np.int32
    )
    if groups is not None:
        ends[:, 1] = np.cumsum([len(of) for of in groups])
    used = len(ends)
    supersteps[:used, 1::2] = ends
    supersteps[1:used, 0::2] = ends[:-1]
    merges = np.zeros((lengths.merges, 2 + lengths.members), np.int32)
    stats = np.zeros((lengths.merges, FIELDS, lengths.members), np.float32)
    for alike in _alike([len(merge) for merge in stretch.merges]):
        of_alike = [stretch.merges[i] for i in alike]
        merges[alike, : len(of_alike[0])] = of_alike
    # 0 also of merges without members, whose statistics are empty
    for alike in _alike([0 if x is None else x.shape[1] for x in stretch.stats]):
        of_alike = [x for i in alike if (x := stretch.stats[i]) is not None]
        if of_alike and of_alike[0].shape[1]:
            stats[alike, :, : of_alike[0].shape[1]] = of_alike
    rounds, rates = _rounds(stretch, groups, buckets, lengths, absent)
    number = np.int32(used)
    return StretchTables(
        np.uint32(seed), supersteps, number, rounds, rates, rows, merges, stats
    )


def _alike(sizes: list[int]) -> list[list[int]]:
    """Return groups of indices with equal sizes."""
    found: dict[int, list[int]] = {}
    for i, size in enumerate(sizes):
        found.setdefault(size, []).append(i)
    return list(found.values())


def _rounds(
    stretch: Stretch,
    groups: RoundGroups | None,
    buckets: np.ndarray,
    lengths: TableLengths,
    absent: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the tables of rounds and of their learning rates."""
    of_rounds = np.array(stretch.rounds, np.int32).reshape(-1, 5)
    of_rates, used = np.array(stretch.rates, np.float32), len(stretch.rounds)
    if groups is None:
        rounds = np.zeros((lengths.rounds, 6), np.int32)
        rates = np.zeros(lengths.rounds, np.float32)
        rounds[:used, :5], rounds[:used, 5], rates[:used] = of_rounds, buckets, of_rates
        return rounds, rates
    rounds = np.zeros((lengths.rounds, lengths.lanes, 6), np.int32)
    rates = np.zeros((lengths.rounds, lengths.lanes), np.float32)
    rounds[:, :, 0] = absent
    if used:
        order, group, lane = group_positions(groups)
        rounds[group, lane, :5] = of_rounds[order]
        rounds[group, :, 5] = buckets[order][:, None]  # one bucket in a group
        rates[group, lane] = of_rates[order]
    return rounds, rates


def group_positions(groups: RoundGroups) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rounds in the order of the groups, and each one's group and lane."""
    every = [group for of in groups for group in of]
    order = np.array([i for group in every for i in group], int)
    of_group = np.repeat(np.arange(len(every)), [len(group) for group in every])
    lanes = np.concatenate([np.arange(len(group)) for group in every])
    return order, of_group, lanes


class Buckets:
    """The batch shapes that a run has used so far; more are added when needed."""

    def __init__(self, buckets: Sequence[Bucket], source: Any, *, exact: bool):
        """`buckets` are the job's. If `exact`, batches are not padded.

        Otherwise all batches of a stretch are padded to one size that holds the largest
        of them: the largest batch size, half of it, a quarter, and so on.
        """
        self._of_job, self._source, self._exact = buckets, source, exact
        # most runs have rounds of the largest size at some point
        size = buckets[-1].size
        largest = [next(b for b in buckets if b.size == size)]
        self.known: list[Bucket] = [] if exact or source.sends else largest

    def of(
        self, stretch: Stretch
    ) -> tuple[tuple[Bucket, ...], np.ndarray, np.ndarray, list[BucketSteps]]:
        """Return buckets, each round's bucket, the rows [S, B], and steps by bucket."""
        numbers = np.array(stretch.rounds, np.int64).reshape(-1, 5)
        steps, sizes = numbers[:, 2], numbers[:, 4]
        needed = np.unique(sizes[steps > 0])
        if not self._exact and len(needed):
            needed = np.array([self._coarse(int(needed[-1]))])
        of_step = np.repeat(sizes, steps)
        table = np.zeros((len(stretch.rows), max(self._sizes(needed))), np.int32)
        held: dict[int, list[Any]] = {}
        for n in np.unique(of_step):
            here = np.flatnonzero(of_step == n)
            size = int(n) if self._exact else int(needed[0])
            rows = [stretch.rows[i] for i in here]
            every = np.concatenate(rows)
            check_rows(every, self._source.num_rows)
            lengths = self._source.lengths(every)
            table[here, :size] = pad_rows(every.reshape(len(rows), -1), size, lengths)
            self._hold(size, table[here, :size])
            held.setdefault(size, []).append((here, rows))
        known = sorted(self.known)
        steps = [
            BucketSteps(
                next(b for b in known if b.size == size),
                np.concatenate([here for here, _ in each]),
                [r for _, rows in each for r in rows],
            )
            for size, each in held.items()
        ]
        if self._source.sends:  # there are no batches of other sizes
            known = [b for b in known if b.size in held]
        elif not self._exact:
            size = next(iter(held), known[-1].size if known else 0)
            known = [b for b in known if b.size == size]
        if not self._exact:
            return tuple(known), np.zeros(len(numbers), np.int32), table, steps
        places = {b.size: i for i, b in enumerate(known)}
        of_round = np.array([places.get(int(n), 0) for n in sizes], np.int32)
        return tuple(known), of_round, table, steps

    def _sizes(self, needed: np.ndarray) -> list[int]:
        return [1, *(b.size for b in self.known), *map(int, needed)]

    def _coarse(self, n: int) -> int:
        """Return the smallest of the batch size, half of it, ..., that holds n."""
        size = self._of_job[-1].size
        while size > 1 and -(-size // 2) >= n:
            size = -(-size // 2)
        return size

    def _hold(self, size: int, rows: np.ndarray) -> None:
        """Add or grow the bucket of a size, so that all these batches fit."""
        each = self._source.lengths(rows)
        entries = [max(1, int(of.sum(axis=1).max())) for of in each]
        before = next((b for b in self.known if b.size == size), None)
        if before is None:
            before = next(b for b in self._of_job if b.size >= size)._replace(size=size)
            self.known.append(before)
        capacities = list(before.capacities)
        for i, needed in enumerate(entries):
            while capacities[i] < needed:
                capacities[i] = int(np.ceil(capacities[i] * RATIO))
        self.known.remove(before)
        self.known.append(Bucket(size, tuple(capacities)))
