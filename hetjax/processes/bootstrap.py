"""How a process joins the others of its run: where the environment says so.

The variables are JAX_COORDINATOR_ADDRESS (host:port, where process 0 listens),
JAX_NUM_PROCESSES and JAX_PROCESS_ID. `experiments/launch.py` sets them. JAX itself
reads only the first. Without them, JAX looks for a cluster's own variables (Slurm, Open
MPI, Cloud TPU, and Kubernetes for indexed jobs).
"""

import math
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax
from jax._src import clusters  # JAX has no public way to ask without joining

from hetjax.processes.abort_handler import last_words, program

ADDRESS, COUNT, INDEX = NAMES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)


_SILENT = 5.0  # [s] of waiting for the others, until that is told


class ProcessPlace(NamedTuple):
    """A process's place in its run; the address "" is a cluster's, which JAX knows."""

    address: str
    count: int
    index: int


def place_in(environment: Mapping[str, str]) -> ProcessPlace | None:
    """The place that the environment tells; None if the process is alone."""
    given = [name for name in NAMES if environment.get(name)]
    if set(given) <= {ADDRESS}:
        place = _cluster(environment)
        if place is not None or not given:
            return place
    if len(given) < len(NAMES):
        missing = [name for name in NAMES if name not in given]
        raise ValueError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set, but "
            f"{' and '.join(missing)} not: set all three, or none"
        )
    address = environment[ADDRESS]
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{ADDRESS}={address}: write host:port, as localhost:1234")
    count = _number(environment, COUNT, 1, math.inf)
    index = _number(environment, INDEX, 0, count - 1)
    return ProcessPlace(address, int(count), int(index)) if count > 1 else None


def _number(
    environment: Mapping[str, str], name: str, lowest: int, highest: float
) -> int:
    text = environment[name]
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        most = "" if math.isinf(highest) else f" to {highest}"
        raise ValueError(f"{name}={text}: give a whole number from {lowest}{most}")
    return int(text)


def _cluster(environment: Mapping[str, str]) -> ProcessPlace | None:
    """The place in a cluster of several processes that JAX detects."""
    for kind in clusters.ClusterEnv._cluster_types:
        if kind.opt_in_only_method:
            continue
        if kind is clusters.K8sCluster and "JOB_COMPLETION_INDEX" not in environment:
            continue  # a pod alone
        if kind.is_env_present():
            count = kind.get_process_count()
            return ProcessPlace("", count, kind.get_process_id()) if count > 1 else None
    return None


def join(place: ProcessPlace, timeout: float, heartbeat: float) -> None:
    """Start JAX's distributed runtime, and wait for all processes.

    A process counts as dead after `heartbeat` seconds [s] without a sign of life.
    """
    with _told_if_long(place, timeout):
        _join(place, timeout, heartbeat)


def _join(place: ProcessPlace, timeout: float, heartbeat: float) -> None:
    deadline = time.monotonic() + timeout
    arguments = {}
    if place.address:
        if place.index:
            _find_coordinator(place.address, timeout)
        arguments = {
            "coordinator_address": place.address,
            "num_processes": place.count,
            "process_id": place.index,
            "cluster_detection_method": "deactivate",
        }
    try:
        with last_words(lambda: _not_all(place, timeout), status=2):
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=max(1, round(deadline - time.monotonic())),
                heartbeat_timeout_seconds=max(1, round(heartbeat)),
            )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        if "start RPC server" not in reason:
            raise ConnectionError(f"the processes cannot be joined: {reason}") from None
        raise ConnectionError(
            f"process 0 cannot listen at {_coordinator(place)}: is the port in use?"
        ) from None


@contextmanager
def _told_if_long(place: ProcessPlace, timeout: float) -> Iterator[None]:
    """Say on standard error what is waited for, if it takes a while."""
    line = (
        f"{program()}: process {place.index} waits for all {place.count} processes at "
        f"{_coordinator(place)}, for {timeout:g} s at most"
    )
    timer = threading.Timer(_SILENT, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _not_all(place: ProcessPlace, timeout: float) -> str:
    return (
        f"not all {place.count} processes came to {_coordinator(place)} within "
        f"{timeout:g} s: start every one of them"
    )


def _coordinator(place: ProcessPlace) -> str:
    return f"the coordinator {place.address}" if place.address else "the coordinator"


def _find_coordinator(address: str, timeout: float) -> None:
    """Wait until something listens there: JAX would abort this process instead."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), max(left, 1)
            ).close()
            return
        except OSError as error:
            if left <= 0:
                raise TimeoutError(
                    f"the coordinator {address} did not answer within {timeout:g} s "
                    f"({error}): is process 0 running, and is the address right?"
                ) from None
        time.sleep(0.2)
