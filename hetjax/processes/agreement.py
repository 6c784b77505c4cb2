"""The processes of a run: what they tell each other on the host, and how they end.

A run on a mesh may have several processes, each with its own devices. All run the same
script; `initialize` joins them, once, before JAX is used. They exchange small values
through the key-value store of JAX's distributed runtime, which process 0 holds. Every
wait has a time-out, and a wait for a process that died ends at once. Values stay in
the store until the run ends.
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
from jax._src import distributed  # JAX has no public access to its key-value store

from hetjax.processes.liveness import Peers

_SLICE = 0.5  # [s] of a wait, after each of which the awaited process is looked at
PATIENCE = 5.0  # [s] until all processes are taken to be alive after an error
_SHOWN = 60  # characters of a value in a message


class ProcessDied(RuntimeError):
    """Another process of the run died, hangs, or has ended with an error."""


class NoAnswer(TimeoutError):
    """A process of the run did not come in time."""


def is_first() -> bool:
    """Is this process 0, which prints and writes the results? True if it is alone."""
    return distributed.global_state.process_id == 0


def here() -> "Processes":
    """The processes, as seen from this one.

    All processes have to call this for the first time together; `initialize` does.
    """
    return _of(distributed.global_state.client)


@functools.cache
def _of(client: Any) -> "Processes":
    state = distributed.global_state
    return Processes(client, state.process_id, state.num_processes)


class Processes:
    """All processes of a run, and the `index` of this one among `count`.

    All have to call the same methods with the same names in the same order.
    """

    def __init__(self, client: Any, index: int, count: int):
        """`client` is that of JAX's distributed runtime; None for a process alone."""
        self.index, self.count = index, count
        self.peers: Peers | None = None  # None for a process alone
        self.left: BaseException | None = None  # what made it leave a run of all
        self._client, self._uses = client, Counter()
        if count > 1:
            token = self.first("token", secrets.token_hex(8))
            address = distributed.global_state.coordinator_address or "localhost:0"
            peers = Peers(index, address, token)
            everyone = self.gather("peer", peers.me)
            peers.meet(everyone)
            self.peers = peers

    def gather(
        self, name: str, value: Any, timeout: float = 60, *, patient: bool = False
    ) -> list[Any]:
        """The values of all processes, in their order, as JSON returns them.

        A process that does not come within `timeout` [s] is named by a NoAnswer, and
        one that is dead by a ProcessDied. Who is `patient` waits as long as it lives.
        """
        if self._client is None:
            return [json.loads(json.dumps(value))]
        wait = self._begin(name, timeout)._replace(patient=patient)
        self._set(wait, value)
        return [self._get(wait, process) for process in range(self.count)]

    def first(self, name: str, value: Any, timeout: float = 60) -> Any:
        """The value of process 0, as JSON returns it; those of others do not matter."""
        if self._client is None:
            return json.loads(json.dumps(value))
        wait = self._begin(name, timeout)
        if self.index == 0:
            self._set(wait, value)
        return self._get(wait, process=0)

    def agree(self, facts: Mapping[str, str], timeout: float = 60) -> None:
        """Check that all processes give the same facts; else each raises a ValueError.

        Its one line names the first fact that differs, who has which value, and what
        to do. The other errors are those of `gather`.
        """
        found = self.gather("agree", dict(facts), timeout)
        for fact in dict.fromkeys(name for each in found for name in each):
            values = [each.get(fact, "none") for each in found]
            if len(set(values)) > 1:
                raise ValueError(_disagreement(fact, values))

    # -- the store ---------------------------------------------------------------------

    def _begin(self, name: str, timeout: float) -> "_Wait":
        """The next use of a name. It has a number: keys are set only once."""
        self._uses[name] += 1
        key = f"hetjax/{name}/{self._uses[name]}"
        return _Wait(name, key, timeout, time.monotonic() + timeout)

    def _set(self, wait: "_Wait", value: Any) -> None:
        key = f"{wait.key}/{self.index}"
        self._call(self._client.key_value_set, key, json.dumps(value))

    def _get(self, wait: "_Wait", process: int) -> Any:
        """The value of a process, as soon as it has set it."""
        get, key = self._client.blocking_key_value_get, f"{wait.key}/{process}"
        while True:
            left = wait.deadline - time.monotonic()
            try:
                slice_ = _SLICE if wait.patient else min(left, _SLICE)
                milliseconds = max(1, int(1000 * slice_))
                return json.loads(self._call(get, key, milliseconds))
            except TimeoutError:
                state = self._look_at(process)
            if left <= _SLICE and not (wait.patient and state == "alive"):
                raise NoAnswer(self._late(wait, process, state))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the store; a TimeoutError means that there is no value yet."""
        try:
            return function(*arguments)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).splitlines()[0]
            if reason.startswith("DEADLINE_EXCEEDED"):
                raise TimeoutError(reason) from None
            if self.peers and (verdict := self.peers.verdict(PATIENCE)):
                raise ProcessDied(verdict) from None
            raise ConnectionError(f"process 0 cannot be reached: {reason}") from None

    def _look_at(self, process: int) -> str:
        """The state of a process; ProcessDied if it, or another one, has ended."""
        peers = self.peers
        if peers is None or process == self.index:
            return "unknown"
        state = peers.ask(process)
        if peers.known or state == "dead":
            raise ProcessDied(peers.verdict(PATIENCE))
        return state

    def _late(self, wait: "_Wait", process: int, state: str) -> str:
        who = self.peers.name(process) if self.peers else f"process {process}"
        why = {
            "alive": "it is alive, but elsewhere: do all run the same script?",
            "silent": "it hangs, or cannot be reached",
            "unknown": "nothing is known of it yet",
        }[state]
        return f'{who} did not come to "{wait.name}" within {wait.timeout:g} s: {why}'


class _Wait(NamedTuple):
    """One exchange of values: its name, its key, and until when it may take."""

    name: str
    key: str
    timeout: float  # [s]
    deadline: float  # [s] of time.monotonic
    patient: bool = False  # is a process that lives waited for after that, too?


def _disagreement(fact: str, values: Sequence[str]) -> str:
    """One line: which processes have process 0's value, and which have another."""
    groups: dict[str, list[int]] = {}
    for process, value in enumerate(values):
        groups.setdefault(value, []).append(process)
    first, other, *more = groups
    same = len(os.path.commonprefix([first, other]))
    named = [
        f"{'process' if len(groups[value]) == 1 else 'processes'} "
        f"{', '.join(map(str, groups[value]))} "
        f"{'has' if len(groups[value]) == 1 else 'have'} {_shortened(value, same)}"
        for value in (other, first)
    ]
    others = f", and {len(more)} more values" if more else ""
    return (
        f"the processes disagree about the {fact}: {named[0]}, {named[1]}{others}: "
        "start all with the same files and flags"
    )


def _shortened(value: str, same: int) -> str:
    """A value of one line, from just before where it differs from others."""
    value = value.replace("\n", " ")
    start = max(0, min(same - _SHOWN // 4, len(value) - _SHOWN))
    end = start + _SHOWN
    return "..." * (start > 0) + value[start:end] + "..." * (end < len(value))
