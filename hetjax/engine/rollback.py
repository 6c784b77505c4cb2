"""Rolling back a run whose tape is written ahead of what is known.

A player may find out only later that a round was not finite
(`hetjax.runtimes.compiled`). The run then goes back to the last point at which all
results were known, and repeats what followed with each result known in time. The state
of the host is copied at these points.
"""

import copy
import io
import pickle
from typing import Any

import jax

from hetjax.engine.capabilities import PlaysAhead, RoundNotFinite
from hetjax.engine.run_records import RunRecords
from hetjax.engine.tape_writer import TapeWriter


class Rollback:
    """The last point to which a run can roll back."""

    def __init__(
        self, player: PlaysAhead, writer: TapeWriter, clock: Any, records: RunRecords
    ):
        """Mark the beginning of a run."""
        self._player, self._writer = player, writer
        self._clock, self._records = clock, records
        self._times_known = -1
        self._due = True  # whether to mark when the event is over
        self._since = 0  # events handled since the mark
        self._again = 0  # events to repeat with each result known
        self._mark_if_known()

    def handled(self) -> None:
        """Count an event that was handled; mark this point if all results are known."""
        self._since += 1
        self._again = max(0, self._again - 1)
        if not self._again:
            self._player.knows_in_time = False
        self._mark_if_known()

    def _mark_if_known(self) -> None:
        self.is_here = self._due or self._player.times_known != self._times_known
        if self.is_here:
            self._times_known, self._since = self._player.times_known, 0
            self._due = False
            self._mark()

    def _mark(self) -> None:
        try:
            host = frozen((self._writer.save(), self._clock.save()))
        except TypeError as error:
            raise ValueError(
                f"the state of the sampler or the policy cannot be copied ({error}), "
                "as a compiled run requires: pass compiled=False"
            ) from error
        self._point = (
            self._player.mark(),
            host,
            list(self._writer.held),
            self._records.mark(),
        )

    def reach(self) -> None:
        """Make this point final: wait for the results of all rounds that arrived."""
        self._player.synchronize_if_needed()
        self._due = True

    def synchronize(self) -> None:
        """Wait for all results; RoundNotFinite if the run must roll back."""
        self._player.synchronize()

    def is_needed(self) -> bool:
        """Whether an exception follows from a round that was not finite."""
        try:
            self._player.synchronize()
        except RoundNotFinite:
            return True
        return False

    def undo(self) -> None:
        """Roll back; events since the mark, and the present one, are repeated."""
        self._again, self._since = self._since + 1, 0
        self._due = False
        player, host, held, records = self._point
        self._player.undo(player)
        writer, clock = host()
        self._writer.load(writer)
        self._clock.load(clock)
        self._writer.held.clear()
        self._writer.held.extend(held)
        self._records.undo(records)
        self._times_known = self._player.times_known


def frozen(values: Any) -> Any:
    """Return a function that returns copies of these values as they are now.

    Arrays of JAX and functions are not copied.
    """
    data, objects = io.BytesIO(), []
    try:
        _Pickler(data, objects).dump(values)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a local class
        copied = copy.deepcopy(values)
        return lambda: copy.deepcopy(copied)
    return lambda: _Unpickler(data.getvalue(), objects).load()


class _Pickler(pickle.Pickler):
    """Leaves out immutable objects, which it collects in a list."""

    def __init__(self, file: io.BytesIO, objects: list[Any]):
        super().__init__(file, protocol=5)
        self._objects = objects

    def reducer_override(self, value: Any) -> Any:
        """Handle an object that is not of a built-in type."""
        if isinstance(value, jax.Array):
            self._objects.append(value)
            return _LeftOut, (len(self._objects) - 1,)
        return NotImplemented


class _LeftOut:
    """Placeholder of an object that was left out."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, objects: list[Any]):
        super().__init__(io.BytesIO(data))
        self._objects = objects

    def find_class(self, module: str, name: str) -> Any:
        """Resolve `_LeftOut` to a function that returns the object."""
        if module == __name__ and name == _LeftOut.__name__:
            return self._objects.__getitem__
        return super().find_class(module, name)
