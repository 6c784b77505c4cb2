"""The strategies on trees again, in NumPy float64: HierSGD and two-level SMA."""

from collections import Counter

import numpy as np

from hetjax.machine import ROOT, MergeOp


class Node:
    """A node; its children are nodes, or workers by their number."""

    def __init__(self, children, start):
        self.name, self.children = ROOT, children
        self.nodes = [c for c in children if isinstance(c, Node)]
        self.level = 1 + max((c.level for c in self.nodes), default=-1)
        self.x, self.gradients = start, 0.0
        self.arrived = self.rounds = 0

    @property
    def members(self):
        return tuple(c.name if isinstance(c, Node) else c for c in self.children)

    @property
    def workers(self):
        return [k for n in self.nodes for k in n.workers] or self.children

    @property
    def below(self):
        """All nodes below, the highest first."""
        found = [*self.nodes, *(n for c in self.nodes for n in c.below)]
        return sorted(found, key=lambda n: -n.level)


def tree(levels, world):
    """The root of a tree; `levels` as in HierSGD: the children per node below it."""
    if levels is None:  # a node for each place
        places = [worker.place[0] for worker in world.clock.workers]
        levels = [tuple(places.count(place) for place in dict.fromkeys(places))]
    found = list(world.workers)
    for children in levels:
        if isinstance(children, int):
            children = [children] * (len(found) // children)
        ends = np.cumsum(children)
        pieces = zip(ends - children, ends, strict=True)
        found = [Node(found[a:b], world.start) for a, b in pieces]
    root = Node(found, world.start)
    _name(root, "")
    return root


def _name(node, prefix):
    """A node's name begins with those of the nodes above it."""
    for g, child in enumerate(node.nodes):
        child.name = f"{prefix}group{g}"
        _name(child, f"{child.name}/")


def hier_sgd(
    world,
    *,
    batch_size,
    learning_rate,
    levels=None,
    local_steps=(4, 16),
    gammas=None,
    local_steps_unit="minibatches",
):
    """D.1. `gammas` are gamma_h over gamma_1; None: gamma_{h-1} over the children.

    A node's last merge before its parent's sends nothing down, because the next model
    comes from above. Returns the number of merges by level.
    """
    root = tree(levels, world)
    parents = {c: n for n in (root, *root.below) for c in n.children}
    # steps of a round, and rounds of a level between two merges of the next
    steps, *rounds = local_steps
    if local_steps_unit == "minibatches":
        rounds = [b // a for a, b in zip(local_steps, local_steps[1:], strict=False)]
    x, sums, batches, taken = {}, {}, {}, Counter()

    def begin(node):
        for k in node.workers:
            x[k], sums[k] = parents[k].x, 0.0
            batches[k] = (
                world.dispatch(k, steps, batch_size),
                world.eta(learning_rate),
            )

    def gamma(node, eta):
        if gammas is not None:
            return eta * gammas[node.level]
        return eta / len(node.workers)

    def merge(node, eta):
        parts = [n.gradients for n in node.nodes] or [sums[k] for k in node.children]
        total = sum(parts)
        node.x = node.x - gamma(node, eta) * total
        node.gradients = node.gradients + total
        node.arrived, node.rounds = 0, node.rounds + 1
        taken[node.level] += 1
        up = node is not root and node.rounds == rounds[node.level]
        transfers = (1 if up else 2) * (len(node.children) > 1)
        world.merge(
            node.members,
            node.x,
            node=node.name,
            transfers=transfers,
            below=node.workers,
        )
        if up:
            return arrive(parents[node], eta)
        for n in node.below:
            n.x, n.gradients, n.rounds = node.x, 0.0, 0
            transfers = int(len(n.children) > 1)
            world.merge(
                n.members,
                None,
                node=n.name,
                transfers=transfers,
                op=MergeOp.FETCH,
                below=n.workers,
            )
        return begin(node)

    def arrive(node, eta):
        node.arrived += 1
        if node.arrived == len(node.children):
            merge(node, eta)

    begin(root)
    while (k := world.wait()) is not None:
        steps_of_k, eta = batches[k]
        for rows in steps_of_k:
            g = world.gradient(x[k], rows)
            x[k] = x[k] - eta * g
            sums[k] = sums[k] + g
        arrive(parents[k], eta)
    return taken


def two_level_sma(
    world,
    *,
    batch_size,
    learning_rate,
    two_level,
    between=0.5,
    merge_momentum=0.9,
    alpha=None,
    local_steps=1,
    momentum=0.0,
    weight_decay=0.0,
    blocking=False,
):
    """C.4 (a); all right-hand sides use old values; a_g is `between` / G."""
    root = tree((two_level,), world)
    groups = root.nodes
    local = 1 / two_level if alpha is None else alpha
    above = between / len(groups)
    z = z_prev = world.start
    w = dict.fromkeys(world.workers, z)
    v = dict.fromkeys(world.workers, 0.0)
    while True:
        eta = world.eta(learning_rate)
        batches = {k: world.dispatch(k, local_steps, batch_size) for k in world.workers}
        waiting = dict(enumerate(len(g.workers) for g in groups))
        pulls = {}
        for _ in world.workers:
            k = world.wait()
            if k is None:
                return
            for rows in batches[k]:
                before = w[k]
                g = world.gradient(before, rows) + weight_decay * before
                v[k] = momentum * v[k] - eta * g
                w[k] = before + v[k]
            mine = k // two_level
            pulls[k] = local * (before - groups[mine].x)
            waiting[mine] -= 1
            if not waiting[mine]:
                group = groups[mine]
                world.merge(group.members, None, node=group.name, blocking=blocking)
        differences = [above * (g.x - z) for g in groups]
        for g, difference in zip(groups, differences, strict=True):
            for k in g.workers:
                w[k] = w[k] - pulls[k]
            g.x = g.x + sum(pulls[k] for k in g.workers) - difference
        z, z_prev = z + sum(differences) + merge_momentum * (z - z_prev), z
        world.merge(root.members, z, below=root.workers)
