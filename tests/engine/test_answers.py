"""The questions of a tape's writer to a player, and its use of the answers."""

from typing import NamedTuple

import numpy as np
import pytest
from policy_driver import ByHand, infos, machine, scripted
from tape_laws import (
    ACCURACY,
    RATE,
    ROUNDS,
    STALENESS,
    STEP,
    UPDATES,
    by_hand,
    entries_of,
    give,
    merge,
    of,
    spelled,
    writer_of,
    written,
)

from hetjax.engine import tape
from hetjax.engine.drawn_examples import Examples
from hetjax.engine.protocols import Traits
from hetjax.machine import (
    ROOT,
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeOp,
    SimulatedClock,
)
from hetjax.machine.merge_times import MergeTimes, PlannedMerge, Stamps
from hetjax.sampling import Sampler
from hetjax.schedule import Actions, LearningRate, hierarchical, rounds

# What a player has to tell


def test_members_are_measured_before_a_merge_which_takes_so_much_longer():
    """A forward pass is a third of a step: 30 examples take worker 0 a third of a
    second, and twice that for both models; worker 1 alone would take longer."""
    traits = Traits(measured=lambda node: node == ROOT)
    policy = scripted(merge(0, 1), merge(0, op=MergeOp.FETCH))
    entries = written(
        policy,
        machine(1.0, 4.0),
        play=lambda e: [0.25, 0.75] if isinstance(e, tape.MeasureMembers) else None,
        traits=traits,
        num_held_out=30,
    )
    assert spelled(entries) == "ABBNMD\neAMD\neA"
    pushed, _ = of(entries, tape.MergeReplicas)
    assert [*pushed.stats[ACCURACY]] == [0.25, 0.75]
    stamps = of(entries, tape.MergeDone)[0].stamps
    assert stamps.finish - stamps.start == pytest.approx(2 / 3)


@pytest.mark.parametrize(("settles", "settle"), [(True, "T"), (False, "")])
def test_only_deferred_results_are_waited_for(settles, settle):
    """Only before a merge of nodes, which reads the results of the rounds below."""
    policy = hierarchical(ROUNDS, sizes=1)
    writer = by_hand(policy, (0, 1), traits=Traits(synchronizes=settles))
    merges = f"AMD{settle}MDMDMD"  # of group 1, of the root, and down again
    assert spelled(entries_of(writer)) == f"ABRBR\naAMDW\na{merges}WRR"


def test_members_that_a_player_cannot_reach_take_part_without_their_work():
    """Like one that has just begun: worker 1 is not one merge behind."""

    def play(entry):
        if isinstance(entry, tape.GatherReplicas):
            return set(entry.action.members) & {1}
        return None

    policy = scripted(give(0, 1), merge(0), merge(0, 1))
    traits = Traits(may_be_unreachable=True)
    entries = entries_of(by_hand(policy, (0, 1), traits=traits), play=play)
    assert spelled(entries) == "ABRBR\naAGMDW\naAGMDW"
    first, second = of(entries, tape.MergeReplicas)
    assert [*first.stats[UPDATES]] == [1]
    assert [*second.stats[UPDATES]] == [0, 0]
    assert [*second.stats[STALENESS]] == [0, 0]
    assert [done.missing for done in of(entries, tape.MergeDone)] == [(), (1,)]


class Missing(ByHand):
    """A clock by which worker 1 could not be reached in any merge."""

    def plan(self, merge):
        return super().plan(merge)._replace(missing=(1,))


def test_members_that_were_out_of_reach_by_the_clock_begin_again():
    clock = Missing(infos(1.0, 1.0), (0, 1))
    entries = entries_of(writer_of(ROUNDS, clock))
    assert spelled(entries) == "ABRBR\naAW\naAFBMDWRR"
    (found,) = of(entries, tape.MergeReplicas)
    assert [*found.stats[UPDATES]] == [1, 0]
    assert of(entries, tape.MergeDone)[0].missing == (1,)


class Measuring(ByHand):
    """A clock that learns how long merges took."""

    def __init__(self, *args):
        super().__init__(*args)
        self.told = []

    def plan(self, merge):
        return PlannedMerge(self.now)

    def merged(self, action, times):
        self.told.append((action, times))
        return Stamps(1.0, 2.0, 3.0, 4.0)


def test_a_clock_that_measures_merges_receives_their_durations():
    clock = Measuring(infos(1.0), (0,))
    times = MergeTimes(Stamps(100.0, 101.0, 102.0, 103.0), compiling=0.5)
    writer = writer_of(ROUNDS, clock)
    entries = entries_of(
        writer, play=lambda e: times if isinstance(e, tape.MergeReplicas) else None
    )
    (merge,) = of(entries, tape.MergeReplicas)
    assert clock.told == [(merge.action, times)]
    stamps = Stamps(1.0, 2.0, 3.0, 4.0)
    assert of(entries, tape.MergeDone)[0].stamps == stamps
    assert [(s.kind, s.start, s.finish) for s in writer.ledger.timeline] == [
        ("busy", 0.0, 1.0),
        ("transfer", 1.0, 2.0),
        ("merging", 2.0, 3.0),
        ("transfer", 3.0, 4.0),
    ]


@pytest.mark.parametrize(("merges_wait", "seconds"), [(True, 0.5), (False, 0.0)])
def test_members_wait_for_merges_that_do_not_block_only_if_the_player_does(
    merges_wait, seconds
):
    writer = writer_of(
        rounds(batch_size=4, blocking=False),
        SimulatedClock(machine(1.0, 1.0, latency=0.25), seed=0),
        traits=Traits(merges_wait=merges_wait),
    )
    entries_of(writer, num_events=2)
    merging = [s for s in writer.ledger.timeline if s.kind == "merging"]
    assert sum(s.finish - s.start for s in merging) == 2 * seconds


@pytest.mark.parametrize("counts_bytes", [True, False])
def test_the_ledger_counts_bytes_unless_the_player_does(counts_bytes):
    traffic = tuple if counts_bytes else None
    traits = Traits(num_bytes=100.0, traffic=traffic)
    writer = by_hand(ROUNDS, (0, 1), traits=traits)
    entries_of(writer)
    (sent,) = {record.bytes_sent for record in writer.ledger.records}
    assert sent == (0 if counts_bytes else 100)


# Results of rounds


class Result(NamedTuple):
    """The result of a round."""

    finite: bool = True
    known: bool = True
    padded: int = 0
    losses: tuple = ()
    mean: float = 0.0


@pytest.mark.parametrize(
    ("result", "counts"),
    [
        (Result(padded=3), True),
        (Result(padded=3, finite=False), False),
        (Result(padded=3, finite=False, known=False), True),  # it is seen later
    ],
)
def test_nothing_counts_of_a_round_that_is_known_not_to_be_finite(result, counts):
    writer = by_hand(scripted(give(0), merge(0)), (0,), workers=1)
    entries = entries_of(
        writer, play=lambda e: result if isinstance(e, Arrival) else None
    )
    (record,) = writer.ledger.records
    assert (record.updates, record.examples, record.nans) == (
        (1, 4, 0) if counts else (0, 0, 1)
    )
    assert record.padded == (3 if counts else 0)
    (found,) = of(entries, tape.MergeReplicas)
    assert [*found.stats[UPDATES]] == [int(counts)]


@pytest.mark.parametrize(("finite", "staleness"), [(True, 1), (False, 0)])
def test_a_replica_that_was_reset_is_new(finite, staleness):
    """Worker 1 arrives after the merge of worker 0, which it has not seen otherwise."""
    policy = scripted(give(0, 1), merge(0), merge(1))
    writer = by_hand(policy, (0, 1))

    def play(entry):
        if isinstance(entry, Arrival):
            return Result(finite=finite or entry.worker == 0)
        return None

    _, second = of(entries_of(writer, play=play), tape.MergeReplicas)
    assert [*second.stats[STALENESS]] == [staleness]


def test_a_sampler_is_shown_the_losses_of_what_was_merged():
    """Of worker 0, but not of worker 1, which is lost before its merge."""
    seen = []

    def draw(state, worker, n):
        return state + n, np.arange(state, state + n)

    def observe(state, worker, rows, losses):
        seen.append((worker, [*rows], [*losses]))
        return state

    clock = ByHand(infos(1.0, 1.0), (0, 1, Leave(1, 2.5, lost=True), Join(1, 3.0)))
    sampler = Sampler(lambda workers, n, seed: 0, draw, observe)
    examples = Examples(sampler, clock.workers, 1000, 0, lambda rows: [7] * len(rows))
    policy = scripted(give(0, 1), Actions(), Actions(), Actions(), merge(0, 1))
    begun = {}

    def play(entry):
        if isinstance(entry, tape.StartRound):
            begun[entry.worker] = entry
        if isinstance(entry, Arrival):
            (rows,) = begun[entry.worker].rows
            return Result(losses=((rows, rows / 4),))
        return None

    entries = entries_of(writer_of(policy, clock, examples=examples), play=play)
    assert [[*r.rows[0]] for r in of(entries, tape.StartRound)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert {tuple(r.nonzeros) for r in of(entries, tape.StartRound)} == {(7,)}
    assert seen == [(0, [0, 1, 2, 3], [0.0, 0.25, 0.5, 0.75])]


# Learning rates


def test_rates_follow_the_examples_done_and_the_size_of_the_batch():
    """8 examples are done when the second rounds begin, of which 0's has half of b."""
    writer = by_hand(
        scripted(
            give(0, 1),
            Actions(),
            Actions(dispatch=((0, LocalRound(1, 2, lr_scale=0.5)), (1, STEP))),
        ),
        (0, 1),
        learning_rate=LearningRate(lambda examples: 1.0 + examples, over="examples"),
    )
    entries = entries_of(writer)
    rates = [r.learning_rate for r in of(entries, tape.StartRound)]
    assert rates == [1.0, 1.0, 4.5, 9.0]
    assert {type(rate) for rate in rates} == {np.float32}


def test_a_member_without_a_round_gets_the_present_rate():
    policy = scripted(merge(0, 1))
    (found,) = of(
        written(policy, machine(1.0, 1.0), learning_rate=0.25), tape.MergeReplicas
    )
    assert [*found.stats[RATE]] == [0.25, 0.25]


# Staleness


def test_a_replica_is_as_old_as_the_merges_since_it_began():
    """Worker 1 begins when the run does, worker 2 after both merges of worker 0."""
    policy = scripted(
        give(0, 1),
        Actions(merges=merge(0).merges, dispatch=give(0).dispatch),
        merge(0),
        merge(1, 2),
    )
    entries = entries_of(by_hand(policy, (0, 0, 1), workers=3))
    assert [[*m.stats[STALENESS]] for m in of(entries, tape.MergeReplicas)] == [
        [0],
        [0],
        [2, 0],
    ]
