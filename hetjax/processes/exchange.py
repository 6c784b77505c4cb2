"""Values that the processes of a run exchange on the host, and agree about.

A run on a mesh may have several processes, each with its own devices. All run the same
script; `hetjax.processes.lifecycle.initialize` joins them, once, before JAX is used.
They exchange small values through the key-value store of JAX's distributed runtime,
which process 0 holds. Every wait has a timeout, and a wait for a process that has died
ends at once. Values stay in the store until the run ends.
"""

import functools
import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from hetjax.processes.bootstrap import ProcessPlace, own_place
from hetjax.processes.liveness import Peers

PATIENCE = 5.0  # [s] without a dead or silent process, after which all count as alive
_SLICE = 0.5  # [s] of a wait, after which the awaited process is checked
_SHOWN = 60  # characters of a value in a message


class ProcessDied(RuntimeError):
    """Another process of the run died, hangs, or has ended with an error."""


class NoAnswer(TimeoutError):
    """A process of the run did not join an exchange in time."""


def is_first() -> bool:
    """Whether this is process 0, which prints and writes the results."""
    return own_place().index == 0


def current_processes() -> "Processes":
    """The processes of the run that this one has joined.

    The first call must be made by all processes together; `initialize` makes it.
    """
    return _processes_of(_client())


def _client() -> Any:
    """The client of JAX's key-value store; None for a process alone."""
    if not jax.distributed.is_initialized():
        return None
    import orbax.checkpoint as ocp  # here, since the import takes seconds

    # not `ocp.multihost`, which a user's `import orbax.checkpoint.multihost` replaces
    return ocp.utils.multihost.get_jax_distributed_client()


@functools.cache
def _processes_of(client: Any) -> "Processes":
    return Processes(client, own_place())


class Processes:
    """All processes of a run, and the `index` of this one among `count`.

    All have to call the same methods with the same names in the same order.
    """

    def __init__(self, client: Any, place: ProcessPlace):
        """`client` is that of JAX's distributed runtime; None for a process alone."""
        self.index, self.count = place.index, place.count
        self.peers: Peers | None = None  # None for a process alone
        self.exit_error: BaseException | None = None  # why this process leaves the run
        self._client, self._uses = client, Counter()
        if self.count > 1:
            token = self.broadcast("token", secrets.token_hex(8))
            peers = Peers(self.index, place.coordinator, token)
            everyone = self.gather("peer", peers.me)
            peers.connect(everyone)
            self.peers = peers

    def gather(
        self, name: str, value: Any, timeout: float = 60, *, patient: bool = False
    ) -> list[Any]:
        """Return the values of all processes, in their order, as JSON returns them.

        A NoAnswer names a process that does not answer within `timeout` [s], a
        ProcessDied one that is dead. `patient`: wait for a process while it is alive.
        """
        if self._client is None:
            return [json.loads(json.dumps(value))]
        wait = self._next_wait(name, timeout)._replace(patient=patient)
        self._set(wait, value)
        return [self._get(wait, process) for process in range(self.count)]

    def broadcast(self, name: str, value: Any, timeout: float = 60) -> Any:
        """Return the value of process 0, as JSON returns it, in all processes."""
        if self._client is None:
            return json.loads(json.dumps(value))
        wait = self._next_wait(name, timeout)
        if self.index == 0:
            self._set(wait, value)
        return self._get(wait, process=0)

    def agree(self, facts: Mapping[str, str], timeout: float = 60) -> None:
        """Check that all processes have the same facts; otherwise, all raise an error.

        Errors: a ValueError of one line, which says which fact differs, which process
        has which value, and what to do; those of `gather`.
        """
        found = self.gather("agree", dict(facts), timeout)
        for fact in dict.fromkeys(name for each in found for name in each):
            values = [each.get(fact, "none") for each in found]
            if len(set(values)) > 1:
                raise ValueError(_disagreement(fact, values))

    # -- the store ---------------------------------------------------------------------

    def _next_wait(self, name: str, timeout: float) -> "_Wait":
        """The next exchange of this name. It has a number: keys are set only once."""
        self._uses[name] += 1
        key = f"hetjax/{name}/{self._uses[name]}"
        return _Wait(name, key, timeout, time.monotonic() + timeout)

    def _set(self, wait: "_Wait", value: Any) -> None:
        key = f"{wait.key}/{self.index}"
        self._call(self._client.key_value_set, key, json.dumps(value))

    def _get(self, wait: "_Wait", process: int) -> Any:
        """Wait for the value of a process."""
        get, key = self._client.blocking_key_value_get, f"{wait.key}/{process}"
        while True:
            left = wait.deadline - time.monotonic()
            try:
                slice_ = _SLICE if wait.patient else min(left, _SLICE)
                milliseconds = max(1, int(1000 * slice_))
                return json.loads(self._call(get, key, milliseconds))
            except TimeoutError:
                state = self._check_alive(process)
            if left <= _SLICE and not (wait.patient and state == "alive"):
                raise NoAnswer(self._timeout_message(wait, process, state))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the store. Errors: a TimeoutError if there is no value yet."""
        try:
            return function(*arguments)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            if reason.startswith("DEADLINE_EXCEEDED"):
                raise TimeoutError(reason) from None
            if self.peers and (died := self.peers.diagnose(PATIENCE)):
                raise ProcessDied(died) from None
            raise ConnectionError(f"process 0 cannot be reached: {reason}") from None

    def _check_alive(self, process: int) -> str:
        """Return the state of a process. Errors: ProcessDied if any has ended."""
        peers = self.peers
        if peers is None or process == self.index:
            return "unknown"
        state = peers.check(process)
        if peers.end_reason or state == "dead":
            raise ProcessDied(peers.diagnose(PATIENCE))
        return state

    def _timeout_message(self, wait: "_Wait", process: int, state: str) -> str:
        who = self.peers.name(process) if self.peers else f"process {process}"
        why = {
            "alive": "it is alive, but elsewhere: do all run the same script?",
            "silent": "it hangs, or cannot be reached",
            "unknown": "its state is not known yet",
        }[state]
        return f'{who} did not come to "{wait.name}" within {wait.timeout:g} s: {why}'


class _Wait(NamedTuple):
    """One exchange of values, and how long it may take."""

    name: str
    key: str
    timeout: float  # [s]
    deadline: float  # [s] of time.monotonic
    patient: bool = False  # whether to wait longer for a process that is alive


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
