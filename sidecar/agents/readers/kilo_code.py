"""Reads Kilo Code's database (version 7 and later) or task files (earlier versions).

The database uses opencode's format, and the task files use Cline's.
"""

from __future__ import annotations

import os

from sidecar.agents.readers.cline import Tasks
from sidecar.agents.readers.opencode import opencode_reader
from sidecar.agents.store_files import TwoStores

AGENT = "kilo-code"

READER = TwoStores(
    opencode_reader(AGENT, "kilo"),
    Tasks(AGENT, "kilocode.kilo-code", has_repository=True),
    lambda path: f"{os.sep}tasks{os.sep}" in path,
)
