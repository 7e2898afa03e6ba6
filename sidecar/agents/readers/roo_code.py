"""Roo Code: tasks like Cline's."""

from __future__ import annotations

from sidecar.agents.readers.cline import Tasks

READER = Tasks("roo-code", "rooveterinaryinc.roo-cline", has_copies=True)
