"""Runs programs with their own home folder and, if Linux allows namespaces, without a network."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NamedTuple

_NAMESPACES = ["--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


class Ended(NamedTuple):
    """The exit code and output of a program that has ended."""

    code: int
    output: str
    """The program's output to stdout and stderr."""


class Program:
    """A running program in a sandbox."""

    def __init__(self, process: subprocess.Popen[bytes], output: IO[str]) -> None:
        self._process, self._output = process, output

    def wait(self, seconds: float) -> Ended:
        """Wait until the program ends. After a timeout, kill it and return the exit code -9."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._kill()
        self._output.seek(0)
        return Ended(self._process.returncode, self._output.read())

    def interrupt(self) -> None:
        """Send SIGINT to all of the program's processes, as Ctrl-C does."""
        for pid in _group(self._process.pid):
            # A process may end when another one gets the signal.
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if pid != self._process.pid or _name(pid) != "nsenter":
                    os.kill(pid, signal.SIGINT)

    def end(self) -> None:
        """Kill the program's remaining processes, and discard their output."""
        self._kill()
        self._output.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10)


class Sandbox:
    """Runs programs with `home` as HOME, and kills them when the context manager exits.

    If the system allows it, the programs run in new namespaces, so that they cannot reach other
    hosts or outlive the sandbox. They can connect to the socket `listener`.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._running: list[Program] = []
        self._enter: list[str] = []
        self._holder: subprocess.Popen[bytes] | None = None
        if _can_unshare():
            self.listener = self._unshare()
        else:
            self.listener = socket.create_server(("127.0.0.1", 0))

    @property
    def is_isolated(self) -> bool:
        """Whether programs can reach only the loopback interface."""
        return self._holder is not None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._running:
            program.end()
        if self._holder is not None:
            self._control.close()
            self._holder.wait(10)

    def _unshare(self) -> socket.socket:
        self._control, theirs = socket.socketpair()
        command = ["unshare", *_NAMESPACES, sys.executable, __file__, str(theirs.fileno())]
        self._holder = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        _, (listener, *_), _, _ = socket.recv_fds(self._control, 1, 1)
        (holder,) = _children(self._holder.pid)
        self._enter = [
            *("nsenter", "--target", str(holder), "--preserve-credentials"),
            *("--user", "--net", "--pid", "--mount", "--"),
        ]
        return socket.socket(fileno=listener)

    def start(self, command: list[str], cwd: Path, env: dict[str, str]) -> Program:
        """Start a program. It inherits no environment variables except those in `env`."""
        (self.home / "tmp").mkdir(exist_ok=True)
        variables = {
            "HOME": str(self.home),
            "TMPDIR": str(self.home / "tmp"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            **env,
        }
        pairs = [f"{name}={value}" for name, value in variables.items()]
        # If this were a pipe, child processes that are still running would block `wait`.
        output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        process = subprocess.Popen(
            [*self._enter, "env", "-i", "-C", str(cwd), *pairs, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        program = Program(process, output)
        self._running.append(program)
        return program


def _can_unshare() -> bool:
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        return False
    tried = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _group(leader: int) -> list[int]:
    members = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == leader:
                members.append(int(entry.name))
        except ProcessLookupError:
            continue
    return members


def _hold(control: socket.socket) -> None:
    """Run as the first process in the namespaces, and keep them alive until `control` is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # this reaps orphaned processes
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.send_fds(control, [b"x"], [listener.fileno()])
    control.recv(1)


if __name__ == "__main__":
    _hold(socket.socket(fileno=int(sys.argv[1])))
