"""Merges of one worker at a time: elastic, Downpour, MagmaDNN, gossip.

(The parameter server and Hogwild! are `gradient_aggregation` of a single member.)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hetjax import tree
from hetjax.merge.types import (
    Facts,
    Merge,
    centered_model,
    emptied,
    mean_rate,
    mean_statistics,
    normalized_weights,
    restart,
)
from hetjax.replica import Replica


class ServerState(NamedTuple):
    """The centre, in float32, and what its own steps remember."""

    center: Any
    model_state: Any
    memory: Any = ()


def _init(params: Any, model_state: Any) -> ServerState:
    return ServerState(tree.float32(params), tree.float32(model_state))


def elastic(*, alpha: float | None = None, beta: float = 0.9) -> Merge:
    """The elastic move of asynchronous EASGD, of which the centre feels its part now.

        d = alpha (x - x~);   x~ <- x~ + d;   x <- x - eta g(x) - d

    with g at x before the move: -d goes to the slot "pending", which is added after
    the next step. `alpha` defaults to beta / p, p the workers of the run. Model state
    moves alike. Promises: x~ + sum_i (x_i + pending_i) is conserved; consensus is an
    exact fixed point. Source: EASGD (Zhang et al. 2015), Algorithm 1; ALGORITHMS G.2.
    """

    def apply(
        state: ServerState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[ServerState, tuple[Replica, ...]]:
        del op
        pull = beta / facts.num_workers if alpha is None else jnp.float32(alpha)
        pulls = jnp.where(facts.present, pull, 0.0)
        z = state.center
        moved = tuple(
            _with_pending(r, z, a) for r, a in zip(replicas, pulls, strict=True)
        )
        center = tree.moved(z, [r.params for r in replicas], pulls)
        return ServerState(center, mean_statistics(state, replicas, pulls)), moved

    return Merge(_init, apply, centered_model, ("pending",))


def _with_pending(replica: Replica, z: Any, pull: jax.Array) -> Replica:
    def back(pending: jax.Array, x: jax.Array, z: jax.Array) -> jax.Array:
        d = pull * (x.astype(jnp.float32) - z)
        return jnp.where(pull > 0, pending - d.astype(pending.dtype), pending)

    pending = tree.map_floats(back, replica.carry["pending"], replica.params, z)
    return replica._replace(carry={**replica.carry, "pending": pending})


def downpour(
    server: optax.GradientTransformation | None = None, *, server_rate: float = 1.0
) -> Merge:
    """A server that steps on the gradients that workers accrued.

        push       p <- p + gamma update(sum of accrued g);   accrued <- 0
        request    mailbox <- p
        deliver    x <- mailbox
        fetch      x <- p

    An order's operation is a combination of them ("": push and fetch); they are done as
    deliver, push, fetch, request. `server` is an optax optimizer built with rate 1
    (default: `optax.sgd`), gamma = `server_rate` times the rate of the worker's last
    step. Model state: each push moves the server's by 1/p of the way to the worker's, p
    workers. Needs the slots "gradients" and "mailbox". Source: Downpour SGD (Dean et
    al. 2012); ALGORITHMS G.5.
    """
    tx = optax.sgd(1.0) if server is None else server

    def init(params: Any, model_state: Any) -> ServerState:
        center = tree.float32(params)
        return ServerState(center, tree.float32(model_state), tx.init(center))

    def apply(
        state: ServerState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[ServerState, tuple[Replica, ...]]:
        words = op.split("+") if op else ("push", "fetch")
        if "deliver" in words:
            replicas = tuple(
                r._replace(params=tree.copies(r.carry["mailbox"])) for r in replicas
            )
        if "push" in words:
            state = pushed(state, replicas, facts)
            replicas = tuple(emptied(r, "gradients") for r in replicas)
        if "fetch" in words:
            replicas = tuple(restart(r, *centered_model(state)) for r in replicas)
        if "request" in words:
            replicas = tuple(
                r._replace(
                    carry={**r.carry, "mailbox": tree.cast_like(state.center, r.params)}
                )
                for r in replicas
            )
        return state, replicas

    def pushed(
        state: ServerState, replicas: tuple[Replica, ...], facts: Facts
    ) -> ServerState:
        ones = jnp.where(facts.present, 1.0, 0.0)
        g = tree.weighted_sum([r.carry["gradients"] for r in replicas], ones)
        mean = normalized_weights(ones, facts.present)
        gamma = server_rate * mean_rate(facts, mean)
        updates, memory = tx.update(g, state.memory, state.center)
        center = jax.tree.map(lambda p, u: p + gamma * u, state.center, updates)
        statistics = mean_statistics(state, replicas, ones / facts.num_workers)
        new = ServerState(center, statistics, memory)
        anybody = jnp.any(facts.present)  # a push of nobody is no step of the server
        return jax.tree.map(lambda n, o: jnp.where(anybody, n, o), new, state)

    return Merge(init, apply, centered_model, ("gradients", "mailbox"))


class MasterMemory(NamedTuple):
    """MagmaDNN's shared gradient, and the master's momentum."""

    g: Any  # sum of the slaves' gradients
    z: Any


def ticking(*, momentum: float = 0.99) -> Merge:
    """A master that steps on the shared gradient all the time, n = `ticks` at once.

        z <- beta z + (1 - beta) g^;   w <- w - alpha z      g^ = g / (N - 1), N workers

    n such steps with g^ constant and q = beta (1 - beta^n) / (1 - beta) are

        w <- w - alpha (q z + (n - q) g^);   z <- beta^n z + (1 - beta^n) g^

    Then, by the words of the operation: "fetch": w_local <- w. "subtract": the slave's
    last gradient leaves g. "push": its new one comes into g, in the place of the last
    one if that is still there ("swap"). Before all of them, "clear": g <- 0; "forget":
    the slave's last gradient is none, and leaves nothing. Model state: each push moves
    the master's by 1 / (N - 1) of the way to the slave's. Needs the slots "gradients"
    (of the local rule `gradient`) and "pushed". Source: MagmaDNN, Algorithms 2 and 3;
    ALGORITHMS F.
    """
    beta = momentum

    def init(params: Any, model_state: Any) -> ServerState:
        center = tree.float32(params)
        zeros = tree.map_floats(jnp.zeros_like, center)
        memory = MasterMemory(zeros, tree.copies(zeros))
        return ServerState(center, tree.float32(model_state), memory)

    def apply(
        state: ServerState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[ServerState, tuple[Replica, ...]]:
        state = stepped(state, facts)
        words = op.split("+")
        if "clear" in words:
            g = jax.tree.map(jnp.zeros_like, state.memory.g)
            state = state._replace(memory=state.memory._replace(g=g))
        if "forget" in words:
            replicas = tuple(emptied(r, "pushed") for r in replicas)
        if "subtract" in words:
            state = _added(state, replicas, "pushed", -1.0)
            replicas = tuple(emptied(r, "pushed") for r in replicas)
        if "push" in words:
            state = _added(state, replicas, "pushed", -1.0)
            state = _added(state, replicas, "gradients", 1.0)
            replicas = tuple(
                r._replace(
                    carry={**r.carry, "pushed": tree.copies(r.carry["gradients"])}
                )
                for r in replicas
            )
            slaves = jnp.ones_like(facts.updates) / (facts.num_workers - 1)
            statistics = mean_statistics(state, replicas, slaves)
            state = state._replace(model_state=statistics)
        if "fetch" in words:
            replicas = tuple(restart(r, state.center, r.model_state) for r in replicas)
        return state, replicas

    def stepped(state: ServerState, facts: Facts) -> ServerState:
        n, slaves = facts.ticks, facts.num_workers - 1
        alpha = jnp.mean(facts.rate)  # of one member
        decay = beta**n
        q = beta * (1 - decay) / (1 - beta)
        g, z = state.memory
        center = jax.tree.map(
            lambda w, z, g: w - alpha * (q * z + (n - q) * g / slaves),
            state.center,
            z,
            g,
        )
        z = jax.tree.map(lambda z, g: decay * z + (1 - decay) * g / slaves, z, g)
        return state._replace(center=center, memory=MasterMemory(g, z))

    return Merge(init, apply, centered_model, ("gradients", "pushed"))


def _added(
    state: ServerState, replicas: tuple[Replica, ...], slot: str, sign: float
) -> ServerState:
    g = state.memory.g
    for r in replicas:
        g = jax.tree.map(lambda g, x: g + sign * x, g, r.carry[slot])
    return state._replace(memory=state.memory._replace(g=g))


def gossip() -> Merge:
    """Averages a worker with its partner, then takes its step: AD-PSGD.

        x_i, x_j <- (x_i + x_j) / 2;   x_i <- x_i - gamma g_i

    The first member is the one that arrived, the others are passive; g_i is the
    gradient at the copy that i began with. The node keeps the mean of all models, which
    only gradients move: x <- x - gamma g_i / p, p workers of the run. Model state is
    averaged in pairs, too, and the node's moves by 1/p of the way to i's. Needs the
    local rule `gradient`. Promises: the sum of all models moves by -gamma g_i.
    Source: AD-PSGD (Lian et al. 2018); ALGORITHMS G.6.
    """

    def apply(
        state: ServerState, replicas: tuple[Replica, ...], facts: Facts, op: str
    ) -> tuple[ServerState, tuple[Replica, ...]]:
        del op
        first = replicas[0]
        gamma = jnp.where(facts.present[0], facts.rate[0], 0.0)
        g = tree.weighted_sum(
            [first.carry["gradients"]], jnp.where(facts.present[:1], 1.0, 0.0)
        )
        pair = (
            _mean([r.params for r in replicas]),
            _mean([r.model_state for r in replicas]),
        )
        others = tuple(restart(r, *pair) for r in replicas[1:])
        stepped = tree.map_floats(lambda x, g: x - gamma * g, pair[0], g)
        step = gamma / facts.num_workers
        center = tree.map_floats(lambda x, g: x - step * g, state.center, g)
        share = jnp.where(facts.present[:1], 1.0 / facts.num_workers, 0.0)
        statistics = mean_statistics(state, (first,), share)
        new = ServerState(center, statistics)
        return new, (restart(first, stepped, pair[1]), *others)

    return Merge(
        _init,
        apply,
        centered_model,
        ("gradients",),
        restarts=True,
        moves_working=True,
    )


def _mean(trees: list[Any]) -> Any:
    """The mean in float32, exactly the members' where they are equal."""
    base = tree.float32(trees[0])
    weights = jnp.full(len(trees), 1 / len(trees))
    return tree.moved(base, trees, weights)
