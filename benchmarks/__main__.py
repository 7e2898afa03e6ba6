"""`python -m benchmarks [startup editing opening folder ledger]`: all of them by default."""

from __future__ import annotations

import sys

from benchmarks import editing, folder, ledger, opening, startup

PARTS = {
    "startup": startup,
    "editing": editing,
    "opening": opening,
    "folder": folder,
    "ledger": ledger,
}

for name in sys.argv[1:] or PARTS:
    PARTS[name].run()
