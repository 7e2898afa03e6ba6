"""Uses strace to find the programs that a process tree starts and the addresses it connects to."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.neovim import debian

_CALLS = "trace=connect,sendto,sendmsg,execve,execveat"
_ADDRESS = re.compile(
    r"sa_family=(AF_INET6?),.*?(?:inet_addr|inet_pton)\((?:AF_INET6, )?\"([^\"]+)\""
)
_PROGRAM = re.compile(r"execve\(\"([^\"]+)\".* = 0$", re.MULTILINE)


def peak_bytes(pid: int) -> int:
    """Return a running process's peak memory in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


class Trace:
    """Traces commands that start with `prefix`. On Debian, strace is installed if necessary."""

    def __init__(self, file: Path) -> None:
        self.file = file
        strace = debian.ensure("strace", "strace")
        self.prefix = [strace, "-f", "-A", "-qq", "-s", "4096", "-e", _CALLS, "-o", str(file)]

    def addresses(self) -> set[str]:
        """Return the internet addresses that the processes connected to or sent datagrams to."""
        return {address for _, address in _ADDRESS.findall(self.file.read_text())}

    def programs(self) -> list[str]:
        """Return the names of the programs that were started, in order."""
        return _PROGRAM.findall(self.file.read_text())

    def traced(self, tracer: int) -> int:
        """Return the process that a tracer runs."""
        return int(Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()[0])

    def wrap(self, program: Path) -> None:
        """Replace a program with a script that traces it."""
        real = program.with_name(f"{program.name}.real")
        real.write_bytes(program.read_bytes())
        real.chmod(0o755)
        program.write_text(f'#!/bin/sh\nexec {" ".join(self.prefix)} "{real}" "$@"\n')
        program.chmod(0o755)
