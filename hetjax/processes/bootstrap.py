"""Joining a run: a process reads its place from the environment.

The variables are JAX_COORDINATOR_ADDRESS (host:port, where process 0 listens),
JAX_NUM_PROCESSES and JAX_PROCESS_ID. `experiments/launch.py` sets them. JAX itself
reads only the first.

Without them, the variables of a cluster count, if JAX can find the coordinator from
them: Slurm (within srun), Open MPI 4, Cloud TPU on GKE, and indexed jobs of Kubernetes.
Not detected are Open MPI 5, other MPIs, and TPU virtual machines outside GKE, whose
metadata server knows their place: set the three variables there, or call
`jax.distributed.initialize` first. They are also needed for a Kubernetes job of a
single pod: its size is known only after joining.
"""

import importlib.util
import math
import os
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import jax

from hetjax.processes.abort_handler import message_on_abort, program_name

ADDRESS, COUNT, INDEX = NAMES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)


_SILENT = 5.0  # [s] of waiting for the other processes without a message


class ProcessPlace(NamedTuple):
    """A process's place in its run."""

    address: str  # of the coordinator; "" in a cluster, where JAX finds it
    count: int  # of processes; 0 if known only after joining
    index: int
    host: str = ""  # of the coordinator in a cluster; "" if only JAX knows it

    @property
    def coordinator(self) -> str:
        """The host of the coordinator, which is process 0; "" if it is not known."""
        return _host_of(self.address) or self.host


ALONE = ProcessPlace("", 1, 0)
_joined: ProcessPlace | None = None  # this process's place, once `join` has succeeded


def own_place() -> ProcessPlace:
    """This process's place in the run that it has joined, or ALONE.

    If the user has called `jax.distributed.initialize`, index and count are JAX's. Only
    then does this initialize JAX's backend.
    """
    if not jax.distributed.is_initialized():
        return ALONE
    if _joined is not None:
        return _joined
    count, index = jax.process_count(), jax.process_index()
    found = (find(os.environ) for find in (_open_mpi, _slurm, _gke_tpu))
    place = next(filter(None, found), ALONE)._replace(count=count, index=index)
    return _with_host(place, os.environ)


# -- the environment -------------------------------------------------------------------


def find_place(environment: Mapping[str, str]) -> ProcessPlace | None:
    """Return the place that the environment states; None if the process is alone."""
    given = [name for name in NAMES if environment.get(name)]
    if set(given) <= {ADDRESS}:
        place = _find_cluster(environment)
        if place is not None or not given:
            return place
    if len(given) < len(NAMES):
        missing = [name for name in NAMES if name not in given]
        raise ValueError(
            f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} set, but "
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not: set "
            "all three, or none"
        )
    address = environment[ADDRESS]
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(
            f"{ADDRESS}={address}: use the form host:port, such as localhost:1234"
        )
    count = _number(environment, COUNT, 1, math.inf)
    index = _number(environment, INDEX, 0, count - 1)
    return ProcessPlace(address, int(count), int(index)) if count > 1 else None


def _number(
    environment: Mapping[str, str], name: str, lowest: int, highest: float
) -> int:
    text = environment[name]
    if not text.isdecimal() or not lowest <= int(text) <= highest:
        most = "" if math.isinf(highest) else f" to {highest}"
        raise ValueError(f"{name}={text}: use a whole number from {lowest}{most}")
    return int(text)


def _host_of(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _find_cluster(environment: Mapping[str, str]) -> ProcessPlace | None:
    """The place in a cluster of several processes, as JAX finds it, in JAX's order."""
    for find in (_open_mpi, _slurm, _gke_tpu, _kubernetes):
        place = find(environment)
        if place is not None:
            return _with_host(place, environment) if place.count != 1 else None
    return None


def _with_host(place: ProcessPlace, environment: Mapping[str, str]) -> ProcessPlace:
    """The place with the coordinator's host of the environment's address, if any."""
    return place._replace(host=_host_of(environment.get(ADDRESS, "")) or place.host)


def _open_mpi(environment: Mapping[str, str]) -> ProcessPlace | None:
    names = "OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"
    if not all(name in environment for name in names):
        return None
    uri, count, index = (environment[name] for name in names)
    # as 1531576320.0;tcp://10.96.0.1,10.148.0.1:34911, or tcp6://[fe80::1,fe80::2]:43370
    found = re.search(r"tcp://(.+?)[,:]|tcp6://\[(.+?)[,\]]", uri)
    host = next(filter(None, found.groups())) if found else ""
    return ProcessPlace("", int(count), int(index), host)


def _slurm(environment: Mapping[str, str]) -> ProcessPlace | None:
    names = "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"
    needed = (*names, "SLURM_JOB_ID", "SLURM_LOCALID")
    if not all(name in environment for name in needed):
        return None  # the script of a job has no step's nodes, only srun's processes
    nodes, count, index = (environment[name] for name in names)
    # the first of node3,node4 or of node[3-4,7]
    found = re.match(r"([^,\[]*)(?:\[([^,\-\]]*))?", nodes)
    host = "".join(filter(None, found.groups())) if found else ""
    return ProcessPlace("", int(count), int(index), host)


def _gke_tpu(environment: Mapping[str, str]) -> ProcessPlace | None:
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get(
        "TPU_WORKER_HOSTNAMES"
    )
    if not hosts or "TPU_WORKER_ID" not in environment:
        return None
    if importlib.util.find_spec("libtpu") is None:  # then JAX does not look for TPUs
        return None
    per_slice = len(hosts.split(","))
    count = per_slice * int(environment.get("MEGASCALE_NUM_SLICES") or 1)
    before = per_slice * int(environment.get("MEGASCALE_SLICE_ID") or 0)
    first = environment.get("MEGASCALE_COORDINATOR_ADDRESS") or hosts.split(",")[0]
    index = before + int(environment["TPU_WORKER_ID"])
    return ProcessPlace("", count, index, first.split(":")[0])


def _kubernetes(environment: Mapping[str, str]) -> ProcessPlace | None:
    names = "KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"
    if not all(name in environment for name in names):
        return None  # no cluster, or a single pod
    if importlib.util.find_spec("kubernetes") is None:
        warnings.warn(
            "this pod of an indexed job runs alone, since JAX needs the package "
            "kubernetes to find the others: python -m pip install 'jax[k8s]'",
            stacklevel=2,
        )
        return None
    return ProcessPlace("", 0, int(environment["JOB_COMPLETION_INDEX"]))


# -- joining ---------------------------------------------------------------------------


def join(place: ProcessPlace, timeout: float, heartbeat: float) -> None:
    """Start JAX's distributed runtime, and wait for all processes.

    A process counts as dead after `heartbeat` seconds [s] without a sign of life.
    """
    global _joined
    with _message_if_slow(place, timeout):
        _join(place, timeout, heartbeat)
    # JAX knows the number of a Kubernetes job's pods, once its backend is initialized
    _joined = place._replace(count=place.count or jax.process_count())


def _join(place: ProcessPlace, timeout: float, heartbeat: float) -> None:
    deadline = time.monotonic() + timeout
    arguments = {}
    if place.address:
        if place.index:
            _wait_for_coordinator(place.address, timeout)
        arguments = {
            "coordinator_address": place.address,
            "num_processes": place.count,
            "process_id": place.index,
            "cluster_detection_method": "deactivate",
        }
    try:
        with message_on_abort(lambda: _not_all(place, timeout), status=2):
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=max(1, round(deadline - time.monotonic())),
                heartbeat_timeout_seconds=max(1, round(heartbeat)),
            )
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        if "start RPC server" not in reason:
            raise ConnectionError(f"the processes cannot join: {reason}") from None
        raise ConnectionError(
            f"process 0 cannot listen at {_coordinator(place)}: is the port in use?"
        ) from None


@contextmanager
def _message_if_slow(place: ProcessPlace, timeout: float) -> Iterator[None]:
    """Print to standard error what the process is waiting for, if it takes a while."""
    line = (
        f"{program_name()}: process {place.index} is waiting for {_all(place)} at "
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
        f"not {_all(place)} came to {_coordinator(place)} within {timeout:g} s: start "
        "every one of them"
    )


def _all(place: ProcessPlace) -> str:
    return f"all {place.count} processes" if place.count else "all processes"


def _coordinator(place: ProcessPlace) -> str:
    return f"the coordinator {place.address}" if place.address else "the coordinator"


def _wait_for_coordinator(address: str, timeout: float) -> None:
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
