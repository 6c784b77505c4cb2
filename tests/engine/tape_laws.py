"""Writers without a player, their entries, and the laws of tapes."""

import math
import re

from policy_driver import ByHand, infos
from recorded_runs import Counted, no_nonzeros

from hetjax.engine import tape
from hetjax.engine.protocols import EvaluatedModel, Traits
from hetjax.engine.records.ledger import Ledger
from hetjax.engine.tape_writer import TapeWriter
from hetjax.machine import (
    ROOT,
    Arrival,
    Join,
    Leave,
    LocalRound,
    MergeAction,
    Merged,
    MergeOp,
    SimulatedClock,
    Slow,
    Timer,
)
from hetjax.machine.merge_times import changes_root
from hetjax.machine.types import Event
from hetjax.schedule import Actions, rounds

STEP = LocalRound(1, 4)
ROUNDS = rounds(batch_size=4)
UPDATES, RATE, STALENESS, ACCURACY = 1, 4, 5, 8  # rows of a merge's statistics
LETTERS = {
    Actions: "A",
    tape.BeginReplica: "B",
    tape.MergeDone: "D",
    tape.DiscardReplica: "F",
    tape.GatherReplicas: "G",
    tape.EvaluateRoot: "L",
    tape.MergeReplicas: "M",
    tape.MeasureMembers: "N",
    tape.EvaluationDone: "P",
    tape.StartRound: "R",
    tape.EndRun: "S",
    tape.Synchronize: "T",
    tape.MergesDone: "W",
    tape.DiscardRound: "X",
    Arrival: "\na",
    Slow: "\ns",
    Merged: "\ne",
    Join: "\ne",
}
# The entries of a merge, of all that a policy decides, and of an event. What a merge
# reads is there before it: copies of the root's model (B), evaluations (N, L).
MERGE = r"((B*N)?L?B*T?(FB)*G?MD)"
STARTS = r"F*(B?R)*"
CANCELLED = r"(XF)*"
DECIDED = rf"A{CANCELLED}{MERGE}*{STARTS}"
ARRIVED = rf"A{CANCELLED}{MERGE}*W{STARTS}"
EVENTS = {
    "": DECIDED,  # the begin
    "a": ARRIVED,
    "e": DECIDED,
    "l": rf"(XF?S?({DECIDED})?)?S?",  # a worker is lost
    "t": rf"({DECIDED})?L?P({DECIDED})?S?",  # an evaluation is due
    "s": "",
}


def writer_of(policy, clock, *, num_bytes=0.0, examples=None, **settings):
    """A writer of this policy's decisions on a clock, with nothing to train."""
    topology = policy.topology(clock.workers)
    traits = settings.pop("traits", Traits(num_bytes))
    return TapeWriter(
        policy,
        clock,
        examples or Counted(no_nonzeros),
        Ledger(clock.workers, topology),
        topology,
        **{"num_examples": 1000, "traits": traits, **settings},
    )


def written(policy, machine, *, num_events=200, play=lambda entry: None, **settings):
    """The first entries and those of `num_events`; `play(entry)` answers each."""
    return entries_of(
        writer_of(policy, SimulatedClock(machine, seed=0), **settings),
        num_events=num_events,
        play=play,
    )


def entries_of(writer, *, num_events=200, play=lambda entry: None):
    """As `written`, of a writer."""
    entries, answer, events = [], None, 0
    whole = writer.write()
    while True:
        try:
            entry = whole.send(answer)
        except StopIteration:
            return entries
        events += letter(entry)[0] == "\n"
        if events > num_events:
            return entries
        entries.append(entry)
        answer = play(entry)


def letter(entry):
    """A letter; a line break comes before that of an event."""
    if isinstance(entry, Leave):
        return "\nl" if entry.lost else "\ne"
    if isinstance(entry, Timer):
        return "\nt" if entry.name == tape.EVALUATE else "\ne"
    return LETTERS[type(entry)]


def spelled(entries):
    """The entries as text: a line per event, a letter per entry."""
    return "".join(map(letter, entries))


def by_hand(policy, events, *, workers=2, **settings):
    """A writer on a clock on which these events happen."""
    return writer_of(policy, ByHand(infos(*(1.0,) * workers), events), **settings)


def of(entries, kind):
    return [entry for entry in entries if isinstance(entry, kind)]


def give(*workers):
    return Actions(dispatch=tuple((k, STEP) for k in workers))


def merge(*members, **fields):
    return Actions(merges=(MergeAction(members, **fields),))


class Counting:
    """A player whose model is the number of times that the root's has changed.

    It checks that each evaluation sees the changes before the first one that is not
    visible yet, and that a model is stored before a merge only if it will be seen.
    """

    def __init__(self, instants):
        self.version = 0
        self.points = []  # (time, version)
        self._instants, self._now, self._kept = instants, 0.0, False
        self._visible = []  # [s], of each change

    def __call__(self, entry):
        if isinstance(entry, Event):
            self._now, self._kept = entry.time, False
        if isinstance(entry, tape.EvaluateRoot):
            self._kept = True
            return EvaluatedModel(self.version, {})
        if isinstance(entry, tape.MergeDone):
            self._merge(entry)
        if isinstance(entry, tape.EvaluationDone):
            later = [k for k, t in enumerate(self._visible) if t > entry.time]
            assert entry.seen.model == min(later, default=self.version)
            self.points.append((entry.time, entry.seen.model))
        return None

    def _merge(self, done):
        finish = done.stamps.finish
        if self._kept:
            assert changes_root(done.action)
            since = max([self._now, *self._visible])
            assert any(since <= t < finish for t in self._instants)
        self._kept = False
        if changes_root(done.action):
            self.version += 1
            self._visible.append(finish)
        elif (done.action.node, done.action.op) == (ROOT, MergeOp.STEP):
            # visible at once, with all that was merged before it
            self._visible = [-math.inf] * self.version


def check(entries):
    """The laws of all tapes: the order of entries, and of replicas and rounds."""
    for line in spelled(entries).split("\n"):
        kind = line[:1] if line[:1].islower() else ""
        assert re.fullmatch(kind + EVENTS[kind], line), line
    has, rounds = set(), {}  # workers with a replica; their rounds in flight
    for before, entry in zip([None, *entries], entries, strict=False):
        match entry:
            case tape.BeginReplica(worker):
                assert worker not in has
                has.add(worker)
            case tape.DiscardReplica(worker):
                assert worker not in rounds
                has.remove(worker)
            case tape.StartRound():
                assert entry.worker in has
                assert entry.worker not in rounds, "it has a round already"
                rounds[entry.worker] = entry
            case Arrival():
                begun = rounds.pop(entry.worker)
                assert entry.local_round == begun.local_round
                assert entry.start == begun.start
            case tape.DiscardRound(worker, cancelled=True):
                del rounds[worker]
            case tape.DiscardRound(worker):
                assert isinstance(before, Leave)
                assert before.worker == worker
                rounds.pop(worker, None)
            case (
                tape.MergeReplicas(action)
                | tape.MeasureMembers(action)
                | tape.GatherReplicas(action)
            ):
                members = [m for m in action.members if isinstance(m, int)]
                assert has.issuperset((*members, *action.partners))
                assert not rounds.keys() & set(members), "a member has a round"
            case tape.MergeDone():
                assert before.action == entry.action
