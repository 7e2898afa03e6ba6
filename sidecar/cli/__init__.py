"""The command line: one module per command, imported when the command runs."""

from sidecar.cli.group import VERBS, main

__all__ = ["VERBS", "main"]
