"""Logs the files that a program opens or changes, with strace or with Python's audit events.

`python -P tests/fuzz/opened_files.py LOG ARGUMENT...` runs token-sidecar with the arguments, and
logs audit events. SQLite's files cause no audit event, so `sqlite3.connect` is logged instead.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_CALLS = (
    "open openat openat2 creat truncate unlink unlinkat rename renameat renameat2 chmod fchmodat"
    " utimensat mkdir mkdirat link linkat symlink symlinkat"
)
_TRACE = ("-f", "--seccomp-bpf", "-s", "4096", "-e", ",".join(f"?{one}" for one in _CALLS.split()))
_TRACED = re.compile(r'^\d+ +(\w+)\((?:[A-Z_]+|\d+)?(?:<[^>]*>)?(?:, )?"((?:[^"\\]|\\.)*)"(.*)$')
_WRITES = re.compile(r"O_(?:WRONLY|RDWR|CREAT|TRUNC|APPEND)")
_EVENTS = ("open", "sqlite3.connect", "os.remove", "os.rename", "os.truncate", "os.chmod",
           "os.utime", "os.mkdir", "os.link", "os.symlink")  # fmt: skip


class Opened(NamedTuple):
    """A file that was opened or changed."""

    path: str
    writes: bool


def may_trace() -> bool:
    """Return whether strace is installed and permitted."""
    strace = shutil.which("strace")
    if strace is None:
        return False
    probe = [strace, *_TRACE, "-o", os.devnull, sys.executable, "-c", ""]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def command(log: Path, *arguments: str, traced: bool) -> list[str]:
    """Return a command that runs token-sidecar and logs the files that it opens."""
    if not traced:
        return [sys.executable, "-P", __file__, str(log), *arguments]
    return ["strace", *_TRACE, "-o", str(log), sys.executable, "-P", "-m", "sidecar", *arguments]


def read(log: Path) -> list[Opened]:
    """Return the logged files."""
    lines = log.read_text("utf-8", errors="replace").splitlines()
    if lines and lines[0].startswith("["):
        return [Opened(*json.loads(line)) for line in lines]
    return [one for one in map(_traced, lines) if one]


def _traced(line: str) -> Opened | None:
    found = _TRACED.match(line)
    if found is None:
        return None
    name, path, rest = found.groups()
    opens = name in ("open", "openat", "openat2")
    return Opened(path, bool(_WRITES.search(rest)) if opens else True)


def _log_events(log: Path) -> None:
    file = log.open("a", encoding="utf-8", buffering=1)

    def log_event(event: str, arguments: tuple[object, ...]) -> None:
        if event not in _EVENTS or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path, writes = os.fsdecode(arguments[0]), event != "open"
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
        if event == "sqlite3.connect":
            path, _, options = path.removeprefix("file:").partition("?")
            writes = "mode=ro" not in options
        file.write(json.dumps([path, writes]) + "\n")

    sys.addaudithook(log_event)


if __name__ == "__main__":
    _log_events(Path(sys.argv[1]))
    sys.argv = ["token-sidecar", *sys.argv[2:]]
    runpy.run_module("sidecar", run_name="__main__", alter_sys=True)
