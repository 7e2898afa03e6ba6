"""Everything that differs between Linux, macOS and Windows.

No other module asks which system it runs on or calls a function that only some systems have. mypy
checks this module for all three: `mypy --platform win32`.
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
"""The environment variable with the user's home folder."""
PROGRAM_SUFFIX = ".exe" if IS_WINDOWS else ""
NO_WINDOW = 0x08000000 if IS_WINDOWS else 0
"""`creationflags` of a process that opens no console window (CREATE_NO_WINDOW)."""
NO_ATIME: int = getattr(os, "O_NOATIME", 0)
"""Flag of `open_to_read`: leave the file's access time. Only the file's owner may use it."""
NO_FOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
"""Flag of `open_to_read`: refuse a symbolic link."""
_REPLACE_SECONDS = 1.0


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    get_affinity = getattr(os, "sched_getaffinity", None)
    return len(get_affinity(0)) if get_affinity else os.cpu_count() or 1


def windows_path(host: str, path: str) -> PureWindowsPath:
    """Return the Windows path of a `file:` URI, such as `C:\\work` or `\\\\server\\share`."""
    if host not in ("", "localhost"):
        return PureWindowsPath(f"//{host}{path}")
    return PureWindowsPath(path[1:] if path[2:3] == ":" else path)


def use_utf8(stream: TextIOWrapper) -> None:
    """Write UTF-8 and `\\n` to a pipe or file on Windows, as programs that read it expect.

    Python would use the system's code page and `\\r\\n`. The console and PYTHONIOENCODING keep
    their encoding.
    """
    if IS_WINDOWS and not stream.isatty() and "PYTHONIOENCODING" not in os.environ:
        stream.reconfigure(encoding="utf-8", newline="\n")


def replace_file(source: str, target: Path) -> None:
    """Rename a file over another one, atomically. Blocking. Raises OSError.

    On Windows that fails while another process reads the target, so it is tried for a second.
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

    def call_libc(name: str, *arguments: int) -> None:
        """Call a function of glibc. Does nothing on other systems or if libc lacks it."""
        import ctypes

        with suppress(AttributeError, OSError):  # musl lacks mallopt and malloc_trim
            getattr(ctypes.CDLL(None), name)(*map(ctypes.c_ssize_t, arguments))

    def open_process(process_id: int) -> int | None:
        """Return a descriptor that becomes readable when a process ends, or None if unsupported."""
        try:
            return os.pidfd_open(process_id)
        except OSError:  # an old kernel, or a sandbox that forbids it
            return None

else:

    def call_libc(name: str, *arguments: int) -> None:
        """Do nothing: only glibc keeps freed memory."""

    def open_process(process_id: int) -> int | None:
        """Return None: the caller polls with `is_alive`."""
        return None


if sys.platform == "win32":
    import _winapi
    import msvcrt

    SURE_WRITE_BYTES = 0
    """How many bytes `write` accepts without blocking if `is_writable` returns True."""
    _GENERIC_READ = 0x80000000
    _SHARE_ALL = 0x1 | 0x2 | 0x4  # FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_SHARE_DELETE
    _SYNCHRONIZE = 0x00100000
    _ERROR_ACCESS_DENIED = 5
    _WAIT_TIMEOUT = 0x102

    def is_writable(descriptor: int, seconds: float = 0.0) -> bool:
        """Wait, and return False: Windows cannot tell whether a pipe has room."""
        time.sleep(seconds)
        return False

    def open_to_read(path: str | Path, flags: int = 0) -> int:
        """Open a file and let other programs write, rename and delete it meanwhile.

        `os.open` would make an agent fail that renames its file while it is read.
        """
        handle = _winapi.CreateFile(
            str(path), _GENERIC_READ, _SHARE_ALL, 0, _winapi.OPEN_EXISTING, 0, 0
        )
        return msvcrt.open_osfhandle(handle, os.O_RDONLY | os.O_BINARY | flags)

    def restrict_folder(folder: Path) -> None:
        """Do nothing: folders in the user's profile are private."""

    def is_alive(process_id: int) -> bool:
        """Return whether a process runs. `os.kill` would end it: Windows has no signal 0."""
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
        """Wait for room in a pipe. Writing to a closed pipe fails at once."""
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def open_to_read(path: str | Path, flags: int = 0) -> int:
        """Open a file without blocking on a FIFO. Raises OSError."""
        return os.open(path, _READ_FLAGS | flags)

    def restrict_folder(folder: Path) -> None:
        """Remove others' access to a folder, unless it is a shared one such as /tmp."""
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
