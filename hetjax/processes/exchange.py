"""Values that the processes of a run exchange on the host, and agree about.

A run on a mesh may have several processes, each with its own devices. All run the same
script; `hetjax.processes.lifecycle.initialize` joins them before JAX is used. Small
values go through the key-value store of JAX's distributed runtime, where they stay.
JAX ends all processes if one dies, and names it.
"""

import functools
import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import jax

from hetjax.processes.bootstrap import own_place

_SLICE = 0.5  # [s] of a wait, after which Ctrl-C is seen
_SHOWN = 60  # characters of a value in a message


class ProcessDied(RuntimeError):
    """A collective failed: another process of the run died, or has ended."""


class NoAnswer(TimeoutError):
    """A process of the run did not join an exchange in time."""


def is_first() -> bool:
    """Whether this is process 0, which prints and writes the results."""
    return own_place()[0] == 0


def current_processes() -> "Processes":
    """The processes of the run that this one has joined."""
    if not jax.distributed.is_initialized():
        return _ALONE
    return _joined_processes()


@functools.cache
def _joined_processes() -> "Processes":
    import orbax.checkpoint as ocp  # here, since the import takes seconds

    # not `ocp.multihost`, which a user's `import orbax.checkpoint.multihost` replaces
    client = ocp.utils.multihost.get_jax_distributed_client()
    return Processes(client, *own_place())


class Processes:
    """All processes of a run, and the `index` of this one among `count`.

    All have to call the same methods with the same names in the same order.
    """

    def __init__(self, client: Any, index: int, count: int):
        """`client` is that of JAX's distributed runtime; None for a process alone."""
        self.index, self.count = index, count
        self.exit_error: BaseException | None = None  # why this process leaves the run
        self._client, self._uses = client, Counter()

    def gather(self, name: str, value: Any, timeout: float = 60) -> list[Any]:
        """Return the values of all processes, in their order, as JSON returns them.

        Errors: a NoAnswer names a process that does not answer within `timeout` [s].
        """
        if self._client is None:
            return [json.loads(json.dumps(value))]
        key, deadline = self._next_key(name), time.monotonic() + timeout
        self._client.key_value_set(f"{key}/{self.index}", json.dumps(value))
        return [self._get(key, process, deadline) for process in range(self.count)]

    def broadcast(self, name: str, value: Any, timeout: float = 60) -> Any:
        """Return the value of process 0, as JSON returns it, in all processes."""
        if self._client is None:
            return json.loads(json.dumps(value))
        key = self._next_key(name)
        if self.index == 0:
            self._client.key_value_set(f"{key}/0", json.dumps(value))
        return self._get(key, 0, time.monotonic() + timeout)

    def agree(self, facts: Mapping[str, str], timeout: float = 60) -> None:
        """Check that all processes have the same facts; otherwise, all raise an error.

        Errors: a ValueError of one line, which says which fact differs, which process
        has which value, and what to do; those of `gather`.
        """
        found = self.gather("agree", dict(facts), timeout)
        for fact in dict.fromkeys(name for each in found for name in each):
            values = [each.get(fact, "none") for each in found]
            if len(set(values)) > 1:
                # the others learn it before process 0 leaves
                with suppress(NoAnswer, ConnectionError):
                    self.hold_first("disagree", timeout)
                raise ValueError(_disagreement(fact, values))

    def hold_first(self, name: str, timeout: float) -> None:
        """Let process 0, which has the store, wait until the others come here, too.

        Its end ends all of them. The others do not wait. Errors: those of `gather`.
        """
        self.gather(name, None, 0 if self.index else timeout)

    def _next_key(self, name: str) -> str:
        """The key of the next exchange of this name: a key is set only once."""
        self._uses[name] += 1
        return f"hetjax/{name}/{self._uses[name]}"

    def _get(self, key: str, process: int, deadline: float) -> Any:
        while True:
            left = deadline - time.monotonic()
            milliseconds = max(1, int(1000 * min(left, _SLICE)))
            try:
                return json.loads(
                    self._client.blocking_key_value_get(
                        f"{key}/{process}", milliseconds
                    )
                )
            except jax.errors.JaxRuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    reason = str(error).splitlines()[0]
                    raise ConnectionError(
                        f"process 0 cannot be reached: {reason}"
                    ) from None
            if left <= _SLICE:
                raise NoAnswer(
                    f'process {process} did not come to "{key.split("/")[1]}" in time: '
                    "it hangs, or does not run the same script as the others"
                )


_ALONE = Processes(None, 0, 1)


def _disagreement(fact: str, values: Sequence[str]) -> str:
    """One line that says which processes have process 0's value, and which another."""
    groups: dict[str, list[int]] = {}
    for process, value in enumerate(values):
        groups.setdefault(value, []).append(process)
    first, other, *more = groups
    same = len(os.path.commonprefix([first, other]))
    named = [
        f"{'process' if len(groups[value]) == 1 else 'processes'} "
        f"{', '.join(map(str, groups[value]))} "
        f"{'has' if len(groups[value]) == 1 else 'have'} {_excerpt(value, same)}"
        for value in (other, first)
    ]
    others = f", and {len(more)} more values" if more else ""
    return (
        f"the processes disagree about the {fact}: {named[0]}, {named[1]}{others}: "
        "start all with the same files and flags"
    )


def _excerpt(value: str, same: int) -> str:
    """A value in one line, from shortly before where it differs from others."""
    value = value.replace("\n", " ")
    start = max(0, min(same - _SHOWN // 4, len(value) - _SHOWN))
    end = start + _SHOWN
    return "..." * (start > 0) + value[start:end] + "..." * (end < len(value))
