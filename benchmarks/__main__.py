"""`python -m benchmarks [PART …]`: every figure beside its peer, in one run; all parts by default.

Parts: startup, editing, opening, folder, estimates, families, conversations, occupancy,
check, ledger.
"""

from __future__ import annotations

import sys
from importlib import import_module

PARTS = (
    "startup",
    "editing",
    "opening",
    "folder",
    "estimates",
    "families",
    "conversations",
    "occupancy",
    "check",
    "ledger",
)

if unknown := set(sys.argv[1:]) - set(PARTS):
    sys.exit(f"no such part: {', '.join(sorted(unknown))}\n{__doc__}")
for name in sys.argv[1:] or PARTS:
    import_module(f"benchmarks.{name}").run()
