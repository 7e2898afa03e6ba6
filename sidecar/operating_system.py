"""Handles all differences between Linux, macOS and Windows.

No other module checks the operating system or calls platform-specific functions.
To check this module for Windows, for example, run `mypy --platform win32`.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from io import TextIOWrapper

PLATFORM: str = sys.platform
IS_LINUX = sys.platform == "linux"
IS_MACOS = sys.platform == "darwin"
IS_WINDOWS = sys.platform == "win32"

HOME_VARIABLE = "USERPROFILE" if IS_WINDOWS else "HOME"
"""The environment variable that contains the user's home folder."""
PROGRAM_SUFFIX = ".exe" if IS_WINDOWS else ""
NO_WINDOW = 0x08000000 if IS_WINDOWS else 0
"""`creationflags` value that keeps a console window from opening (CREATE_NO_WINDOW)."""
NO_ATIME: int = getattr(os, "O_NOATIME", 0)
"""Flag for `open_to_read`: do not update the access time. Requires ownership of the file."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag for `open_to_read`: fail if the file is a symbolic link."""
_REPLACE_SECONDS = 1.0


def count_cores() -> int:
    """Return the number of cores available to this process."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return len(get_affinity(0)) if get_affinity else os.cpu_count() or 1


def windows_path(host: str, path: str) -> PureWindowsPath:
    """Return the Windows path of a `file:` URI, such as `C:\\work` or `\\\\server\\share`."""
    if host not in ("", "localhost"):
        return PureWindowsPath(f"//{host}{path}")
    return PureWindowsPath(path[1:] if path[2:3] == ":" else path)


def start_detached(command: list[str]) -> None:
    """Start a process that outlives this one and shares none of its streams. Raises OSError."""
    if sys.platform == "win32":  # mypy does not know what IS_WINDOWS excludes
        import subprocess

        null = subprocess.DEVNULL
        subprocess.Popen(  # noqa: S603
            command, stdin=null, stdout=null, stderr=null, creationflags=NO_WINDOW
        )
    else:
        # Importing subprocess takes 10 ms, for which a coding agent would wait.
        opened = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
        os.posix_spawn(command[0], command, os.environ, file_actions=opened, setsid=True)


def lower_priority() -> None:
    """Let other processes go first, where the system supports this."""
    if sys.platform != "win32":
        with suppress(OSError):
            os.nice(10)


def use_utf8(stream: TextIOWrapper) -> None:
    """Use UTF-8 and `\\n` for output to pipes and files on Windows, as other programs expect.

    Otherwise, Python would use the system's code page and `\\r\\n`. Output to a console is not
    changed. PYTHONIOENCODING takes precedence.
    """
    if IS_WINDOWS and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        stream.reconfigure(encoding="utf-8", newline="\n")


def replace_file(source: str, target: Path) -> None:
    """Atomically rename a file, replacing the target. This call blocks. Raises OSError.

    On Windows, this fails while another process is reading the target. The rename is retried
    for a second.
    """
    until = time.monotonic() + _REPLACE_SECONDS
    while True:
        try:
            os.replace(source, target)
        except PermissionError:
            if not IS_WINDOWS or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


if sys.platform == "linux":

    def release_memory() -> None:
        """Return freed memory to the system. Blocks for a few milliseconds.

        glibc keeps the memory of closed documents, because it is mixed with memory in use.
        """
        import ctypes

        with suppress(AttributeError, OSError):  # musl has no malloc_trim
            ctypes.CDLL(None).malloc_trim(0)

else:

    def release_memory() -> None:
        """Do nothing. Only glibc keeps freed memory."""


if sys.platform == "win32":
    import _winapi
    import msvcrt

    SURE_WRITE_BYTES = 0
    """Number of bytes that can be written without blocking if `is_writable` returns True."""
    _GENERIC_READ = 0x80000000
    _SHARE_ALL = 0x1 | 0x2 | 0x4  # FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE
    _SYNCHRONIZE = 0x00100000
    _ERROR_ACCESS_DENIED = 5
    _WAIT_TIMEOUT = 0x102

    def is_writable(descriptor: int, seconds: float = 0.0) -> bool:
        """Wait, then return False. Windows cannot tell whether a pipe is writable."""
        time.sleep(seconds)
        return False

    def open_to_read(path: str | Path, flags: int = 0) -> int:
        """Open a file for reading. Other programs can still write, rename and delete the file.

        With `os.open`, an agent could not rename its file while this process is reading it.
        """
        handle = _winapi.CreateFile(
            str(path), _GENERIC_READ, _SHARE_ALL, 0, _winapi.OPEN_EXISTING, 0, 0
        )
        return msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY | flags)

    def restrict_folder(folder: Path) -> None:
        """Do nothing. Folders in the user's profile are private already."""

    def is_alive(process_id: int) -> bool:
        """Return whether a process is running.

        `os.kill` is not used, because it terminates the process on Windows.
        """
        if process_id <= 0:
            return False
        try:
            handle = _winapi.OpenProcess(_SYNCHRONIZE, False, process_id & 0xFFFFFFFF)
        except OSError as error:
            return error.winerror == _ERROR_ACCESS_DENIED
        try:
            return _winapi.WaitForSingleObject(handle, 0) == _WAIT_TIMEOUT
        finally:
            _winapi.CloseHandle(handle)

else:
    # 4,096 on Linux, 512 on macOS.
    SURE_WRITE_BYTES = select.PIPE_BUF
    _READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY  # opening a FIFO would block

    def is_writable(descriptor: int, seconds: float = 0.0) -> bool:
        """Wait until a pipe is writable or closed. Returns False on a timeout."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def open_to_read(path: str | Path, flags: int = 0) -> int:
        """Open a file for reading. Does not block on a FIFO. Raises OSError."""
        return os.open(path, _READ_FLAGS | flags)

    def restrict_folder(folder: Path) -> None:
        """Make a folder private, unless it is a shared folder such as /tmp."""
        status = folder.stat()
        is_shared = status.st_uid != os.geteuid() or status.st_mode & stat.S_ISVTX
        if status.st_mode & 0o077 and not is_shared:
            folder.chmod(0o700)

    def is_alive(process_id: int) -> bool:
        """Return whether a process exists and is not a zombie."""
        if process_id <= 0:
            return False
        try:
            os.kill(process_id, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return not _is_zombie(process_id)

    def _is_zombie(process_id: int) -> bool:
        try:
            status = Path(f"/proc/{process_id}/stat").read_bytes()
        except OSError:
            return False
        return status.rpartition(b")")[2].split()[:1] == [b"Z"]
