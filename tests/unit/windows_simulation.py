"""Runs `token-sidecar` on Linux or macOS as if on Windows.

Usage: `python windows_simulation.py ARGUMENT…`.

Only `sidecar.operating_system` takes its Windows branch, with replacements for the C modules it
uses. Functions that Windows lacks are removed, so that any other module that uses one fails.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import select
import sys
import types
from typing import Any, NoReturn

LACKING = (
    *("geteuid", "getuid", "getgid", "fork", "kill", "killpg", "chown", "fchmod", "mkfifo"),
    *("sched_getaffinity", "set_blocking", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY"),
    *("O_CLOEXEC", "O_NOATIME", "statvfs", "getloadavg", "uname"),
)
GENERIC_READ = 0x80000000
ACCESS_DENIED = 5
TIMEOUT = 0x102


def load_windows_branch() -> types.ModuleType:
    """Load `sidecar.operating_system` with its Windows branch."""
    sys.modules["_winapi"], sys.modules["msvcrt"] = _winapi(), _msvcrt()
    system, sys.platform = sys.platform, "win32"
    sys.modules.pop("sidecar.operating_system", None)
    try:
        return importlib.import_module("sidecar.operating_system")
    finally:
        sys.platform = system


def remove_what_windows_lacks() -> None:
    for name in LACKING:
        if hasattr(os, name):
            delattr(os, name)
    del select.poll
    loop: Any = asyncio.SelectorEventLoop
    loop.add_reader = loop.add_writer = _not_on_windows


def _not_on_windows(*_: object) -> NoReturn:
    raise NotImplementedError  # as the proactor event loop does on Windows


def _winapi() -> Any:
    """Simulate processes: 100 is running, 200 has ended, and 300 belongs to another user."""
    module: Any = types.ModuleType("_winapi")
    module.OPEN_EXISTING = 3
    module.opened = []

    def open_process(_access: int, _inherit: bool, process: int) -> int:
        if process in (100, 200):
            return process
        error = OSError("no such process, or not allowed")
        error.winerror = ACCESS_DENIED if process == 300 else 87  # type: ignore[attr-defined,unused-ignore]
        raise error

    def create_file(path: str, access: int, share: int, *_: object) -> int:
        assert access == GENERIC_READ
        module.opened.append(share)
        return os.open(path, os.O_RDONLY)

    module.OpenProcess, module.CreateFile = open_process, create_file
    module.WaitForSingleObject = lambda handle, _: TIMEOUT if handle == 100 else 0
    module.CloseHandle = lambda _: None
    return module


def _msvcrt() -> Any:
    module: Any = types.ModuleType("msvcrt")
    module.open_osfhandle = lambda handle, _: handle
    os.O_BINARY = 0  # type: ignore[attr-defined,unused-ignore]
    return module


if __name__ == "__main__":
    import platformdirs  # noqa: F401 - chooses its own branch when it is imported

    load_windows_branch()
    remove_what_windows_lacks()
    from sidecar.__main__ import start

    start()
