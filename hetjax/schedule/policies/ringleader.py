"""Phases in which every worker takes part once: Ringleader ASGD (host world)."""

from typing import NamedTuple

from hetjax.arguments import Positive, checked
from hetjax.machine.types import Arrival, Join, Leave, MergeAction, MergeOp
from hetjax.schedule.policies.given_versions import GivenVersions
from hetjax.schedule.types import Actions, Policy

_UPDATE = MergeOp.ACCUMULATE | MergeOp.APPLY | MergeOp.FETCH
_NOBODY: frozenset[int] = frozenset()


class RingleaderState(NamedTuple):
    """Who has gradients in the tables, and who had an update in this phase."""

    versions: GivenVersions
    first: frozenset[int]  # workers with gradients in the first table
    second: frozenset[int]  # in the table of the next phase
    to_update: frozenset[int]  # in this phase; empty while the first table fills


@checked
def ringleader(*, batch_size: Positive, refresh: bool = False) -> Policy:
    """A table of all workers' gradients is filled; then each worker has one update.

    While the first table fills, reports enter it, and the model stays. The report after
    which every worker has a gradient there begins the updates: the model moves along
    the table's mean at once, and then once more at the first report of each other
    worker, whose gradient enters first. A worker is given the model after its own
    update. Its further reports enter a second table, which becomes the first after the
    last update.

    Between its updates a worker computes at the model that it was given then; with
    `refresh` it takes the present model at every report, as in the authors' code. A
    worker that leaves before its update has it without another gradient, so that there
    are as many updates as workers in the first table; a worker that joins meanwhile
    enters the second table. Source: Ringleader ASGD (arXiv:2509.22860);
    docs/algorithms L.8.
    """
    enter = MergeOp.ACCUMULATE | MergeOp.FETCH if refresh else MergeOp.ACCUMULATE

    def init(infos, num_examples):
        versions = GivenVersions.of("ringleader", infos)
        state = RingleaderState(versions, _NOBODY, _NOBODY, _NOBODY)
        return begin(state, (), tuple(sorted(versions.roster.active)))

    def react(state, event):
        state = state._replace(versions=state.versions.after(event))
        match event:
            case Arrival(worker=k) if state.to_update:
                return report(state, k)
            case Arrival(worker=k):
                return fill(state, k)
            case Join(worker=k) if k not in state.versions.roster.working:
                return begin(state, (), (k,))
            case Leave(worker=k) if k in state.to_update:
                return update_without(state, Actions(), (k,))
        return state, Actions()

    def fill(state, k):
        """A gradient enters the first table; the updates begin if it is the last."""
        state = state._replace(first=state.first | {k})
        active = state.versions.roster.active
        if not active <= state.first:
            return begin(state, (entry(k),), (k,))
        state = state._replace(to_update=state.first)
        gone = tuple(sorted(state.first - active - {k}))
        return update_without(*update(state, k), gone)

    def report(state, k):
        """A worker's update, or a gradient for the next phase."""
        if k in state.to_update:
            return update(state, k)
        state = state._replace(second=state.second | {k})
        return begin(state, (entry(k),), (k,))

    def entry(k):
        return MergeAction((k,), op=enter, transfers=2 if refresh else 1)

    def update(state, k):
        merge = MergeAction((k,), op=last(state, k, _UPDATE))
        state, actions = begin(state, (merge,), (k,))
        return updated(state, k), actions

    def update_without(state, actions, workers):
        """The updates of workers that are gone, with the gradients that they left."""
        merges = actions.merges
        for k in workers:
            op = last(state, k, MergeOp.APPLY)
            merges = (*merges, MergeAction((), op=op, transfers=0))
            state = updated(state, k)
        return state, actions._replace(merges=merges)

    def last(state, k, op):
        """The operation of worker k's update: the phase's last one swaps the tables."""
        return op | MergeOp.CLEAR if state.to_update == {k} else op

    def updated(state, k):
        """Note a worker's update; after the last one the tables are swapped."""
        versions = state.versions
        versions = versions._replace(updates=versions.updates + 1)
        rest = state.to_update - {k}
        first, second = state.first, state.second
        if not rest:
            first, second = second, _NOBODY
        return RingleaderState(versions, first, second, rest)

    def begin(state, merges, workers):
        versions, actions = state.versions.begin_anew(merges, workers, (), batch_size)
        return state._replace(versions=versions), actions

    return Policy(init, react)
