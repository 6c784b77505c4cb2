"""Scripts that tests start as the processes of one run."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from hetjax.processes import bootstrap

WORKER = Path(__file__).parent / "process_worker.py"
PLAIN = {k: v for k, v in os.environ.items() if k not in bootstrap.NAMES}
PLAIN |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}


def free_port():
    """A port that is free at this time."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def start(count, *arguments, script=WORKER, environment=None):
    """Start a script as so many processes; without the launcher."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={
                **PLAIN,
                bootstrap.ADDRESS: f"localhost:{port}",
                bootstrap.COUNT: str(count),
                bootstrap.INDEX: str(i),
                **(environment or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(count)
    ]


def finish(children):
    """The (status, lines of stdout, lines of stderr) of all."""
    found = []
    for child in children:
        out, err = child.communicate(timeout=120)
        found.append((child.returncode, out.splitlines(), err.splitlines()))
    return found


def says(text, lines):
    """Whether a line has the text, and none is of a traceback.

    It is not always the last one: JAX may log that process 0 ended a moment earlier.
    """
    assert not [line for line in lines if line.startswith("Traceback")], lines
    return any(text in line for line in lines)


def names(process, lines):
    """Whether JAX's last message says that this process is gone."""
    message = "\n".join(lines).rpartition("JAX distributed service detected fatal")[2]
    if process == 0:
        return "coordination service" in message
    return (
        f"(stopped sending heartbeats):\n{process}\n" in message
        or f"Task {process} heartbeat timeout" in message
    )
