"""The order of a writer's entries, and how a run ends."""

import numpy as np
import pytest
from policy_driver import ByHand, infos, machine, scripted
from tape_laws import (
    ROUNDS,
    STEP,
    UPDATES,
    Counting,
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
)
from hetjax.machine.merge_times import Stamps, Traffic
from hetjax.schedule import PUSH_FETCH, Actions

# The order of entries


def test_two_rounds_and_their_merge():
    """Each entry in full, but for the statistics of the merge."""
    entries = written(ROUNDS, machine(1.0, 2.0, latency=0.25), num_events=3)
    whole = MergeAction((0, 1))
    again = give(0, 1)._replace(merges=(whole,))

    def start(worker, first_step, time):
        return tape.StartRound(worker, STEP, (), [0], np.float32(0.0), first_step, time)

    (merge,) = of(entries, tape.MergeReplicas)
    assert entries == [
        give(0, 1),
        tape.BeginReplica(0),
        start(0, 0, 0.0),
        tape.BeginReplica(1),
        start(1, 0, 0.0),
        Arrival(0, STEP, 0.0, 1.0),
        Actions(),
        tape.MergesDone(),
        Arrival(1, STEP, 0.0, 2.0),
        again,
        merge,
        tape.MergeDone(whole, Traffic(0.0, 0.0), Stamps(2.0, 2.0, 2.5, 2.5), ()),
        tape.MergesDone(),
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
    assert [r.first_step for r in of(entries, tape.StartRound)] == [0, 1]


def test_a_stopped_worker_that_has_not_merged_keeps_its_replica():
    policy = scripted(give(0), Actions(stop=(0,)), Actions(start=(0,)), give(0))
    assert spelled(written(policy, machine(1.0))) == "ABR\naAW\neA\neAR\naAW"


def test_a_worker_that_leaves_while_it_computes_arrives():
    policy = scripted(give(0)._replace(stop=(0,)))
    assert spelled(written(policy, machine(1.0))) == "ABR\neA\naAW"


# Lost workers


def test_a_lost_worker_is_discarded_and_begins_again_when_it_is_back():
    policy = scripted(give(0, 1), Actions(), Actions(), give(1))
    events = (0, Leave(1, 1.5, lost=True), Join(1, 2.0), 1)
    entries = entries_of(by_hand(policy, events))
    assert spelled(entries) == "ABRBR\naAW\nlXFA\neABR\naAW"
    assert of(entries, tape.DiscardRound) == [tape.DiscardRound(1)]
    assert of(entries, tape.DiscardReplica) == [tape.DiscardReplica(1)]


def test_what_a_lost_worker_did_since_its_merge_is_not_merged():
    policy = scripted(give(0, 1), Actions(), Actions(), Actions(), merge(0, 1))
    events = (0, 1, Leave(1, 1.5, lost=True), Join(1, 2.0))
    entries = entries_of(by_hand(policy, events))
    (found,) = of(entries, tape.MergeReplicas)
    assert [*found.stats[UPDATES]] == [1, 0]


def test_the_reason_of_a_loss_that_is_known_already_only_adds_to_it():
    policy = scripted(give(0, 1))
    lost = Leave(1, 1.0, lost=True)
    entries = entries_of(by_hand(policy, (lost, lost._replace(why="no answer"))))
    assert spelled(entries) == "ABRBR\nlXFA\nl"


@pytest.mark.parametrize(("workers", "text"), [((0, 1), "lXFS"), ((0,), "lXS")])
def test_a_run_may_end_with_the_first_loss(workers, text):
    """Of a worker that has a replica, or has none yet; the policy does not see it."""
    stops = []
    writer = by_hand(
        scripted(give(*workers)),
        (Leave(1, 1.5, lost=True, why="no answer"),),
        stops_if_lost=True,
        stopped=lambda: stops,
    )
    entries = entries_of(
        writer, play=lambda e: stops.extend([e] * isinstance(e, tape.EndRun))
    )
    assert spelled(entries) == "A" + "BR" * len(workers) + f"\n{text}"
    assert stops == [tape.EndRun("worker w1 was lost: no answer")]


@pytest.mark.parametrize("joins", [False, True])
def test_a_run_ends_with_the_last_loss_unless_a_worker_may_join(joins):
    clock = ByHand(infos(1.0), (Leave(0, 1.5, lost=True, why="no answer"),))
    clock.has_pending_joins = joins
    entries = entries_of(writer_of(scripted(give(0)), clock))
    assert spelled(entries) == "ABR\nlXFA" + "S" * (not joins)
    stops = [] if joins else ["worker w0, the last one, was lost: no answer"]
    assert [stop.why for stop in of(entries, tape.EndRun)] == stops


def test_a_run_that_was_stopped_no_longer_asks_the_policy():
    stopped = []

    def stop(entry):
        stopped.extend([1] * isinstance(entry, tape.MergesDone))

    writer = by_hand(ROUNDS, (0, 1), stopped=lambda: stopped)
    assert spelled(entries_of(writer, play=stop)) == "ABRBR\naAW\na"


# Evaluations


def test_a_model_is_stored_for_evaluations_before_a_merge_is_visible():
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


def test_each_of_several_merges_stores_its_own_model():
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


def test_the_policy_sees_an_evaluation_unless_it_was_the_last():
    told = []

    def react(state, event):
        told.append(event)
        return state, Actions()

    policy = scripted(give(0))._replace(react=react)
    entries = written(
        policy,
        machine(9.0),
        num_events=2,
        play=lambda e: {"loss": e.time} if isinstance(e, tape.EvaluationDone) else None,
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
    with pytest.raises(ValueError, match="the timer name 'evaluate' is reserved"):
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
    assert entries[-1] == tape.EndRun(why)


@pytest.mark.parametrize(
    ("actions", "faults"),
    [
        (give(0)._replace(dispatch=((0, LocalRound(9, 4)),)), ()),
        (Actions(timers=(("later", 9.0),)), ()),
        (merge(0, 1), ()),
        (Actions(), (ScriptedFault(9.0, "join", "w1"),)),
    ],
)
def test_a_run_continues_while_something_is_awaited(actions, faults):
    """A round, a timer, a merge, or a worker that joins, at 8 s or later."""
    m = machine(1.0, 1.0, latency=4.0, faults=faults)
    entries = written(scripted(actions), m, instants=(5.0,))
    assert of(entries, tape.EvaluationDone)
    assert not of(entries, tape.EndRun)
