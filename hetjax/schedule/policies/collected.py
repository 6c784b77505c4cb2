"""Gradients that are collected at one model: Rennala and Malenia SGD (host world)."""

from typing import NamedTuple

from hetjax.arguments import Count, Positive, checked
from hetjax.machine.types import Arrival, Join, Leave, MergeAction, MergeOp
from hetjax.schedule.policies.given_versions import GivenVersions, Unfinished, fetch
from hetjax.schedule.types import Actions, Policy, with_entry


class CollectedState(NamedTuple):
    """What has been collected at the present model."""

    versions: GivenVersions
    counts: tuple[int, ...]  # gradients that entered, by worker


@checked
def collected(
    *,
    batch_size: Positive,
    gradients: Count,
    per_worker: bool = False,
    stop: Unfinished = "cancel",
) -> Policy:
    """All workers compute gradients at one model until enough are in; then it changes.

    A gradient enters the node's sums, and its worker computes the next one at the same
    model. With b_i the number of worker i's gradients and S the number of `gradients`,
    the sums are applied as soon as

        sum_i b_i >= S                                      per_worker=False: Rennala
        b_i >= 1 for all i, and (mean_i 1/b_i)^-1 >= S/k    per_worker=True: Malenia

    over the k workers that are active or have a gradient in the sums. Unfinished rounds
    are then cancelled (stop="cancel"), or dropped when they arrive ("ignore"); their
    workers take the new model. Source: Optimal time complexities of parallel stochastic
    optimization methods (arXiv:2305.12387); docs/algorithms L.7.
    """

    def init(infos, num_examples):
        versions = GivenVersions.of("collected", infos)
        state = CollectedState(versions, (0,) * len(infos))
        return begin(state, (), tuple(sorted(versions.roster.active)))

    def react(state, event):
        state = state._replace(versions=state.versions.after(event))
        match event:
            case Arrival(worker=k) if state.versions.delay(k):
                stays = k in state.versions.roster.active
                return begin(state, (fetch((k,)),) if stays else (), (k,))
            case Arrival(worker=k):
                return collect(state, k)
            case Join(worker=k) if k not in state.versions.roster.working:
                return begin(state, (), (k,))
            case Leave() if is_complete(state):  # it was the last one without any
                merge = MergeAction((), op=MergeOp.APPLY, transfers=0)
                return apply(state, merge, ())
        return state, Actions()

    def collect(state, k):
        counts = with_entry(state.counts, k, state.counts[k] + 1)
        state = state._replace(counts=counts)
        if is_complete(state):
            op = MergeOp.ACCUMULATE | MergeOp.APPLY | MergeOp.FETCH
            return apply(state, MergeAction((k,), op=op), (k,))
        merge = MergeAction((k,), op=MergeOp.ACCUMULATE, transfers=1)
        return begin(state, (merge,), (k,))

    def is_complete(state):
        counts, active = state.counts, state.versions.roster.active
        if not per_worker:
            return sum(counts) >= gradients
        n = [b for k, b in enumerate(counts) if b or k in active]
        # k / sum(1/b) >= S/k; rounding must not delay the last gradient
        return (
            any(n)
            and all(n)
            and len(n) ** 2 >= gradients * (sum(1 / b for b in n) * (1 - 1e-12))
        )

    def apply(state, merge, has_fetched):
        """Apply the sums; what is unfinished is cancelled, or will be dropped."""
        versions = state.versions
        versions = versions._replace(updates=versions.updates + 1)
        state = CollectedState(versions, (0,) * len(state.counts))
        rest = tuple(sorted(versions.roster.working)) if stop == "cancel" else ()
        return begin(state, (merge,), has_fetched, rest)

    def begin(state, merges, workers, cancelled=()):
        versions, actions = state.versions.begin_anew(
            merges, workers, cancelled, batch_size
        )
        return state._replace(versions=versions), actions

    return Policy(init, react)
