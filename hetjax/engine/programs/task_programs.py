"""The compiled programs of a task, shared by all strategies and seeds run on it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from hetjax import tree
from hetjax.data.batching import Batch
from hetjax.engine.programs.compilations import FirstCalls
from hetjax.engine.programs.local_round import RowBatches, local_round
from hetjax.engine.programs.merge_functions import check_in, fetch_fn, merge_fn
from hetjax.engine.traffic import part_of
from hetjax.local import LocalUpdate, empty_buffers, step_buffers, with_buffers
from hetjax.machine.types import MergeOp
from hetjax.merge.counters import counting, places_of
from hetjax.merge.types import Merge
from hetjax.replica import Replica, Requires
from hetjax.strategies.types import Strategy
from hetjax.tasks.types import Mean, Task, make_grad_fn
from hetjax.tree import MergeState, ModelState, Params


class Programs:
    """Jitted functions, each made once; XLA keeps one program per shape."""

    def __init__(self, task: Task):
        """Make no program yet: each is compiled at its first call."""
        self.task = task
        self._made: dict[Any, Any] = {}
        self._keys: dict[Any, Any] = {}  # of parts of strategies
        self.first_calls = FirstCalls()
        self.init = jax.jit(task.init)
        self.copies = jax.jit(tree.copies)
        self.evaluate = jax.jit(self.evaluate_fn)
        self.evaluate_all = jax.jit(self.evaluate_all_fn)
        self.finite = jax.jit(tree.all_finite)
        self.check_in = jax.jit(check_in, donate_argnums=0)

    @property
    def model_like(self) -> tuple[Params, ModelState]:
        """The shapes and dtypes of a model."""
        return jax.eval_shape(self.task.init, jax.random.key(0))

    def replica_like(self, local_update: LocalUpdate, requires: Requires) -> Replica:
        """Return the shapes and dtypes of a replica."""
        return jax.eval_shape(self.replica(local_update, requires), *self.model_like)

    @cached_property
    def has_statistics(self) -> bool:
        """Whether the model has state that padded examples would change."""
        return any(tree.is_float(leaf) for leaf in jax.tree.leaves(self.model_like[1]))

    @cached_property
    def _counters(self) -> tuple[int, ...]:
        return places_of(self.model_like[1])

    @property
    def exact(self) -> bool:
        """Whether padded examples would change the model state or other losses."""
        return self.has_statistics or self.task.batch_coupled

    def merges_of(self, strategy: Strategy) -> tuple[Merge, ...]:
        """Return the strategy's merges; they count if the model state has counters."""
        places = self._counters
        if not places:
            return strategy.merges
        return tuple(
            self.once(("counting", merge), lambda merge=merge: counting(merge, places))
            for merge in strategy.merges
        )

    def part_of(self, merge: Merge, name: str) -> Merge:
        """Return the merge of a named part of the model; "" is the whole model."""
        if not name:
            return merge
        return self.once(("part of", merge, name), lambda: part_of(merge, name))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the first result of `make()` for this key, the same for all threads.

        With two equal functions, a thread could compile one and call the other.
        """
        if key not in self._made:
            self._made.setdefault(key, make())
        return self._made[key]

    def same(self, key: Any, part: Any) -> Any:
        """Return the first part with this key, for which programs were made.

        If this very part had another key before, since its globals have changed, all
        programs are made anew.
        """
        first = self.once(("part", key), lambda: part)
        if self._keys.setdefault(first, key) != key:
            self._made, self._keys = {("part", key): first}, {first: key}
        return first

    @property
    def number(self) -> int:
        """The number of functions, and of their first calls per shapes and device."""
        return len(self._made) + self.first_calls.number

    def step(
        self, local_update: LocalUpdate, requires: Requires, *, donate: bool = True
    ) -> Callable:
        """(replica, batch, learning rate, key_data [3]) -> (replica, losses [B], mean).

        With `donate` the replica is donated. The step's random key is made from
        `key_data`, uint32: (seed, worker, step). Merges with the same buffers share it.
        """
        buffers = step_buffers(local_update, requires)
        return self.once(
            ("step", local_update, buffers, donate),
            lambda: jax.jit(
                self.step_fn(local_update, buffers),
                donate_argnums=(0,) if donate else (),
            ),
        )

    def local_round(
        self,
        local_update: LocalUpdate,
        requires: Requires,
        batches: RowBatches | None,
        *,
        how: str,
        checks: bool,
        donate: bool = True,
    ) -> Callable:
        """(replica, data, table) -> (replica, losses, mean, finite).

        All steps of a round as one program, or, with how="dispatch", one step. See
        `hetjax.engine.programs.local_round` for `data` and `table` [K, ...]. `losses`
        are [K, B], or [B]; `mean` is that of the last step. With `checks`, `finite`
        says whether all numbers of the replica are finite after the last step of the
        round; else it is (). `how` may
        also be "fused" or "unrolled", or "vmapped": then there are several replicas,
        [n, K, ...]. Merges with the same buffers share it.
        """
        buffers = step_buffers(local_update, requires)

        def make() -> Callable:
            step = self.step_fn(local_update, buffers)
            program = local_round(step, batches, how, checks)
            return jax.jit(program, donate_argnums=(0,) if donate else ())

        key = "local round", local_update, buffers, batches, how, checks, donate
        return self.once(key, make)

    def replica(self, local_update: LocalUpdate, requires: Requires) -> Callable:
        """(params, model state) -> a new replica, in its own device buffers.

        `requires` are the buffers that the merge and the local update require.
        """

        def begin(params: Params, model_state: ModelState) -> Replica:
            params, model_state = tree.copies((params, model_state))
            carry = empty_buffers(params, requires)
            return Replica(params, model_state, local_update.init(params), carry)

        return self.once(("replica", local_update, requires), lambda: jax.jit(begin))

    def step_fn(self, local_update: LocalUpdate, requires: Requires) -> Callable:
        """As `step`, not jitted: for use inside a larger program."""
        keyed_step = self.keyed_step_fn(local_update, requires)

        def step(replica: Replica, batch: Batch, rate: jax.Array, key_data: jax.Array):
            seed, worker, number = key_data
            key = step_key(jax.random.key(seed), worker, number)
            return keyed_step(replica, batch, rate, key)

        return step

    def keyed_step_fn(self, local_update: LocalUpdate, requires: Requires) -> Callable:
        """As `step_fn`, with the step's random key itself in place of `key_data`."""
        stepping = with_buffers(local_update, requires)

        def step(replica: Replica, batch: Batch, rate: jax.Array, key: jax.Array):
            grad_fn = make_grad_fn(self.task, key)
            replica, losses = stepping.step(replica, batch, rate, grad_fn)
            return replica, losses, jnp.sum(losses * batch.weight) / batch.count

        return step

    def merge(self, merge: Merge) -> Callable:
        """(state, replicas, packed worker statistics, op) -> (state, replicas, done).

        The state is donated, and so are the replicas, unless the merge updates busy
        workers, whose steps still read them. `done` is computed when all results are,
        and unlike them it is never donated.
        """

        def make() -> Callable:
            apply = merge_fn(merge)

            def merge_replicas(  # the name that a profiler shows
                state: MergeState, replicas: Any, packed: Any, op: MergeOp
            ) -> tuple:
                return *apply(state, replicas, packed, op), _done()

            donated = (0,) if merge.updates_busy_workers else (0, 1)
            return jax.jit(merge_replicas, static_argnums=3, donate_argnums=donated)

        return self.once(("merge", merge), make)

    def state(self, merge: Merge) -> Callable:
        """(params, model state) -> the merge's initial state, in its own buffers."""

        def begin(*model: Any) -> Any:
            return merge.init(*tree.copies(model))

        return self.once(("state", merge), lambda: jax.jit(begin))

    def model(self, merge: Merge) -> Callable:
        """(state, params, model state) -> the merge's model, in the latter's dtypes."""

        def model(state: MergeState, *like: Any):
            return tree.cast_like(merge.model(state), like)

        return self.once(("model", merge), lambda: jax.jit(model))

    def fetch(self, merge: Merge) -> Callable:
        """(state, replicas) -> (replicas with the merge's model, done).

        The replicas are donated; `done` is as in `merge`.
        """

        def make() -> Callable:
            apply = fetch_fn(merge)

            def fetch_model(state: MergeState, replicas: tuple[Replica, ...]) -> tuple:
                return apply(state, replicas), _done()

            return jax.jit(fetch_model, donate_argnums=1)

        return self.once(("fetch", merge), make)

    def as_member(self, merge: Merge) -> Callable:
        """(state) -> the node as a replica for its parent node, in its own buffers."""
        of = merge.as_member
        if of is None or merge.from_parent is None:
            raise ValueError(
                "a node of a tree merges into its parent node, but its merge has no "
                "`as_member` and `from_parent`: use another merge (average, "
                "normalized, sma, hierarchical)"
            )
        return self.once(
            ("member", merge), lambda: jax.jit(lambda state: tree.copies(of(state)))
        )

    def from_parent(self, merge: Merge) -> Callable:
        """(state, replica) -> the node's state after its parent's merge."""
        adopt = merge.from_parent
        assert adopt is not None  # checked in `as_member`, called before
        return self.once(("adopt", merge), lambda: jax.jit(adopt))

    def evaluate_all_fn(
        self, params: Params, model_state: ModelState, batches: list[Batch]
    ) -> list[dict[str, tuple[jax.Array, jax.Array]]]:
        """`evaluate_fn` on each of a few batches."""
        return [self.evaluate_fn(params, model_state, batch) for batch in batches]

    def evaluate_fn(
        self, params: Params, model_state: ModelState, batch: Batch
    ) -> dict[str, tuple[jax.Array, jax.Array]]:
        """{metric: (sum, count)} over a batch's true examples.

        The count of a mean over examples is their number, that of the "loss" of those
        with a weight.
        """
        values = self.task.metrics(params, model_state, batch)
        true = jnp.arange(batch.weight.shape[0]) < batch.count

        def sums(name: str, value: Any) -> tuple[jax.Array, jax.Array]:
            counted = batch.weight > 0 if name == "loss" else true
            if not isinstance(value, Mean):
                value = Mean(value, jnp.ones(batch.weight.shape))
            # in float32, whatever dtype the task computes in
            parts = (jnp.asarray(part, jnp.float32) for part in value)
            total, count = (jnp.where(counted, part, 0.0).sum() for part in parts)
            return total, count

        return {name: sums(name, value) for name, value in values.items()}


def _done() -> jax.Array:
    return jnp.zeros((), bool)


def step_key(key: jax.Array, worker: Any, number: Any) -> jax.Array:
    """Return the random key of step `number` of a worker, from the key of the run."""
    return jax.random.fold_in(jax.random.fold_in(key, worker), number)
