"""Who of a run's processes is alive: each answers on a port, and any other can ask.

A collective that fails, or a runtime that gives up, does not say which process is the
reason. So every process has a thread that answers on a port of its own. Where a
process refuses the connection, it is dead; where it accepts but does not answer, it
hangs. What one process finds out it tells the others before it ends, so that all name
the same reason and none blames those who have ended because of it. No traffic passes
until something is wrong, and none of this needs process 0.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

_ANSWER = 2.0  # [s] for one answer; then the process is silent
_QUESTION = 0.5  # [s] for one question, which is sent at once
_SHOWN = 4000  # characters of a reason
_LONGEST = 1 << 16  # bytes of a question


class Peer(NamedTuple):
    """One process of a run."""

    index: int
    host: str
    pid: int
    address: str  # where it answers
    port: int

    def __str__(self) -> str:
        return f"process {self.index} ({self.host}, pid {self.pid})"


class Peers:
    """The processes of a run, as this one sees them."""

    def __init__(self, index: int, coordinator: str, token: str):
        """Begin to answer. `coordinator` is "host:port"; `token` is the run's own."""
        self._token = token
        self._server = _listen()
        port = self._server.getsockname()[1]
        address = _own_address(index, coordinator)
        self.me = Peer(index, socket.gethostname(), os.getpid(), address, port)
        self.known = ""  # what ended the run, as soon as this process knows
        self._all: dict[int, Peer] = {index: self.me}
        self._watched: list[Peer] = []
        threading.Thread(target=self._serve, daemon=True, name="peers").start()

    def meet(self, everyone: Sequence[Sequence]) -> None:
        """Learn who the others are; watch those that can be reached from here."""
        self._all = {peer[0]: Peer(*peer) for peer in everyone}
        others = [p for p in self._all.values() if p.index != self.me.index]
        self._watched = [p for p in others if self._is_reached(p.index)]

    def _is_reached(self, index: int) -> bool:
        """Does a process answer at the address that it told? A busy one may be slow."""
        return any(self.ask(index) == "alive" for _ in range(3))

    def name(self, index: int) -> str:
        """A process by its index, its host and its pid."""
        return str(self._all.get(index, f"process {index}"))

    def ask(self, index: int) -> str:
        """Is a process "alive", "dead" or "silent"? Also learn and tell what is known.

        "silent" are a process that hangs and one whose host cannot be reached.
        """
        peer = self._all[index]
        try:
            with socket.create_connection((peer.address, peer.port), _ANSWER) as link:
                link.sendall(_line([self._token, self.known]))
                with link.makefile("rb") as file:
                    token, who, known = json.loads(file.readline())
        except (ConnectionError, ValueError):  # none there, or another program
            return "dead"
        except OSError:  # a time-out, or no route
            return "silent"
        if (token, who) != (self._token, index):
            return "dead"
        self.known = self.known or known
        return "alive"

    def verdict(self, patience: float) -> str:
        """What ended the run; "" if all processes answer for `patience` seconds.

        Everybody else is told.
        """
        deadline = time.monotonic() + patience
        while not self.known:
            found = {p: self.ask(p.index) for p in self._watched}
            over = time.monotonic() > deadline
            if self.known:  # another process has told it meanwhile
                break
            if dead := [p for p, state in found.items() if state == "dead"]:
                self.tell(f"{_names(dead)} died: its own output may say why")
            elif over and (silent := [p for p in found if found[p] == "silent"]):
                self.tell(f"{_names(silent)} hangs, or cannot be reached any more")
            elif over:
                return ""
            else:
                time.sleep(0.1)
        return self.known

    def tell(self, reason: str) -> None:
        """Tell all other processes why the run ends; what they know already stays."""
        self.known = self.known or reason[:_SHOWN]
        for peer in self._watched:
            self.ask(peer.index)

    def wait_for_ends(self, seconds: float) -> None:
        """Wait until all other processes have ended, at most so many seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(self.ask(p.index) == "dead" for p in self._watched):
                return
            time.sleep(0.1)

    def _serve(self) -> None:
        """Answer one after the other: at its exit, Python starts no more threads."""
        while True:
            try:
                link, _ = self._server.accept()
                with link:
                    self._answer(link)
            except (OSError, ValueError, TypeError):
                time.sleep(0.01)  # the other has gone, or is no process of this run

    def _answer(self, link: socket.socket) -> None:
        """Answer one question with this process's index and what it knows."""
        link.settimeout(_QUESTION)
        with link.makefile("rb") as file:
            token, known = json.loads(file.readline(_LONGEST))
        if token == self._token:
            self.known = self.known or known
            link.sendall(_line([token, self.me.index, self.known]))


def _listen() -> socket.socket:
    """A socket that listens on a free port of all interfaces."""
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
        return socket.create_server(("", 0), family=family, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_address(index: int, coordinator: str) -> str:
    """The address at which the others reach this process.

    It is that of the interface towards the coordinator. Process 0 is the coordinator,
    and a process on its host is reached as it is.
    """
    host, _, port = coordinator.rpartition(":")
    host = host.strip("[]")
    if index == 0:
        return host
    try:
        kind = socket.SOCK_DGRAM  # connecting sends nothing
        family, *_, address = socket.getaddrinfo(host, int(port), type=kind)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return host if own == "::1" or own.startswith("127.") else own


def _line(value: list) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _names(peers: Sequence[Peer]) -> str:
    return " and ".join(map(str, peers))
