"""Joining a run: a process reads its place from the environment.

The variables are JAX_COORDINATOR_ADDRESS (host:port, where process 0 listens),
JAX_NUM_PROCESSES and JAX_PROCESS_ID, which `experiments/launch.py` sets. Without them,
JAX looks for Slurm (within srun), Open MPI 4, Cloud TPU on GKE, and indexed jobs of
Kubernetes. Elsewhere, set the three variables, or call `jax.distributed.initialize`.
"""

import importlib.util
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

ADDRESS, COUNT, INDEX = NAMES = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)
# the variables that JAX needs in a cluster, the package, and the value of the last one
# if there is a single process
_CLUSTERS = (
    (("SLURM_STEP_NODELIST", "SLURM_NTASKS"), "", "1"),
    (("OMPI_MCA_orte_hnp_uri", "OMPI_COMM_WORLD_SIZE"), "", "1"),
    (("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"), "libtpu", "localhost"),
    (("TPU_WORKER_ID", "TPU_PROCESS_ADDRESSES"), "libtpu", "local"),
    (("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX"), "kubernetes", ""),
)
_SILENT = 5.0  # [s] of waiting for the other processes without a message
_EXIT = 24 * 3600  # [s] that a finished process waits for one that is alive

_place: tuple[int, int] | None = None  # index and count, once `join` has read them


def own_place() -> tuple[int, int]:
    """This process's (index, count) in the run that it has joined; (0, 1) alone.

    Unless `join` read it from the three variables, this initializes JAX's backend.
    """
    if not jax.distributed.is_initialized():
        return 0, 1
    return _place or (jax.process_index(), jax.process_count())


def join(timeout: float, heartbeat: float) -> bool:
    """Wait for all processes; return False if the environment states no others.

    JAX ends all processes if one of them gives no sign of life for `heartbeat` [s].
    Errors: ValueError for variables that make no sense; ConnectionError.
    """
    global _place
    arguments = find_place(os.environ)
    if arguments is None:
        return False
    process = f"process {arguments['process_id']}" if arguments else "this process"
    try:
        with _limit(process, os.environ.get(ADDRESS, ""), timeout):
            jax.distributed.initialize(
                **arguments,
                initialization_timeout=round(timeout) + 60,  # JAX aborts: ours is first
                heartbeat_timeout_seconds=max(1, round(heartbeat)),
                shutdown_timeout_seconds=_EXIT,
            )
    except ValueError as error:
        raise ConnectionError(
            f"JAX does not find the processes of this cluster ({error}): set "
            f"{', '.join(NAMES)}"
        ) from error
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(
            f"the processes cannot join: {reason}"
            + ": is the port in use?" * ("start RPC server" in reason)
        ) from None
    if arguments:
        _place = arguments["process_id"], arguments["num_processes"]
    return True


def find_place(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """The arguments of `jax.distributed.initialize`; {}: JAX finds them; None: alone.

    Errors: ValueError.
    """
    given = [name for name in NAMES if environment.get(name)]
    if set(given) <= {ADDRESS} and _in_cluster(environment):
        return {}
    if not given:
        return None
    missing = [name for name in NAMES if name not in given]
    if missing:
        raise ValueError(
            f"only {' and '.join(given)} set, without {' and '.join(missing)}: set all "
            "three, or none"
        )
    address, count, index = (environment[name] for name in NAMES)
    match = re.fullmatch(r".+:(\d{1,5})", address)
    if not (match and 1 <= int(match[1]) <= 65535):
        raise ValueError(
            f"{ADDRESS}={address}: use the form host:port, such as localhost:1234"
        )
    if not (count.isdecimal() and int(count) >= 1):
        raise ValueError(f"{COUNT}={count}: use a whole number from 1")
    if not (index.isdecimal() and int(index) < int(count)):
        raise ValueError(
            f"{INDEX}={index}: use a whole number from 0 to {int(count) - 1}"
        )
    if int(count) == 1:
        return None
    return {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(index),
        "cluster_detection_method": "deactivate",
    }


def _in_cluster(environment: Mapping[str, str]) -> bool:
    """Whether JAX can find other processes by a cluster's variables."""
    for names, package, alone in _CLUSTERS:
        given = [environment.get(name) for name in names]
        if all(given) and given[-1] != alone:
            if not package or importlib.util.find_spec(package):
                return True
            if package == "kubernetes":
                warnings.warn(
                    "this pod of an indexed job runs alone, since JAX needs the package"
                    " kubernetes to find the others: python -m pip install 'jax[k8s]'",
                    stacklevel=4,
                )
    return False


@contextmanager
def _limit(process: str, address: str, timeout: float) -> Iterator[None]:
    """Say what the process waits for if it takes a while; exit after `timeout` [s].

    JAX would abort the process with the stack of its C++ functions.
    """
    joined = threading.Event()
    where = f"the coordinator {address}".rstrip()

    def watch() -> None:
        if joined.wait(min(_SILENT, timeout)):
            return
        say(f"{process} waits for all others at {where}, for {timeout:g} s at most")
        if not joined.wait(max(timeout - _SILENT, 0)):
            say(
                f"not all processes came to {where} within {timeout:g} s: start every "
                "one of them, process 0 at that address"
            )
            os._exit(2)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        joined.set()


def say(text: str) -> None:
    """Print a line to standard error, after the program's name."""
    print(f"{Path(sys.argv[0]).name}: {text}", file=sys.stderr, flush=True)
