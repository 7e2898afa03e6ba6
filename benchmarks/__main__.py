"""`python -m benchmarks [startup editing opening folder]`: all of them by default."""

from __future__ import annotations

import sys

from benchmarks import editing, folder, opening, startup

PARTS = {"startup": startup, "editing": editing, "opening": opening, "folder": folder}

for name in sys.argv[1:] or PARTS:
    PARTS[name].run()
