"""Reads Roo Code's tasks, which use Cline's old format."""

from __future__ import annotations

from sidecar.agents.readers.cline import Tasks

READER = Tasks("roo-code", "rooveterinaryinc.roo-cline", has_repository=True)
