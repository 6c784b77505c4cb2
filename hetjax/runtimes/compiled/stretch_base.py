"""The base of a stretch's program: its inputs, and writes into stacked arrays."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from hetjax.replica import Replica
from hetjax.runtimes.compiled.program_parts import Parts
from hetjax.runtimes.compiled.stacks import run_if, set_tree_row
from hetjax.runtimes.compiled.stretch_types import ProgramShape, StretchTables


class StretchBase:
    """The inputs of a stretch's program, and its writes into stacked arrays."""

    measure: Callable[[Replica], Any] | None = None  # None: metrics are in the tables
    _true: Any = None  # a traced True, opaque to XLA; None: no write is separate

    def __init__(self, parts: Parts, shape: ProgramShape, source: Any):
        self._parts, self._shape, self._source = parts, shape, source
        self._like = jax.eval_shape(parts.programs.task.init, jax.random.key(0))
        begin = parts.programs.replica(parts.local, parts.requires)
        self._replica = jax.eval_shape(begin, *self._like)
        self._step = parts.programs.keyed_step_fn(parts.local, parts.requires)

    def take(self, arrays: Any, tables: StretchTables, key: Any) -> None:
        """Set the inputs: arrays of the source, tables, and the random key."""
        self._arrays, self._tables, self._key = arrays, tables, key

    def _set_tree_row(
        self, stacks: Any, index: Any, new: Any, old: Any = None, *, apart: bool = True
    ) -> Any:
        """Write a row; see `stacks.set_tree_row` and `_write`."""
        return self._write(
            partial(set_tree_row, index=index, new=new, old=old), stacks, apart
        )

    def _write(self, write: Callable[[Any], Any], stacks: Any, apart: bool) -> Any:
        """Return `write(stacks)`; if `apart`, after all reads of the stacks.

        Otherwise XLA reads rows where they are used, among the writes, and copies the
        whole stack first.
        """
        if self._true is None or not apart:
            return write(stacks)
        return run_if(self._true, write, stacks)

    def _changing(self, leaves: list[Any]) -> list[Any]:
        return [
            x for x, moves in zip(leaves, self._parts.changes, strict=True) if moves
        ]

    def _merged(self, before: list[Any], changed: list[Any]) -> list[Any]:
        """Return all leaves: the changed ones, and the others from `before`."""
        new = iter(changed)
        return [
            next(new) if moves else x
            for x, moves in zip(before, self._parts.changes, strict=True)
        ]
