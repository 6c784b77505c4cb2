"""What the writer of a tape asks of a player, and what it makes of the answers."""

from typing import NamedTuple

import numpy as np
import pytest
from policy_driver import ByHand, infos, machine, scripted
from tape_laws import Counting, entries_of, spelled, writer_of, written

from hetjax.engine import tape
from hetjax.engine.examples import Examples
from hetjax.engine.protocols import Traits
from hetjax.machine import (
    ROOT,
    Arrival,
    Evaluated,
    EvaluationDue,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    ScriptedFault,
    SimulatedClock,
)
from hetjax.machine.types import MergeTimes, PlannedMerge, Stamps
from hetjax.sampling import Sampler
from hetjax.schedule import PUSH_FETCH, Actions, LearningRate, hierarchical, rounds

STEP = LocalRound(1, 4)
ROUNDS = rounds(batch_size=4)
UPDATES, RATE, STALENESS, ACCURACY = 1, 4, 5, 8  # rows of a merge's statistics


def by_hand(policy, events, *, workers=2, **settings):
    """A writer on a clock on which these events happen."""
    return writer_of(policy, ByHand(infos(*(1.0,) * workers), events), **settings)


def of(entries, kind):
    return [entry for entry in entries if isinstance(entry, kind)]


def give(*workers):
    return Actions(dispatch=tuple((k, STEP) for k in workers))


def merge(*members, **fields):
    return Actions(merges=(MergeAction(members, **fields),))


# The order of entries


def test_two_rounds_and_their_merge():
    """Each entry in full, but for the statistics of the merge."""
    entries = written(ROUNDS, machine(1.0, 2.0, latency=0.25), num_events=3)
    whole = MergeAction((0, 1))
    again = give(0, 1)._replace(merges=(whole,))

    def start(worker, first_step, time):
        return tape.Round(worker, STEP, (), [0], np.float32(0.0), first_step, time)

    (merge,) = of(entries, tape.Merge)
    assert entries == [
        give(0, 1),
        tape.Begin(0),
        start(0, 0, 0.0),
        tape.Begin(1),
        start(1, 0, 0.0),
        Arrival(0, STEP, 0.0, 1.0),
        Actions(),
        tape.Rest(Actions()),
        Arrival(1, STEP, 0.0, 2.0),
        again,
        merge,
        tape.MergeDone(whole, 0.0, Stamps(2.0, 2.0, 2.5, 2.5), ()),
        tape.Rest(again),
        start(0, 1, 2.5),
        start(1, 1, 2.5),
        Merged(ROOT, 2.5, (0, 1), PUSH_FETCH),
        Actions(),
    ]
    assert merge.action == whole
    assert [*merge.stats[UPDATES]] == [1, 1]


def test_a_member_or_partner_without_a_replica_begins_before_the_merge():
    entries = written(scripted(merge(0, partners=(1,))), machine(1.0, 1.0))
    assert spelled(entries) == "ABBMD\neA"


def test_a_stopped_worker_that_has_merged_starts_from_the_center_again():
    policy = scripted(
        give(0), merge(0)._replace(stop=(0,)), Actions(), Actions(start=(0,)), give(0)
    )
    entries = written(policy, machine(1.0))
    assert spelled(entries) == "ABR\naAMDW\neA\neAF\neABR\naAW"
    assert [r.first_step for r in of(entries, tape.Round)] == [0, 1]


def test_a_stopped_worker_that_has_not_merged_keeps_its_replica():
    policy = scripted(give(0), Actions(stop=(0,)), Actions(start=(0,)), give(0))
    assert spelled(written(policy, machine(1.0))) == "ABR\naAW\neA\neAR\naAW"


def test_a_worker_that_leaves_while_it_computes_arrives():
    policy = scripted(give(0)._replace(stop=(0,)))
    assert spelled(written(policy, machine(1.0))) == "ABR\neA\naAW"


# Lost workers


def test_a_lost_worker_is_dropped_and_begins_again_when_it_is_back():
    policy = scripted(give(0, 1), Actions(), Actions(), give(1))
    events = (0, Leave(1, 1.5, lost=True), Join(1, 2.0), 1)
    entries = entries_of(by_hand(policy, events))
    assert spelled(entries) == "ABRBR\naAW\nlXFA\neABR\naAW"
    assert of(entries, tape.Drop) == [tape.Drop(1)]
    assert of(entries, tape.Forget) == [tape.Forget(1)]


def test_what_a_lost_worker_did_since_its_merge_is_not_merged():
    policy = scripted(give(0, 1), Actions(), Actions(), Actions(), merge(0, 1))
    events = (0, 1, Leave(1, 1.5, lost=True), Join(1, 2.0))
    entries = entries_of(by_hand(policy, events))
    (found,) = of(entries, tape.Merge)
    assert [*found.stats[UPDATES]] == [1, 0]


def test_the_reason_of_a_loss_that_is_known_already_only_adds_to_it():
    policy = scripted(give(0, 1))
    lost = Leave(1, 1.0, lost=True)
    entries = entries_of(by_hand(policy, (lost, lost._replace(why="no answer"))))
    assert spelled(entries) == "ABRBR\nlXFA\nl"


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_run_may_end_with_the_first_loss(has_begun):
    """The policy is told if the run does not end: nobody here stops it."""
    events = (Leave(1, 1.5, lost=True, why="no answer"), 0)
    policy = scripted(give(0, 1) if has_begun else give(0))
    entries = entries_of(by_hand(policy, events, stops_if_lost=True))
    begun, forgotten = ("BR", "F") if has_begun else ("", "")
    assert spelled(entries) == f"ABR{begun}\nlX{forgotten}SA\naAW"
    assert of(entries, tape.Stop) == [tape.Stop("worker w1 was lost: no answer")]


def test_a_run_ends_with_the_last_loss():
    clock = ByHand(infos(1.0), (Leave(0, 1.5, lost=True, why="no answer"),))
    clock.has_pending_joins = False
    entries = entries_of(writer_of(scripted(give(0)), clock))
    assert spelled(entries) == "ABR\nlXFAS"
    assert entries[-1].why == "worker w0, the last one, was lost: no answer"


def test_a_run_that_was_stopped_no_longer_asks_the_policy():
    stopped = []

    def stop(entry):
        stopped.extend([1] * isinstance(entry, tape.Rest))

    writer = by_hand(ROUNDS, (0, 1), stopped=lambda: stopped)
    assert spelled(entries_of(writer, play=stop)) == "ABRBR\naAW\na"


# Evaluations


def test_a_model_is_kept_for_evaluations_before_a_merge_is_visible():
    """Until 2.5 s the model is that before the merge, which is carried out at 2 s."""
    instants = (1.5, 2.25, 2.5, 3.0)
    play = Counting(instants)
    entries = written(
        ROUNDS,
        machine(1.0, 2.0, latency=0.25),
        num_events=7,
        play=play,
        instants=instants,
    )
    assert spelled(entries) == ("ABRBR\naAW\ntALP\naALMDWRR\ntAP\neA\ntALP\ntALP")
    assert play.points == [(1.5, 0), (2.25, 0), (2.5, 1), (3.0, 1)]


def test_each_of_several_merges_has_its_own_model_kept():
    """Visible at 1 and 2 s, with one evaluation before, one between, and one after."""
    instants = (0.5, 1.5, 2.5)
    play = Counting(instants)
    entries = written(
        scripted(Actions(merges=merge(0, 1).merges * 2)),
        machine(1.0, 1.0, latency=0.5),
        play=play,
        instants=instants,
    )
    assert spelled(entries) == "ALBBMDLMD\ntAP\neA\ntAP\neA\ntALPS"
    assert play.points == [(0.5, 0), (1.5, 1), (2.5, 2)]


def test_what_was_seen_is_told_unless_it_was_the_last_evaluation():
    told = []

    def react(state, event):
        told.append(event)
        return state, Actions()

    policy = scripted(give(0))._replace(react=react)
    entries = written(
        policy,
        machine(9.0),
        num_events=2,
        play=lambda e: {"loss": e.time} if isinstance(e, tape.Point) else None,
        instants=(1.0, 2.0),
    )
    assert spelled(entries) == "ABR\ntALPA\ntALP"
    assert told == [
        EvaluationDue(1.0),
        Evaluated({"loss": 1.0}, 1.0),
        EvaluationDue(2.0),
    ]


def test_a_policy_may_merge_before_an_evaluation():
    step = merge(0, op=MergeOp.STEP, server_steps=3, transfers=0)
    entries = written(scripted(Actions(), step), machine(1.0), instants=(1.0,))
    assert spelled(entries).startswith("A\ntABMDLP")


def test_the_timer_of_evaluations_is_the_writers_own():
    with pytest.raises(ValueError, match="the timer 'evaluate' is the loop's own"):
        written(scripted(Actions(timers=(("evaluate", 1.0),))), machine(1.0))


# Runs that cannot go on


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        (
            (),
            "no worker has a local round since 0 s: the policy returned no actions "
            "when the run began",
        ),
        (
            (give(0),),
            "no worker has a local round since 1 s: the policy returned no actions "
            "on Arrival",
        ),
        (
            (Actions(stop=(0,)),),
            "no worker is active since 0 s: the policy stopped the last one",
        ),
    ],
)
def test_a_run_in_which_no_worker_has_a_round_ends_at_the_next_evaluation(actions, why):
    entries = written(scripted(*actions), machine(1.0), instants=(5.0,))
    assert spelled(entries).endswith("\ntALPS")
    assert entries[-1] == tape.Stop(why)


@pytest.mark.parametrize(
    ("actions", "faults"),
    [
        (give(0)._replace(dispatch=((0, LocalRound(9, 4)),)), ()),
        (Actions(timers=(("later", 9.0),)), ()),
        (merge(0, 1), ()),
        (Actions(), (ScriptedFault(9.0, "join", "w1"),)),
    ],
)
def test_a_run_goes_on_while_something_is_awaited(actions, faults):
    """A round, a timer, a merge, or a worker that joins, at 8 s or later."""
    m = machine(1.0, 1.0, latency=4.0, faults=faults)
    entries = written(scripted(actions), m, instants=(5.0,))
    assert of(entries, tape.Point)
    assert not of(entries, tape.Stop)


# What a player has to tell


def test_members_are_measured_before_a_merge_which_takes_so_much_longer():
    """A forward pass is a third of a step: 30 examples take worker 0 a third of a
    second, and twice that for both models; worker 1 alone would take longer."""
    traits = Traits(measured=lambda node: node == ROOT)
    policy = scripted(merge(0, 1), merge(0, op=MergeOp.FETCH))
    entries = written(
        policy,
        machine(1.0, 4.0),
        play=lambda e: [0.25, 0.75] if isinstance(e, tape.Measure) else None,
        traits=traits,
        num_held_out=30,
    )
    assert spelled(entries) == "ABBNMD\neAMD\neA"
    pushed, _ = of(entries, tape.Merge)
    assert [*pushed.stats[ACCURACY]] == [0.25, 0.75]
    stamps = of(entries, tape.MergeDone)[0].stamps
    assert stamps.finish - stamps.start == pytest.approx(2 / 3)


@pytest.mark.parametrize(("runs_ahead", "settle"), [(True, "T"), (False, "")])
def test_results_are_waited_for_only_where_they_come_late(runs_ahead, settle):
    """And only before a merge of nodes, which reads what the rounds below did."""
    policy = hierarchical(ROUNDS, sizes=1)
    writer = by_hand(policy, (0, 1), traits=Traits(runs_ahead=runs_ahead))
    merges = f"AMD{settle}MDMDMD"  # of group 1, of the root, and down again
    assert spelled(entries_of(writer)) == f"ABRBR\naAMDW\na{merges}WRR"


def test_members_that_a_player_cannot_reach_take_part_without_their_work():
    def play(entry):
        return (1,) if isinstance(entry, tape.Gather) else None

    entries = written(
        ROUNDS,
        machine(1.0, 2.0),
        num_events=4,
        play=play,
        traits=Traits(may_miss=True),
    )
    assert spelled(entries) == "ABRBR\naAW\naAGMDWRR\neA\naAW"
    (found,) = of(entries, tape.Merge)
    assert [*found.stats[UPDATES]] == [1, 0]
    assert of(entries, tape.MergeDone)[0].missing == (1,)


class Missing(ByHand):
    """A clock by which worker 1 could not be reached in any merge."""

    def plan(self, merge):
        return super().plan(merge)._replace(missing=(1,))


def test_members_that_were_out_of_reach_by_the_clock_begin_again():
    clock = Missing(infos(1.0, 1.0), (0, 1))
    entries = entries_of(writer_of(ROUNDS, clock))
    assert spelled(entries) == "ABRBR\naAW\naAFBMDWRR"
    (found,) = of(entries, tape.Merge)
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


def test_a_clock_that_measures_merges_is_told_how_long_they_took():
    clock = Measuring(infos(1.0), (0,))
    times = MergeTimes(Stamps(100.0, 101.0, 102.0, 103.0), compiling=0.5)
    writer = writer_of(ROUNDS, clock)
    entries = entries_of(
        writer, play=lambda e: times if isinstance(e, tape.Merge) else None
    )
    (merge,) = of(entries, tape.Merge)
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
    traits = Traits(num_bytes=100.0, counts_bytes=counts_bytes)
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
    ("result", "resets", "counts"),
    [
        (Result(padded=3), True, True),
        (Result(padded=3, finite=False), True, False),
        (Result(padded=3, finite=False), False, True),  # nobody resets the replica
        (Result(padded=3, finite=False, known=False), True, True),  # it is seen later
    ],
)
def test_nothing_counts_of_a_round_that_is_known_not_to_be_finite(
    result, resets, counts
):
    writer = by_hand(scripted(give(0), merge(0)), (0,), workers=1, resets=resets)
    entries = entries_of(
        writer, play=lambda e: result if isinstance(e, Arrival) else None
    )
    (record,) = writer.ledger.records
    assert (record.updates, record.examples, record.nans) == (
        (1, 4, 0) if counts else (0, 0, 1)
    )
    assert record.padded == (3 if counts else 0)
    (found,) = of(entries, tape.Merge)
    assert [*found.stats[UPDATES]] == [int(counts)]


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
        if isinstance(entry, tape.Round):
            begun[entry.worker] = entry
        if isinstance(entry, Arrival):
            (rows,) = begun[entry.worker].rows
            return Result(losses=((rows, rows / 4),))
        return None

    entries = entries_of(writer_of(policy, clock, examples=examples), play=play)
    assert [[*r.rows[0]] for r in of(entries, tape.Round)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert {tuple(r.nonzeros) for r in of(entries, tape.Round)} == {(7,)}
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
    rates = [r.learning_rate for r in of(entries, tape.Round)]
    assert rates == [1.0, 1.0, 4.5, 9.0]
    assert {type(rate) for rate in rates} == {np.float32}


def test_a_member_without_a_round_gets_the_present_rate():
    policy = scripted(merge(0, 1))
    (found,) = of(written(policy, machine(1.0, 1.0), learning_rate=0.25), tape.Merge)
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
    assert [[*m.stats[STALENESS]] for m in of(entries, tape.Merge)] == [
        [0],
        [0],
        [2, 0],
    ]
