"""Detects the end of the client's process, so that the server stops even if its pipe stays open."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sidecar.server.scheduler import Scheduler

POLL_SECONDS = 3.0


def watch_process(process_id: int | None, ended: Callable[[], None], scheduler: Scheduler) -> None:
    """Call `ended` on the event loop when a process has ended.

    A process that does not exist is not watched, because it may be on another machine or in a
    container.
    """
    if process_id is None or not is_alive(process_id):
        return
    loop = asyncio.get_running_loop()
    if (descriptor := _open_descriptor(process_id)) is not None:
        loop.add_reader(descriptor, _on_ended, loop, descriptor, ended)
        return

    def poll() -> None:
        if is_alive(process_id):
            scheduler.schedule(("client process",), POLL_SECONDS, poll)
        else:
            ended()

    scheduler.schedule(("client process",), POLL_SECONDS, poll)


def _open_descriptor(process_id: int) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(process_id)
    except OSError:  # an old kernel, or a sandbox that forbids it
        return None


def _on_ended(loop: asyncio.AbstractEventLoop, descriptor: int, ended: Callable[[], None]) -> None:
    loop.remove_reader(descriptor)
    os.close(descriptor)
    ended()


def is_alive(process_id: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return process_id > 0 and _exists(process_id)


def _is_zombie(process_id: int) -> bool:
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[:1] == [b"Z"]


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _SYNCHRONIZE, _ACCESS_DENIED, _TIMEOUT = 0x00100000, 5, 0x102

    def _exists(process_id: int) -> bool:
        # `os.kill` would end the process: Windows has no signal 0.
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.OpenProcess.restype = wintypes.HANDLE
        kernel.WaitForSingleObject.argtypes = [wintypes.HANDLE, wintypes.DWORD]
        kernel.CloseHandle.argtypes = [wintypes.HANDLE]
        handle = kernel.OpenProcess(_SYNCHRONIZE, False, process_id & 0xFFFFFFFF)
        if not handle:
            return ctypes.get_last_error() == _ACCESS_DENIED
        try:
            return bool(kernel.WaitForSingleObject(handle, 0) == _TIMEOUT)
        finally:
            kernel.CloseHandle(handle)

else:

    def _exists(process_id: int) -> bool:
        try:
            os.kill(process_id, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return not _is_zombie(process_id)
