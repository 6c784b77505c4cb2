"""Run a script as several processes on this machine, joined by jax.distributed.

    python experiments/launch.py --processes=2 -- compare.py --machine=local
    python experiments/launch.py --processes=2 --devices_per_process=4 -- SCRIPT FLAGS

The script is a path, or the name of one beside this file. Every process runs it with
the same flags, on its own devices: the i-th share of the CPU's parts, or of the GPUs,
belongs to process i. Process 0 prints as if it were alone; the lines of process i are
printed on standard error, with the prefix "[i] ". Ctrl-C and SIGTERM are passed on, and
SIGHUP (a closed terminal) as SIGTERM. If a process fails, it is named, and the others
have --grace seconds to end by themselves; then they are stopped. The exit status is the
first nonzero one, or 128 + the signal's number if a signal ended that process. On
several machines, start the script itself once on each, with the variables of
`hetjax.processes.bootstrap`, or by srun or mpirun.
"""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, NoReturn

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("processes", 2, "processes to start", lower_bound=1)
flags.DEFINE_integer(
    "devices_per_process", 1, "CPU devices or GPUs of each process", lower_bound=1
)
flags.DEFINE_float(
    "grace", 60.0, "seconds that the others have to end after a failure", lower_bound=0
)
_KILL = 5.0  # [s] from SIGTERM to SIGKILL


def find_script(name: str) -> str:
    """The path of a script: as given, or beside this file."""
    places = (Path(name), Path(__file__).parent / name)
    for path in places:
        if path.is_file():
            return str(path)
    raise ValueError(f"there is no script {name}, nor {places[1]}")


def free_port() -> int:
    """A port that is free at this time."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def environment(index: int, port: int) -> dict[str, str]:
    """The environment of one process: JAX's own variables, and its place in the run."""
    count, devices = FLAGS.processes, FLAGS.devices_per_process
    first = index * devices
    return {
        **os.environ,
        "JAX_COORDINATOR_ADDRESS": f"localhost:{port}",
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(index),
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(first, first + devices))),
        "PYTHONUNBUFFERED": "1",
    }


class Children:
    """The processes of one run."""

    def __init__(self, command: list[str]):
        """Start them all, in sessions of their own: signals reach them from here."""
        port = free_port()
        self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
        self._running: dict[int, subprocess.Popen] = {}
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup does
                signal.signal(number, self.pass_on)
        for i in range(FLAGS.processes):
            self._running[i] = child = subprocess.Popen(
                command,
                env=environment(i, port),
                stdout=subprocess.PIPE if i else None,
                stderr=subprocess.STDOUT if i else None,
                start_new_session=True,
            )
            threading.Thread(target=self._wait_for, args=(i, child)).start()

    def _wait_for(self, index: int, child: subprocess.Popen) -> None:
        if child.stdout is not None:
            _copy(child.stdout, index)
        self._ended.put((index, child.wait()))

    def pass_on(self, number: int, frame: object = None) -> None:
        """Send a signal to all that run."""
        del frame
        number = signal.SIGTERM if number == signal.SIGHUP else number
        for child in tuple(self._running.values()):
            child.send_signal(number)

    def wait(self) -> int:
        """Wait for all, and stop those that do not end after a failure."""
        failed, deadline, stop = 0, float("inf"), signal.SIGTERM
        while self._running:
            try:
                left = min(deadline - time.monotonic(), 3600)
                index, status = self._ended.get(timeout=max(left, 0))
            except queue.Empty:
                if time.monotonic() >= deadline:
                    _say(f"stops {_names(self._running)}: {stop.name}")
                    self.pass_on(stop)
                    deadline, stop = time.monotonic() + _KILL, signal.SIGKILL
                continue
            del self._running[index]
            if status < 0:
                _say(f"process {index} was ended by {signal.Signals(-status).name}")
            elif status and not failed and self._running:
                _say(f"process {index} ended with status {status}, before the others")
            if status and not failed:
                failed = 128 - status if status < 0 else status
                deadline = time.monotonic() + FLAGS.grace
        return failed


def _copy(lines: IO[bytes], index: int) -> None:
    """Copy a process's lines to standard error."""
    for line in lines:
        text = f"[{index}] ".encode() + line.rstrip(b"\n") + b"\n"
        os.write(2, text)


def _names(running: dict[int, subprocess.Popen]) -> str:
    noun = "process" if len(running) == 1 else "processes"
    return f"{noun} {', '.join(map(str, running))}"


def main(argv: list[str]) -> int:
    if len(argv) < 2:
        _fail("no script: write launch.py --processes=2 -- SCRIPT FLAGS")
    try:
        command = [sys.executable, find_script(argv[1]), *argv[2:]]
    except ValueError as error:
        _fail(str(error))
    return Children(command).wait()


def _say(message: str) -> None:
    os.write(2, f"launch.py: {message}\n".encode())


def _fail(message: str) -> NoReturn:
    _say(message)
    sys.exit(2)


def _parse(argv: list[str]) -> list[str]:
    try:
        return FLAGS(argv)
    except flags.Error as error:
        _fail(f"{error} (--help lists the flags)")


if __name__ == "__main__":
    app.run(main, flags_parser=_parse)
