"""The way back of a run whose tape is written ahead of what is known.

A player may learn late that a round was not finite (`hetjax.runtimes.compiled`). The
run then goes back to the last point at which all was known, and does the same again,
but with each result known in time. What the host holds is copied at these points.
"""

import copy
import io
import pickle
from typing import Any

import jax

from hetjax.engine.protocols import PlaysAhead, RoundNotFinite
from hetjax.engine.run_records import RunRecords
from hetjax.engine.writer import TapeWriter


class Rollback:
    """The last point to which a run can go back."""

    def __init__(
        self, player: PlaysAhead, writer: TapeWriter, clock: Any, records: RunRecords
    ):
        """The run has begun; nothing of it is known yet."""
        self._player, self._writer = player, writer
        self._clock, self._records = clock, records
        self._sights = -1
        self._due = True  # is a mark to be made when the event is over?
        self._since = 0  # events handled since that point
        self._again = 0  # events to be handled once more, with each result known
        self._look()

    def handled(self) -> None:
        """An event was handled: has it been seen what came of all before?"""
        self._since += 1
        self._again = max(0, self._again - 1)
        if not self._again:
            self._player.knows_in_time = False
        self._look()

    def _look(self) -> None:
        self.is_here = self._due or self._player.times_known != self._sights
        if self.is_here:
            self._sights, self._since = self._player.times_known, 0
            self._due = False
            self._mark()

    def _mark(self) -> None:
        try:
            host = frozen((self._writer.save(), self._clock.save()))
        except TypeError as error:
            raise ValueError(
                f"the state of the sampler or the policy cannot be copied ({error}), "
                "as a compiled run has to: give compiled=False"
            ) from error
        self._point = (
            self._player.mark(),
            host,
            list(self._writer.held),
            self._records.mark(),
        )

    def reach(self) -> None:
        """Know what came of all rounds that have arrived: the run stays behind here."""
        self._player.synchronize_if_needed()
        self._due = True

    def synchronize(self) -> None:
        """See what came of all; `NotFinite` if the run has to go back."""
        self._player.synchronize()

    def has_to_go_back(self) -> bool:
        """After an exception: has a round before it not been finite?"""
        try:
            self._player.synchronize()
        except RoundNotFinite:
            return True
        return False

    def undo(self) -> None:
        """Go back; all up to here, and the event that is being handled, comes again."""
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
        self._sights = self._player.times_known


def frozen(values: Any) -> Any:
    """A function that returns equal values, whatever becomes of these.

    Arrays of JAX and functions are not copied.
    """
    data, kept = io.BytesIO(), []
    try:
        _Pickler(data, kept).dump(values)
    except (pickle.PicklingError, AttributeError, TypeError):  # such as a local class
        copied = copy.deepcopy(values)
        return lambda: copy.deepcopy(copied)
    return lambda: _Unpickler(data.getvalue(), kept).load()


class _Pickler(pickle.Pickler):
    """Leaves out what does not change."""

    def __init__(self, file: io.BytesIO, kept: list[Any]):
        super().__init__(file, protocol=5)
        self._kept = kept

    def reducer_override(self, value: Any) -> Any:
        """Called for objects of other types than Python's own."""
        if isinstance(value, jax.Array):
            self._kept.append(value)
            return _LeftOut, (len(self._kept) - 1,)
        return NotImplemented


class _LeftOut:
    """Stands for an object that was left out."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, kept: list[Any]):
        super().__init__(io.BytesIO(data))
        self._kept = kept

    def find_class(self, module: str, name: str) -> Any:
        """`_Kept` as what gets the objects back."""
        if module == __name__ and name == _LeftOut.__name__:
            return self._kept.__getitem__
        return super().find_class(module, name)
