"""What a process and its children connect to and start, seen from outside: by strace."""

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
    """The most memory that a running process ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


class Trace:
    """Traces whatever runs under `prefix`; a Debian without strace gets it first."""

    def __init__(self, file: Path) -> None:
        self.file = file
        strace = debian.ensure("strace", "strace")
        self.prefix = [strace, "-f", "-A", "-qq", "-s", "4096", "-e", _CALLS, "-o", str(file)]

    def addresses(self) -> set[str]:
        """The hosts of the internet's families that were connected or sent to."""
        return {address for _, address in _ADDRESS.findall(self.file.read_text())}

    def programs(self) -> list[str]:
        """What was started, in order, as it was named."""
        return _PROGRAM.findall(self.file.read_text())

    def traced(self, tracer: int) -> int:
        """The process that runs under a tracer."""
        return int(Path(f"/proc/{tracer}/task/{tracer}/children").read_text().split()[0])

    def wrap(self, program: Path) -> None:
        """Put a script in a program's place that runs it under the trace."""
        real = program.with_name(f"{program.name}.real")
        real.write_bytes(program.read_bytes())
        real.chmod(0o755)
        program.write_text(f'#!/bin/sh\nexec {" ".join(self.prefix)} "{real}" "$@"\n')
        program.chmod(0o755)
