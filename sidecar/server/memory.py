"""Memory of documents that were closed goes back to the system, where glibc would keep it.

Each thread's own arena holds a little of what lives on among much that was freed: with one arena
for all of them (the GIL lets one thread allocate at a time anyway) nearly everything is returned.
"""

from __future__ import annotations

import sys
from contextlib import suppress

_M_ARENA_MAX = -8


def use_one_arena() -> None:
    """To be called before there is a second thread."""
    _call("mallopt", _M_ARENA_MAX, 1)


def give_back() -> None:
    """Return what was freed. Blocking: some milliseconds, for which no other thread waits."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes

    with suppress(AttributeError, OSError):  # musl has neither
        getattr(ctypes.CDLL(None), name)(*arguments)
