"""Builds a library for LD_PRELOAD with which opening the ledger takes five seconds."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

CAN_BUILD = sys.platform == "linux" and shutil.which("cc") is not None
SECONDS = 5

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); int mode = va_arg(more, int); va_end(more); \
    if (strstr(path, "ledger.db")) sleep(SECONDS); \
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); }
OPEN(open)
OPEN(open64)
"""


def build_slow_disk(folder: Path) -> Path:
    """Return the path of the library."""
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SOURCE)
    options = ["-shared", "-fPIC", f"-DSECONDS={SECONDS}", "-o", str(library)]
    subprocess.run(["cc", *options, str(source), "-ldl"], check=True)
    return library
