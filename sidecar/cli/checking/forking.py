"""Whether this process may be copied, and how many copies the machine has a core for."""

from __future__ import annotations

import os
import sys


def cores() -> int:
    """How many this process may use."""
    ours = getattr(os, "sched_getaffinity", None)
    return len(ours(0)) if ours else os.cpu_count() or 1


def may_fork() -> bool:
    """Whether this is Linux, and this process has one thread, those of libraries counted too: a
    fork would lose the others. Elsewhere a fork is not safe, or a new process costs too much."""
    if sys.platform != "linux":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
