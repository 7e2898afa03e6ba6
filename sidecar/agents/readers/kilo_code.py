"""Kilo Code: a database like opencode's since 7.0, before that tasks like Cline's."""

from __future__ import annotations

import os

from sidecar.agents.finding import TwoStores
from sidecar.agents.readers.cline import Tasks
from sidecar.agents.readers.opencode import OpenCode

AGENT = "kilo-code"

READER = TwoStores(
    OpenCode(AGENT, files="kilo"),
    Tasks(AGENT, "kilocode.kilo-code", has_copies=True),
    lambda path: f"{os.sep}tasks{os.sep}" in path,
)
