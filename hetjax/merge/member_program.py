"""A worker's part of a merge: what it computes of its own replica's leaves.

The driver has the merge, actors know no strategies: they are sent the operations.
"""

import hashlib
import pickle
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import primitives

from hetjax.merge.value_graph import ValueGraph


class MemberProgram(NamedTuple):
    """The operations that make new values of some leaves."""

    key: str  # equal keys mean equal programs
    reads: tuple[int, ...]  # indices of the replica's leaves
    serialized: bytes

    @property
    def arguments(self) -> list[jax.ShapeDtypeStruct]:
        """The shapes and dtypes of the leaves and the sent arrays."""
        shapes, *_ = pickle.loads(self.serialized)
        return [jax.ShapeDtypeStruct(*shape) for shape in shapes]

    def jitted(self) -> Callable[..., list[jax.Array]]:
        """Return (leaf, ..., sent array, ...) -> the new values."""
        _, literals, steps, results = pickle.loads(self.serialized)

        def merge_into_replica(*arrays: jax.Array) -> list[jax.Array]:
            values = [*arrays, *(np.frombuffer(*x)[0] for x in literals)]
            for name, params, operands in steps:
                primitive = getattr(primitives, f"{name}_p")
                given = [values[i] for i in operands]
                values.append(primitive.bind(*given, **dict(params)))
            return [values[i] for i in results]

        return jax.jit(merge_into_replica)


def member_programs(
    graph: ValueGraph,
    leaves: Sequence[Sequence[Hashable]],
    wanted: Sequence[Sequence[Hashable]],
    needs: Sequence[Sequence[Hashable]],
) -> list[MemberProgram | None]:
    """The program of each member that computes wanted values, from values it `needs`.

    `leaves` are those of all members' replicas. Between them and the wanted values are
    cheap operations alone (`value_graph.CHEAP`). Members that do the same have the same
    program.
    """
    made: dict[Any, MemberProgram] = {}
    found: list[MemberProgram | None] = []
    for own, values, given in zip(leaves, wanted, needs, strict=True):
        if not values:
            found.append(None)
            continue
        read = graph.read_by(values, given)
        reads = tuple(i for i, v in enumerate(own) if v in read)
        described = reads, _described(graph, values, [*(own[i] for i in reads), *given])
        if described not in made:
            serialized = pickle.dumps(described[1])
            key = hashlib.sha256(repr(reads).encode() + serialized).hexdigest()
            made[described] = MemberProgram(key, reads, serialized)
        found.append(made[described])
    return found


def _described(
    graph: ValueGraph, values: Sequence[Hashable], known: Sequence[Hashable]
) -> tuple:
    """(shapes of the known values, literals, operations, indices of the results)."""
    operations = graph.operations(values, known)
    literals = {
        value: (number.tobytes(), number.dtype)
        for operation in operations
        for value in operation.operands
        if (number := graph.literal(value)) is not None
    }
    place = {value: i for i, value in enumerate([*known, *literals])}
    steps = []
    for operation in operations:
        operands = tuple(place[value] for value in operation.operands)
        params = tuple(sorted(operation.equation.params.items()))
        steps.append((operation.equation.primitive.name, params, operands))
        place[operation.result(0)] = len(place)
    shapes = [graph.like(value) for value in known]
    return (
        tuple((s.shape, np.dtype(s.dtype)) for s in shapes),
        tuple(literals.values()),
        tuple(steps),
        tuple(place[value] for value in values),
    )
