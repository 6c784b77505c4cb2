"""Liveness checks: every process of a run answers its peers on its own port.

When a collective fails, or JAX's runtime gives up, neither says which process is the
cause. So every process has a thread that answers on a port. A process that refuses the
connection is dead; one that accepts it but does not answer hangs. Before a process
ends, it announces the reason to the others, so that all print the same one, and none
blames a process that ended because of it. There is no traffic until something is wrong,
and none of this needs process 0.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

_ANSWER = 2.0  # [s] to wait for an answer; then the process is silent
_QUESTION = 0.5  # [s] to wait for a question, which is sent at once
_SHOWN = 4000  # characters of a reason
_LONGEST = 1 << 16  # bytes of a question
# addresses that are reserved for documentation (RFC 5737, RFC 3849): the route to them
# is the default one
_ANYWHERE = ("192.0.2.1", "2001:db8::1")


class Peer(NamedTuple):
    """One process of a run."""

    index: int
    host: str
    pid: int
    address: str  # at which it answers
    port: int

    def __str__(self) -> str:
        return f"process {self.index} ({self.host}, pid {self.pid})"


class Peers:
    """The processes of a run, as seen from this one."""

    def __init__(self, index: int, coordinator: str, token: str):
        """Start to answer. `coordinator` is its host, or ""; `token` marks the run."""
        self._token = token
        self._server = _listen()
        port = self._server.getsockname()[1]
        address = _own_address(index, coordinator)
        self.me = Peer(index, socket.gethostname(), os.getpid(), address, port)
        self.end_reason = ""  # why the run ends; "" while it goes well
        self._all: dict[int, Peer] = {index: self.me}
        self._watched: list[Peer] = []
        threading.Thread(target=self._serve, daemon=True, name="peers").start()

    def connect(self, everyone: Sequence[Sequence]) -> None:
        """Learn the addresses of all peers; watch those that can be reached."""
        self._all = {peer[0]: Peer(*peer) for peer in everyone}
        others = [p for p in self._all.values() if p.index != self.me.index]
        self._watched = [p for p in others if self._is_reachable(p.index)]

    def _is_reachable(self, index: int) -> bool:
        """Whether a process answers at its address, in three tries: it may be busy."""
        return any(self.check(index) == "alive" for _ in range(3))

    def name(self, index: int) -> str:
        """Return a process's index, host and pid as text."""
        return str(self._all.get(index, f"process {index}"))

    def check(self, index: int) -> str:
        """Return whether a process is "alive", "dead" or "silent".

        A process is silent if it hangs, or if its host cannot be reached. The two
        processes also exchange the reason why the run ends, if one of them knows it.
        """
        peer = self._all[index]
        try:
            with socket.create_connection((peer.address, peer.port), _ANSWER) as link:
                link.sendall(_line([self._token, self.end_reason]))
                with link.makefile("rb") as file:
                    token, who, known = json.loads(file.readline())
        except (ConnectionError, ValueError):  # no process, or another program
            return "dead"
        except OSError:  # a time-out, or no route
            return "silent"
        if (token, who) != (self._token, index):
            return "dead"
        self.end_reason = self.end_reason or known
        return "alive"

    def diagnose(self, patience: float) -> str:
        """Return why the run ends; "" if all peers answer for `patience` seconds [s].

        A reason is announced to all peers.
        """
        deadline = time.monotonic() + patience
        while not self.end_reason:
            found = {p: self.check(p.index) for p in self._watched}
            over = time.monotonic() > deadline
            if self.end_reason:  # a peer has announced it meanwhile
                break
            if dead := [p for p, state in found.items() if state == "dead"]:
                self.announce(f"{_names(dead)} died: its own output may say why")
            elif over and (silent := [p for p in found if found[p] == "silent"]):
                self.announce(f"{_names(silent)} hangs, or can no longer be reached")
            elif over:
                return ""
            else:
                time.sleep(0.1)
        return self.end_reason

    def announce(self, reason: str) -> None:
        """Announce to all peers why the run ends; the first reason counts."""
        self.end_reason = self.end_reason or reason[:_SHOWN]
        for peer in self._watched:
            self.check(peer.index)

    def wait_for_exits(self, seconds: float) -> None:
        """Wait until all peers have ended, for at most `seconds` [s]."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if all(self.check(p.index) == "dead" for p in self._watched):
                return
            time.sleep(0.1)

    def _serve(self) -> None:
        """Answer questions in turn: at its exit, Python starts no more threads."""
        while True:
            try:
                link, _ = self._server.accept()
                with link:
                    self._answer(link)
            except (OSError, ValueError, TypeError):
                time.sleep(0.01)  # the peer is gone, or is no process of this run

    def _answer(self, link: socket.socket) -> None:
        """Answer one question with this process's index and the reason, if known."""
        link.settimeout(_QUESTION)
        with link.makefile("rb") as file:
            token, known = json.loads(file.readline(_LONGEST))
        if token == self._token:
            self.end_reason = self.end_reason or known
            link.sendall(_line([token, self.me.index, self.end_reason]))


def _listen() -> socket.socket:
    """Return a socket that listens on a free port of all interfaces."""
    if socket.has_dualstack_ipv6():
        family = socket.AF_INET6
        return socket.create_server(("", 0), family=family, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _own_address(index: int, coordinator: str) -> str:
    """The address at which the peers reach this process.

    It is that of the interface towards the coordinator, which is process 0's host; if
    that host is not known, the address of the default route's interface. A process on
    the coordinator's host is reached under its name.
    """
    if index == 0 and coordinator:
        return coordinator
    for host in (coordinator,) if coordinator else _ANYWHERE:
        try:
            kind = socket.SOCK_DGRAM  # connecting sends nothing; any port will do
            family, *_, address = socket.getaddrinfo(host, 9, type=kind)[0]
            with socket.socket(family, kind) as probe:
                probe.connect(address)
                own = probe.getsockname()[0]
        except OSError:
            continue
        if own != "::1" and not own.startswith("127."):
            return own
        if coordinator:
            return coordinator
    return socket.gethostname()


def _line(value: list) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _names(peers: Sequence[Peer]) -> str:
    return " and ".join(map(str, peers))
